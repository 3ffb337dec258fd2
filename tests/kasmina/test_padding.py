"""Plans with room to spare compute what exact plans do; padding rows read and give nothing back."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.device.packing import ALIGNMENT, PackedArrays
from esper.kasmina import Population
from esper.kasmina.lifecycle.lifecycle import Lifecycle
from esper.kasmina.rows.padding import (
    RESTLESS_SLACK,
    SHARES,
    SLACK,
    PlanBufferCache,
)
from esper.kasmina.rows.plan_layout import RowShape
from esper.kasmina.rows.rows import (
    FROM_INPUT,
    RowPlan,
    RowTable,
    make_plan,
    shape_of,
    training_rows,
)
from esper.leyline import BlendStyle, LifecycleOp, SeedStage
from esper.leyline.actions import ALPHA_TARGETS
from esper.tolaria.counterfactual_eval import CounterfactualConfig, plan_coalitions
from support import EVERY_KIND, batch, bring_to, good_signals, make_population, refused

ADD = frozenset({BlendStyle.ADD})
members_counts = st.integers(1, 200)


@pytest.fixture(autouse=True)
def not_exact():
    """Rooms are shared unless sums must not depend on what came before (`exact`)."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    yield
    torch.use_deterministic_algorithms(before)


# ---- shapes -------------------------------------------------------------------------------


def tight(table: RowTable, life: Lifecycle) -> RowShape:
    """The shape that a first plan gets."""
    return PlanBufferCache().find("train", table, life, True).shape


@pytest.mark.parametrize("members", [3, 64, 200])
def test_a_room_wastes_no_more_than_its_law(members):
    population = make_population(members)
    life, fewest = population.lifecycle, -(-members // SHARES)
    for seeds in range(0, members, max(1, members // 9)):
        life.reset()
        if seeds:
            life.germinate(np.arange(seeds), 1, 0)
            life.begin_step()
        table = training_rows(life)
        need, room = shape_of(table, life), tight(table, life)
        assert room.covers(need)
        assert room.total - need.total <= 2 * max(4, fewest) + 1, "a row of padding, two buckets"
        if seeds:
            assert room.begin_S[1] > need.begin_S[1], "a row of padding where seeds are live"


def test_growth_that_changes_at_every_step_soon_finds_its_room():
    """Once new shapes keep coming, room is made for all recent plans, and taken by nearly all."""
    population, rooms = make_population(16), PlanBufferCache()
    life = population.lifecycle
    rng = np.random.default_rng(0)
    found, wasted = [], []
    for _ in range(60):
        life.reset()
        members = rng.permutation(16)[: rng.integers(5, 9)]
        life.germinate(members, rng.integers(0, 3, len(members)), rng.integers(0, 2, len(members)))
        life.begin_step()
        table = training_rows(life)
        room = rooms.find("train", table, life, True)
        assert room.shape.covers(shape_of(table, life))
        wasted.append(room.shape.total / tight(table, life).total)
        found.append(id(room))
    assert max(wasted) <= RESTLESS_SLACK
    assert len(set(found)) <= 15
    assert len(set(found[30:]) - set(found[:30])) <= 3


def test_a_population_that_comes_to_rest_gets_a_tight_room_again():
    population, rooms = make_population(16), PlanBufferCache()
    life = population.lifecycle
    rng = np.random.default_rng(0)
    for _ in range(20):
        life.reset()
        members = rng.permutation(16)[:8]
        life.germinate(members, rng.integers(0, 3, 8), rng.integers(0, 2, 8))
        life.begin_step()
        rooms.find("train", training_rows(life), life, True)
    table = training_rows(life)
    wasted = [
        rooms.find("train", table, life, True).shape.total / tight(table, life).total
        for _ in range(150)
    ]
    assert wasted[-1] <= SLACK


def test_room_that_is_there_is_taken_until_it_wastes_too_much():
    population = make_population(16)
    rooms = PlanBufferCache()
    bring_to(population, SeedStage.TRAINING, list(range(6)), "r0c1")
    large = rooms.find("train", training_rows(population.lifecycle), population.lifecycle, True)
    population.prune(0, "r0c1")
    population.prune(1, "r0c1")
    life = population.lifecycle
    exact = tight(training_rows(life), life)
    assert exact != large.shape
    again = rooms.find("train", training_rows(life), life, True)
    fits = large.shape.total <= SLACK * exact.total
    assert (again is large) == fits
    assert rooms.find("rows", training_rows(life), life, True) is not again, "one use, one room"


def test_under_exact_a_room_follows_from_its_table_alone():
    population = make_population(16)
    bring_to(population, SeedStage.TRAINING, list(range(6)), "r0c1")
    life = population.lifecycle
    shapes = []
    for seen_before in (False, True):
        rooms = PlanBufferCache()
        if seen_before:
            rooms.find("train", training_rows(life), life, True)
        later = copy.deepcopy(life)
        later.prune(0, 1)
        later.prune(1, 1)
        torch.use_deterministic_algorithms(True)
        shapes.append(rooms.find("train", training_rows(later), later, True).shape)
        torch.use_deterministic_algorithms(False)
    assert shapes[0] == shapes[1] == tight(training_rows(later), later)


def test_rooms_used_least_recently_go():
    population = make_population(8)
    rooms, life = PlanBufferCache(limit=2), population.lifecycle
    tables = []
    for stage, count in ((SeedStage.DORMANT, 0), (SeedStage.TRAINING, 3), (SeedStage.TRAINING, 8)):
        if stage is SeedStage.TRAINING:
            dormant = np.flatnonzero(life.stage_ES[:count, 1] == SeedStage.DORMANT)
            population.germinate(dormant, "r0c1", "conv_light")
            population.begin_step()
        tables.append((training_rows(life), copy.deepcopy(life)))
    found = [rooms.find("train", *pair, True) for pair in tables]
    assert len({id(room) for room in found}) == 3
    assert len(rooms) == 2
    assert rooms.find("train", *tables[2], True) is found[2]
    assert rooms.find("train", *tables[0], True) is not found[0]


# ---- packed arrays ------------------------------------------------------------------------


def test_packed_arrays_come_back_as_they_were_and_stay_where_they_are():
    rng = np.random.default_rng(0)
    arrays = {
        "flags": rng.random(5) < 0.5,
        "index": rng.integers(0, 9, 3),
        "alpha": rng.random((2, 3)).astype(np.float32),
        "style": rng.integers(0, 3, 7).astype(np.int8),
    }
    packed = PackedArrays(arrays, torch.device("cpu"))
    places = {name: tensor.data_ptr() for name, tensor in packed.tensors.items()}
    others = {name: np.roll(values, 1) for name, values in arrays.items()}
    for values in (arrays, others):
        packed.fill(values)
        for name, array in values.items():
            assert np.array_equal(packed.tensors[name].numpy(), array)
            assert packed.tensors[name].data_ptr() == places[name]
    start = packed.tensors["flags"].data_ptr()
    assert all((place - start) % ALIGNMENT == 0 for place in places.values())


def test_a_copy_of_packed_arrays_is_filled_by_itself():
    packed = PackedArrays({"index": np.arange(3), "alpha": np.zeros(2)}, torch.device("cpu"))
    twin = copy.deepcopy(packed)
    twin.fill({"index": np.arange(3) + 5, "alpha": np.ones(2)})
    assert twin.tensors["index"].tolist() == [5, 6, 7]
    assert twin.tensors["alpha"].tolist() == [1.0, 1.0]
    assert packed.tensors["index"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "wrong",
    [
        {"index": np.zeros(4, dtype=np.int64)},
        {"index": np.zeros(3, dtype=np.int32)},
        {"other": np.zeros(3, dtype=np.int64)},
    ],
)
def test_arrays_that_do_not_fit_are_refused(wrong):
    packed = PackedArrays({"index": np.zeros(3, dtype=np.int64)}, torch.device("cpu"))
    assert "index" in refused(lambda: packed.fill(wrong))


# ---- with padding, and without ------------------------------------------------------------


def act_randomly(populations: tuple[Population, Population], rng: np.random.Generator) -> None:
    """The same random legal operations for both."""
    first = populations[0]
    legal_ESO = first.lifecycle.legal_ops()
    for member in range(first.members):
        slot = int(rng.integers(len(first.slots)))
        op = LifecycleOp(rng.choice(np.flatnonzero(legal_ESO[member, slot])))
        kinds = np.flatnonzero(first.lifecycle.fits_SK[slot])
        seed = int(rng.choice(kinds))
        style = BlendStyle(int(rng.integers(len(BlendStyle))))
        target, speed = float(rng.choice(ALPHA_TARGETS)), int(rng.choice([3, 5]))
        for population in populations:
            if op is LifecycleOp.GERMINATE:
                population.germinate([member], slot, seed, style=style, tempo=3)
            elif op is LifecycleOp.ADVANCE:
                population.advance([member], slot)
            elif op is LifecycleOp.SET_ALPHA_TARGET:
                population.set_alpha_target([member], slot, target, speed)
            elif op is LifecycleOp.PRUNE:
                population.prune([member], slot, 3)
            elif op is LifecycleOp.FOSSILIZE:
                population.fossilize([member], slot)


def state_of(population: Population) -> dict[str, torch.Tensor]:
    network = population.network
    stores = {"host": network.host}
    stores |= {f"bank {key}": bank for key, bank in network.banks.items()}
    stores |= {f"gate {key}": gate for key, gate in network.gates.items()}
    out = {}
    for name, store in stores.items():
        out[name] = store.flat_EP.detach()
        out |= {f"{name} {part}": value for part, value in store.fixed.items()}
    return out


def assert_equal(padded: Population, exact: Population, but: tuple[int, ...] = ()) -> None:
    left, right = state_of(padded), state_of(exact)
    assert left.keys() == right.keys()
    kept = [e for e in range(padded.members) if e not in but]
    for name, value in left.items():
        torch.testing.assert_close(
            value[kept], right[name][kept], rtol=1e-5, atol=1e-6, equal_nan=True, msg=name
        )


def remove_rounding(padded: Population, exact: Population) -> None:
    """Copy weights and buffers: over a life, rounding flips a ReLU and gradients differ by more."""
    right = state_of(exact)
    for name, value in state_of(padded).items():
        value.copy_(right[name])


def assert_one_writer_for_each_row(plan: RowPlan) -> None:
    """In a slot a row has one entry with an alpha; entries that share a row have alpha 0."""
    padding = set(range(plan.table.rows)) - set(plan.real_R.tolist())
    for groups in plan.groups_S:
        rows = [row for group in groups for row in group.rows_G.tolist()]
        alphas = [alpha for group in groups for alpha in group.alpha_G.tolist()]
        real = [row for row in rows if row not in padding]
        assert len(set(real)) == len(real), "a row is named once, unless it is padding"
        assert [alpha == 0 for alpha in alphas] == [row in padding for row in rows]


def compare_batches(padded: Population, exact: Population, kind: str, seed: int) -> None:
    x, y = batch(padded.members, seed, kind=kind)
    plan = padded.train_plan(padded=True)
    assert_one_writer_for_each_row(plan)
    one = padded.train_rows(plan, x, y)
    two = exact.train_batch(x, y)
    for name in ("loss_E", "correct_E", "shadow_loss_ES", "host_grad_norm_E", "grad_norm_ES"):
        left, right = getattr(one, name), getattr(two, name)
        assert torch.equal(left.isnan(), right.isnan()), f"{name}: which rows count"
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6, equal_nan=True, msg=name)


def compare_coalitions(padded: Population, exact: Population, kind: str, step: int) -> None:
    x, y = batch(1, 50 + step, kind=kind)
    table = plan_coalitions(exact, CounterfactualConfig(), 0, 0, step).table
    plan = padded.plan_rows(table, padded=True)
    assert plan.real_R is not None
    assert_one_writer_for_each_row(plan)
    one, two = padded.evaluate(x, y, plan), exact.evaluate(x, y, table)
    torch.testing.assert_close(one.loss_R[plan.real_R], two.loss_R, rtol=1e-5, atol=1e-6)
    assert torch.equal(one.correct_R[plan.real_R], two.correct_R)


def live_alike(kind: str, seed: int, detach: bool, steps: int) -> set[int]:
    """A random life of two populations, one with padding; the stages that were trained in."""
    rng = np.random.default_rng(seed)
    padded, exact = (make_population(5, kind=kind, detach_seed_input=detach) for _ in range(2))
    seen: set[int] = set()
    for step in range(steps):
        for population in (padded, exact):
            population.begin_step()
        seen |= set(exact.lifecycle.stage_ES.ravel().tolist())
        compare_batches(padded, exact, kind, step)
        compare_coalitions(padded, exact, kind, step)
        assert_equal(padded, exact)
        remove_rounding(padded, exact)
        for population in (padded, exact):
            population.end_step(good_signals(population))
        act_randomly((padded, exact), rng)
    return seen


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_random_life_is_trained_and_validated_alike(kind):
    seen = live_alike(kind, 7, detach=kind == "mlp", steps=12)
    assert seen >= {SeedStage.TRAINING, SeedStage.BLENDING, SeedStage.HOLDING}


def test_one_member_alone_has_padding_too():
    padded, exact = (make_population(1) for _ in range(2))
    for population in (padded, exact):
        bring_to(population, SeedStage.BLENDING, [0], "r0c0", tempo=8)
        population.germinate([0], "r0c2", "norm")
        population.begin_step()
    for step in range(3):
        compare_batches(padded, exact, "cnn", step)
        compare_coalitions(padded, exact, "cnn", step)
    assert_equal(padded, exact)


@pytest.mark.slow
@pytest.mark.parametrize("kind", EVERY_KIND)
@settings(max_examples=12)
@given(seed=st.integers(0, 2**32 - 1), detach=st.booleans())
def test_random_lives_are_trained_and_validated_alike(kind, seed, detach):
    live_alike(kind, seed, detach, steps=16)


def some_of_each(members: int = 5, **settings: object) -> Population:
    """Seeds of two kinds and styles, in every stage that is computed."""
    population = make_population(members, **settings)
    bring_to(population, SeedStage.FOSSILIZED, [1], "r0c0", style=BlendStyle.GATE)
    bring_to(population, SeedStage.BLENDING, [2, 3], "r0c1", "norm", tempo=8)
    population.germinate([0, 4], "r0c2", "conv_light")
    population.germinate([1], "r0c2", "conv_heavy")
    population.begin_step()
    return population


@pytest.mark.parametrize("sick", [0, 2])
@pytest.mark.parametrize("seed_too", [False, True])
def test_what_is_not_finite_stays_in_its_member(sick, seed_too):
    """Padding reads member 0: with NaN there, every padding row is NaN."""
    padded, exact = some_of_each(), some_of_each()
    for population in (padded, exact):
        stores = [population.network.host]
        if seed_too:
            stores += [*population.network.banks.values(), *population.network.gates.values()]
        for store in stores:
            store.flat_EP.detach()[sick] = float("nan")
    for step in range(3):
        compare_batches(padded, exact, "cnn", step)
    assert_equal(padded, exact, but=(sick,))
    healthy = [e for e in range(5) if e != sick]
    for name, value in state_of(padded).items():
        assert value[healthy].isfinite().all(), name


def test_padding_rows_can_be_anything_without_a_trace():
    """Gradients of a batch with huge losses in the padding are those without them."""
    population = some_of_each()
    plan = population.train_plan(padded=True)
    x, y = batch(5)
    padding = np.setdiff1d(np.arange(plan.table.rows), plan.real_R)
    assert padding.size
    grads = []
    for factor in (0.0, 1e6, float("nan")):
        population.trainer.begin_pass()
        logits = population.forward(x, plan, training=True)
        weight = torch.ones(plan.table.rows)
        weight[padding] = factor
        target = y if plan.member_R is None else y.index_select(0, plan.member_R)
        (population.loss(logits, target) * weight).sum().backward()
        network = population.network
        stores = (network.host, *network.banks.values(), *network.gates.values())
        grads.append([s.flat_EP.grad for s in stores if s.flat_EP.grad is not None])
        assert len(grads[-1]) >= 4
    for other in grads[1:]:
        for left, right in zip(grads[0], other, strict=True):
            assert torch.equal(left, right)


def test_entries_of_padding_point_at_padding():
    population = some_of_each()
    plan = population.train_plan(padded=True)
    padding = set(np.setdiff1d(np.arange(plan.table.rows), plan.real_R).tolist())
    assert_one_writer_for_each_row(plan)
    spare = 0
    for groups in plan.groups_S:
        for group in groups:
            rows = group.rows_G.tolist()
            at = torch.tensor([r in padding for r in rows])
            spare += int(at.sum())
            assert group.frozen_G is not None
            assert group.frozen_G[at].all()
    assert spare > 0
    assert plan.shadow_index is not None
    late = [r for r in range(plan.table.rows) if plan.table.start_R[r] != FROM_INPUT]
    trash = population.members * len(population.slots)
    for row, place in zip(late, plan.shadow_index.tolist(), strict=True):
        assert (place == trash) == (row in padding)


def test_an_alpha_that_moves_changes_values_and_no_address():
    population = some_of_each()
    first = population.train_plan(padded=True)
    tensors = dict(first.buffers.packed.tensors)
    places = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    alpha_G = first.groups_S[1][0].alpha_G
    before = alpha_G.clone()
    population.begin_step()
    second = population.train_plan(padded=True)
    assert second is not first
    assert second.buffers is first.buffers
    assert {n: t.data_ptr() for n, t in second.buffers.packed.tensors.items()} == places
    assert second.groups_S[1][0].alpha_G is alpha_G
    assert not torch.equal(alpha_G, before)


def test_a_shape_says_which_arrays_there_are():
    """Of all plans in one room the names, types and shapes are the same, whatever stands where."""
    population = some_of_each()
    life = population.lifecycle
    table = training_rows(life)
    room = PlanBufferCache().find("train", table, life, True)
    make_plan(table, life, population.device, True, population.trainer.masks(room.shape), room)
    bare = make_population(5)
    for slot, name in population.network.banks:
        bare.network.bank(slot, name)
    bare.network.gate(0)
    masks = bare.trainer.masks(room.shape)
    plan = make_plan(training_rows(bare.lifecycle), bare.lifecycle, bare.device, True, masks, room)
    assert plan.table.rows > 5, "all padding"
    x, y = batch(5)
    exact = make_population(5)
    one, two = bare.train_rows(plan, x, y), exact.train_batch(x, y)
    torch.testing.assert_close(one.loss_E, two.loss_E)
    assert one.shadow_loss_ES.isnan().all()
    torch.testing.assert_close(bare.network.host.flat_EP, exact.network.host.flat_EP)


def test_a_table_larger_than_its_room_is_refused():
    population = some_of_each()
    life = population.lifecycle
    none = make_population(5).lifecycle
    room = PlanBufferCache().find("train", training_rows(none), none, True)
    line = refused(lambda: make_plan(training_rows(life), life, population.device, buffers=room))
    assert "the plan has room for" in line
