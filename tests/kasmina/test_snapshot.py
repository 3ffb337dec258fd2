"""Set back to a snapshot, a member is as it was, its trial seeds are gone, no one else moved."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from esper.kasmina import OptimConfig, Population
from esper.kasmina.saving.saving import population_tensors
from esper.kasmina.snapshot import MemberSnapshots, finite_members
from esper.leyline import BlendStyle, LifecycleOp, SeedStage
from esper.leyline.actions import AlphaMode
from esper.leyline.signals import NO_BLUEPRINT
from support import (
    KINDS,
    batch,
    bring_to,
    good_signals,
    make_population,
    pass_step,
    refused,
)

E = 4
OPTIMS = {"sgd": OptimConfig(), "adamw": OptimConfig(kind="adamw", weight_decay=0.1)}
CLOCKS = ("lifecycle/births_ES", "lifecycle/age_ES", "lifecycle/steps_in_stage_ES", "passes_E")
COOLDOWN = 7
"""Steps from a removal to a dormant slot, by default."""


def mask(*members: int, size: int = E) -> np.ndarray:
    out = np.zeros(size, dtype=np.bool_)
    out[list(members)] = True
    return out


def dump(population: Population) -> dict[str, Tensor]:
    """Everything that changes in a population, copied."""
    return {name: value.clone() for name, value in population_tensors(population).items()}


def train(population: Population, steps: int = 2, kind: str = "cnn", seed: int = 0) -> None:
    for number in range(steps):
        pass_step(population, train=True, seed=seed + number, kind=kind)


def fossils(executor: str = "loop", kind: str = "cnn", optim: str = "sgd") -> Population:
    """Members 0 to 2 have a gated permanent seed, member 1 a second one of another blueprint."""
    population = make_population(E, executor, kind=kind, optim=OPTIMS[optim])
    made = KINDS[kind]
    bring_to(
        population, SeedStage.FOSSILIZED, [0, 1, 2], made.slots[0], made.seed, style=BlendStyle.GATE
    )
    bring_to(population, SeedStage.FOSSILIZED, [1], made.slots[1], made.blueprints[0])
    train(population, kind=kind)
    return population


def same(one: dict[str, Tensor], two: dict[str, Tensor], members, but: tuple[str, ...] = ()):
    """Equal rows of these members in two dumps; what is in one only is zero (empty moments)."""
    for name in one.keys() | two.keys():
        if name.startswith(but) if but else False:
            continue
        rows = [(d[name][members] if name in d else None) for d in (one, two)]
        zero = torch.zeros_like(next(r for r in rows if r is not None))
        left, right = (zero if r is None else r for r in rows)
        assert torch.equal(left.nan_to_num(-7.0), right.nan_to_num(-7.0)), name


@pytest.mark.parametrize(
    ("executor", "kind", "optim"),
    [
        ("vmap", "cnn", "adamw"),
        ("vmap", "transformer", "adamw"),
        ("vmap", "mlp", "adamw"),
        ("loop", "batchnorm", "sgd"),
        ("loop", "signal", "sgd"),
    ],
)
def test_a_restored_member_is_the_one_of_the_snapshot(executor, kind, optim):
    population = fossils(executor, kind, optim)
    snapshots = MemberSnapshots(population)
    snapshots.take(mask(0, 1, 2, 3))
    then = dump(population)
    train(population, 3, kind, seed=20)
    now = dump(population)
    clocks = CLOCKS
    with pytest.raises(AssertionError):
        same(then, now, [1], clocks)
    pruned_E = snapshots.restore(mask(1, 3))
    after = dump(population)
    assert pruned_E.tolist() == [0, 0, 0, 0]
    same(after, now, [0, 2])
    loss = ("lifecycle/host_loss_E",)
    same(after, then, [1, 3], clocks + loss)
    same(after, now, [1, 3], tuple(n for n in after if n not in clocks))


@pytest.mark.parametrize(("executor", "optim"), [("vmap", "sgd"), ("loop", "adamw")])
def test_a_restored_member_trains_as_it_would_have(executor, optim):
    """Values, buffers and optimiser state are all there is."""
    population = fossils(executor, optim=optim)
    snapshots = MemberSnapshots(population)
    snapshots.take(mask(0, 1, 2, 3))
    train(population, 3, seed=30)
    first = dump(population)
    snapshots.restore(mask(0, 1, 2, 3))
    train(population, 3, seed=30)
    second = dump(population)
    same(first, second, [0, 1, 2, 3], CLOCKS)


def test_outputs_are_those_of_the_snapshot_and_plans_are_rebuilt():
    population = fossils("vmap")
    x, _ = batch(E)
    snapshots = MemberSnapshots(population)
    snapshots.take(mask(0, 1, 2, 3))
    then = population.forward(x).detach()
    bring_to(population, SeedStage.HOLDING, [0, 1, 2, 3], "r0c2")
    with torch.no_grad():
        for bank in population.network.banks.values():
            bank.flat_EP += 0.3
    now = population.forward(x).detach()  # the plan with the new seeds is cached
    version = population.lifecycle.version
    snapshots.restore(mask(0, 3))
    assert population.lifecycle.version > version
    after = population.forward(x).detach()
    assert not torch.allclose(now[0], then[0])
    assert torch.allclose(after[[0, 3]], then[[0, 3]], atol=1e-6)
    assert torch.allclose(after[[1, 2]], now[[1, 2]], atol=1e-6)


def test_the_version_grows_though_the_slots_were_empty():
    population = make_population(E)
    snapshots = MemberSnapshots(population)
    snapshots.take(mask(0))
    version = population.lifecycle.version
    snapshots.restore(mask(0))
    assert population.lifecycle.version > version


@pytest.mark.parametrize(
    "stage", [SeedStage.GERMINATED, SeedStage.TRAINING, SeedStage.BLENDING, SeedStage.HOLDING]
)
@pytest.mark.parametrize("before", [True, False])
def test_seeds_on_trial_are_uprooted_and_serve_the_full_cooldown(stage, before):
    """Whether they stood there at the snapshot or came after it."""
    population = make_population(E)
    life, snapshots = population.lifecycle, MemberSnapshots(population)
    if not before:
        snapshots.take(mask(0, 1, 2, 3))
    bring_to(population, stage, [0, 2], "r0c1", style=BlendStyle.GATE, tempo=8)
    if before:
        snapshots.take(mask(0, 1, 2, 3))
        if stage in (SeedStage.TRAINING, SeedStage.BLENDING):
            train(population, 1)
    births, other = life.births_ES.copy(), dump(population)
    pruned_E = snapshots.restore(mask(0, 1))
    assert pruned_E.tolist() == [1, 0, 0, 0]
    assert life.stage_ES[0, 1] == SeedStage.PRUNED
    assert life.blueprint_ES[0, 1] == NO_BLUEPRINT
    assert life.alpha_ES[0, 1] == 0
    assert life.mode_ES[0, 1] == AlphaMode.HOLD
    assert np.isnan(life.signals.contribution_ES[0, 1])
    assert np.array_equal(life.births_ES, births)
    same(dump(population), other, [2, 3])
    steps = 0
    while life.stage_ES[0, 1] != SeedStage.DORMANT:
        assert not life.legal_ops()[0, 1, LifecycleOp.GERMINATE]
        pass_step(population)
        steps += 1
    assert steps == COOLDOWN


def test_a_seed_being_pruned_is_uprooted_too():
    population = make_population(E)
    life, snapshots = population.lifecycle, MemberSnapshots(population)
    snapshots.take(mask(0, 1, 2, 3))
    bring_to(population, SeedStage.HOLDING, [0, 1], "r0c1")
    population.prune([0, 1], "r0c1", speed=5)
    snapshots.restore(mask(0))
    assert life.stage_ES[:2, 1].tolist() == [SeedStage.PRUNED, SeedStage.BLENDING]
    assert life.pruning_ES[:2, 1].tolist() == [False, True]
    pass_step(population)
    assert life.alpha_ES[0, 1] == 0


def test_slots_that_rest_go_on_resting():
    population = make_population(E)
    life, snapshots = population.lifecycle, MemberSnapshots(population)
    snapshots.take(mask(0, 1))
    bring_to(population, SeedStage.HOLDING, [0, 1], "r0c1")
    population.prune([0, 1], "r0c1")
    pass_step(population)
    pass_step(population)
    snapshots.restore(mask(0))
    assert np.array_equal(life.cooldown_left()[0], life.cooldown_left()[1])


def test_a_fossil_that_came_after_the_snapshot_is_gone():
    population = make_population(E)
    life, snapshots = population.lifecycle, MemberSnapshots(population)
    snapshots.take(mask(0, 1, 2, 3))
    bring_to(population, SeedStage.FOSSILIZED, [0, 1], "r0c1")
    assert snapshots.restore(mask(0)).tolist() == [1, 0, 0, 0]
    assert life.stage_ES[:2, 1].tolist() == [SeedStage.PRUNED, SeedStage.FOSSILIZED]
    assert life.alpha_ES[:2, 1].tolist() == [0.0, 1.0]
    assert life.cooldown_left()[0, 1] == COOLDOWN
    for _ in range(COOLDOWN):
        pass_step(population)
    key = (1, population.blueprints.index("conv_light"))
    first = population.network.banks[key].flat_EP.detach().clone()
    population.germinate([0], "r0c1", "conv_light")
    assert life.births_ES[:2, 1].tolist() == [2, 1]
    assert not torch.equal(population.network.banks[key].flat_EP.detach()[0], first[0])
    assert torch.equal(population.network.banks[key].flat_EP.detach()[1], first[1])


def test_a_fossil_of_the_snapshot_is_restored_in_full():
    population = make_population(E)
    life, snapshots = population.lifecycle, MemberSnapshots(population)
    bring_to(population, SeedStage.FOSSILIZED, [0, 1], "r0c1", style=BlendStyle.GATE)
    train(population)
    snapshots.take(mask(0, 1))
    then, ages = dump(population), life.age_ES.copy()
    train(population, 2, seed=5)
    for store in (*population.network.banks.values(), *population.network.gates.values()):
        store.flat_EP.detach()[0] = float("nan")
    snapshots.restore(mask(0))
    after = dump(population)
    for part in ("bank/r0c1/conv_light", "gate/r0c1"):
        assert torch.equal(after[f"{part}/values"][0], then[f"{part}/values"][0])
        moments = f"{part}/optimizer/momentum"
        assert torch.equal(after[moments][0], then[moments][0])
        assert then[moments][0].any()
    assert life.stage_ES[0, 1] == SeedStage.FOSSILIZED
    assert life.alpha_ES[0, 1] == 1
    assert life.style_ES[0, 1] == BlendStyle.GATE
    assert (life.age_ES[:2, 1] == ages[:2, 1] + 2).all(), "clocks go on"


def test_a_later_snapshot_takes_the_place_of_the_first():
    population = fossils()
    snapshots = MemberSnapshots(population)
    snapshots.take(mask(0, 1, 2, 3))
    first = dump(population)
    train(population)
    snapshots.take(mask(1))
    second = dump(population)
    train(population)
    snapshots.restore(mask(0, 1))
    assert torch.equal(dump(population)["host/values"][0], first["host/values"][0])
    assert torch.equal(dump(population)["host/values"][1], second["host/values"][1])


@pytest.mark.parametrize("optim", list(OPTIMS))
def test_snapshots_from_before_the_first_update(optim):
    """There were no moments then, so there are none again; step counts included."""
    population = make_population(E, "loop", optim=OPTIMS[optim])
    snapshots = MemberSnapshots(population)
    snapshots.take(mask(0, 1, 2, 3))
    train(population, 2, seed=3)
    first = dump(population)
    snapshots.restore(mask(1))
    for value in population.trainer.host_optimizer.state["host"].values():
        assert not value[1].any()
        assert value[0].any()
    train(population, 2, seed=3)
    assert torch.equal(dump(population)["host/values"][1], first["host/values"][1])


def test_moments_that_vanished_before_a_snapshot_are_not_brought_back():
    population = fossils()
    snapshots = MemberSnapshots(population)
    snapshots.take(mask(0, 1, 2, 3))
    population.trainer.reset()
    snapshots.take(mask(0))
    train(population)
    snapshots.restore(mask(0, 1))
    momentum = population.trainer.host_optimizer.state["host"]["momentum"]
    assert not momentum[0].any()
    assert momentum[1].any()


def test_moments_of_uprooted_seeds_are_cleared():
    population = make_population(E)
    snapshots = MemberSnapshots(population)
    snapshots.take(mask(0, 1, 2, 3))
    bring_to(population, SeedStage.TRAINING, [0, 1], "r0c1", style=BlendStyle.GATE)
    train(population)
    snapshots.restore(mask(0))
    for value in population.trainer.seed_optimizer.state.values():
        assert not value["momentum"][0].any()
        assert value["momentum"][1].any()


def test_a_bank_opened_after_the_snapshot_is_no_obstacle():
    population = fossils("vmap")
    snapshots = MemberSnapshots(population)
    snapshots.take(mask(0, 1, 2, 3))
    bring_to(population, SeedStage.FOSSILIZED, [0, 3], "r0c2", "conv_heavy", style=BlendStyle.GATE)
    train(population)
    snapshots.restore(mask(0, 1, 2, 3))
    train(population)
    assert (population.lifecycle.stage_ES[:, 2] != SeedStage.FOSSILIZED).all()
    assert torch.isfinite(population.network.host.flat_EP).all()


def test_nothing_is_uploaded_for_nobody():
    population = fossils()
    snapshots = MemberSnapshots(population)
    before = dump(population)
    snapshots.take(mask())
    assert snapshots.restore(mask()).tolist() == [0, 0, 0, 0]
    same(before, dump(population), [0, 1, 2, 3])


def test_no_snapshot_is_named():
    snapshots = MemberSnapshots(make_population(E))
    snapshots.take(mask(0))
    line = refused(lambda: snapshots.restore(mask(0, 2)))
    assert line.startswith("member 2 has no snapshot")


def test_reports_handed_out_do_not_change():
    population = fossils()
    snapshots = MemberSnapshots(population)
    snapshots.take(mask(0, 1, 2, 3))
    population.begin_step()
    signals = good_signals(population)
    signals.contribution_ES[:] = 0.7
    population.end_step(signals)
    reports = population.slot_reports()
    snapshots.restore(mask(0))
    assert (reports.contribution_ES == np.float32(0.7)).all()
    assert population.lifecycle.signals.contribution_ES[0, 0] == np.float32(0.2)
    assert population.lifecycle.signals.contribution_ES[1, 0] == np.float32(0.7)


# ---- what is finite -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cnn", "batchnorm"])
def test_finite_members_see_what_a_snapshot_would_hold(kind):
    population = fossils("loop", kind)
    made = KINDS[kind]
    bring_to(population, SeedStage.TRAINING, [0], made.slots[2], made.seed)
    train(population, 1, kind)
    assert finite_members(population).tolist() == [True] * 4
    network = population.network
    k = population.blueprints.index(made.seed)
    network.banks[0, k].flat_EP.detach()[3, 0] = float("nan")  # no seed stands there
    network.banks[2, k].flat_EP.detach()[0, 0] = float("nan")  # on trial
    assert finite_members(population).tolist() == [True] * 4
    network.host.flat_EP.detach()[3, -1] = float("inf")
    assert finite_members(population).tolist() == [True, True, True, False]
    network.banks[0, k].flat_EP.detach()[2, 0] = float("nan")
    assert finite_members(population).tolist() == [True, True, False, False]
    network.gates[0].flat_EP.detach()[1, 0] = float("nan")
    assert finite_members(population).tolist() == [True, False, False, False]
    population.trainer.host_optimizer.state["host"]["momentum"][0, 0] = float("nan")
    assert not finite_members(population).any()


def test_finite_members_see_buffers():
    population = make_population(E, "loop", kind="batchnorm")
    name = next(n for n in population.network.host.fixed if n.endswith("running_var"))
    population.network.host.fixed[name][2, 0] = float("nan")
    assert finite_members(population).tolist() == [True, True, False, True]


def test_finite_members_see_buffers_of_one_number_and_none():
    population = make_population(E)
    fixed = population.network.host.fixed
    fixed["scale"] = torch.tensor([1.0, float("-inf"), float("nan"), 3e38])
    fixed["count"], fixed["empty"] = torch.arange(E), torch.zeros(E, 0)
    assert finite_members(population).tolist() == [True, False, False, True]


# ---- random lives -------------------------------------------------------------------------


def check_alive(population: Population) -> None:
    """What must hold of every slot at every moment."""
    life = population.lifecycle
    stage, alpha = life.stage_ES, life.alpha_ES
    occupied = life.occupied()
    assert np.array_equal(life.blueprint_ES != NO_BLUEPRINT, occupied)
    full = np.isin(stage, [SeedStage.HOLDING, SeedStage.FOSSILIZED])
    assert (alpha[full] == 1).all()
    assert (alpha[~full & (stage != SeedStage.BLENDING)] == 0).all()
    assert (stage[life.mode_ES != AlphaMode.HOLD] == SeedStage.BLENDING).all()
    assert (stage[life.pruning_ES] == SeedStage.BLENDING).all()
    assert (life.age_ES[~occupied] == 0).all()
    cooling = np.isin(stage, [SeedStage.PRUNED, SeedStage.EMBARGOED, SeedStage.RESETTING])
    assert np.array_equal(life.cooldown_left() > 0, cooling)


def act_at_random(population: Population, rng: np.random.Generator) -> np.ndarray:
    """One legal action for each member; who fossilised."""
    fossilized = np.zeros(E, dtype=np.bool_)
    for e in range(E):
        legal = np.argwhere(population.lifecycle.legal_ops()[e])
        s, op = (int(v) for v in legal[rng.integers(len(legal))])
        if op == LifecycleOp.GERMINATE:
            style = int(rng.choice(list(BlendStyle)))
            population.germinate([e], s, int(rng.integers(2)), style)
        elif op == LifecycleOp.ADVANCE:
            population.advance([e], s)
        elif op == LifecycleOp.SET_ALPHA_TARGET:
            population.set_alpha_target([e], s, float(rng.choice([0.5, 1.0])), 3)
        elif op == LifecycleOp.PRUNE:
            population.prune([e], s, int(rng.choice([0, 3])))
        elif op == LifecycleOp.FOSSILIZE:
            population.fossilize([e], s)
            fossilized[e] = True
    return fossilized


@settings(max_examples=5)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_random_lives_with_rollbacks_keep_every_invariant(seed, keep_fossils):
    """With NaN in everything of the members that are set back; whether fossils are kept or not."""
    rng = np.random.default_rng(seed)
    population = make_population(E, "vmap", optim=OPTIMS["adamw"])
    life, snapshots = population.lifecycle, MemberSnapshots(population)
    snapshots.take(np.ones(E, dtype=np.bool_))
    held = [population.forward(batch(E)[0]).detach()[e] for e in range(E)]
    for step in range(20):
        pass_step(population, train=True, seed=step)
        back = rng.random(E) < 0.15
        for store in (
            population.network.host,
            *population.network.banks.values(),
            *population.network.gates.values(),
        ):
            store.flat_EP.detach()[torch.from_numpy(back)] = float("nan")
        fossils_now = life.stage_ES == SeedStage.FOSSILIZED
        live = life.occupied() & ~(snapshots.permanent_ES & fossils_now)
        births, others = life.births_ES.copy(), dump(population)
        pruned_E = snapshots.restore(back)
        assert np.array_equal(pruned_E, np.where(back, live.sum(axis=1), 0))
        check_alive(population)
        same(dump(population), others, np.flatnonzero(~back))
        assert np.array_equal(life.births_ES, births)
        assert finite_members(population).all()
        out = population.forward(batch(E)[0]).detach()
        assert torch.isfinite(out).all()
        for e in np.flatnonzero(back):
            assert np.array_equal(
                life.stage_ES[e] == SeedStage.FOSSILIZED, snapshots.permanent_ES[e]
            )
            if not (life.alpha_ES[e] > 0)[~snapshots.permanent_ES[e]].any() and held[e] is not None:
                assert torch.allclose(out[e], held[e], atol=1e-5)
        fossilized = act_at_random(population, rng)
        take = (rng.random(E) < 0.2) | (fossilized & keep_fossils)
        snapshots.take(take)
        for e in np.flatnonzero(take):
            off = np.where(snapshots.permanent_ES, life.alpha_ES, 0.0).astype(np.float32)
            held[e] = population.forward(batch(E)[0], alpha_RS=off).detach()[e]
