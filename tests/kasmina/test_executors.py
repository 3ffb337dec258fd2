"""vmap and loop compute the same thing; so does each member alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from esper.kasmina import MLPHost, OptimConfig, Population, PopulationConfig
from esper.kasmina.rows.rows import RowTable
from esper.leyline import BlendStyle, SeedStage
from support import DEVICES, KINDS, ONE_OF_EACH, batch, bring_to, make_population

SIX = ("r0c0", "r1c0", "r0c1", "r1c1", "r0c2", "r1c2")


def mixed(
    executor: str, device: str = "cpu", optim: OptimConfig | None = None, kind: str = "cnn"
) -> Population:
    """Five members with seeds of all kinds in all stages, one member without seeds."""
    if kind == "cnn":
        return mixed_cnn(executor, device, optim)
    p = make_population(5, executor, device=device, optim=optim, kind=kind)
    first, second, third = p.slots
    names = KINDS[kind].blueprints
    bring_to(p, SeedStage.FOSSILIZED, [0, 1], first, names[0])
    bring_to(p, SeedStage.FOSSILIZED, [2], first, names[-1], style=BlendStyle.MULTIPLY)
    bring_to(p, SeedStage.HOLDING, [1, 3], second, names[1], style=BlendStyle.GATE)
    bring_to(p, SeedStage.BLENDING, [0, 2], second, names[-2], tempo=8)
    bring_to(p, SeedStage.TRAINING, [3, 1], third, names[-1], style=BlendStyle.MULTIPLY)
    bring_to(p, SeedStage.TRAINING, [3], first, names[2], style=BlendStyle.GATE)
    bring_to(p, SeedStage.TRAINING, [2], third, names[3])
    p.begin_step()
    return p


def mixed_cnn(executor: str, device: str, optim: OptimConfig | None) -> Population:
    """The same with two seeds at the same place of a block: row 0 and row 1."""
    p = make_population(5, executor, slots=SIX, device=device, optim=optim)
    bring_to(p, SeedStage.FOSSILIZED, [0, 1], "r0c0", "conv_light")
    bring_to(p, SeedStage.FOSSILIZED, [2], "r0c0", "attention", style=BlendStyle.MULTIPLY)
    bring_to(p, SeedStage.HOLDING, [1, 3], "r0c1", "conv_heavy", style=BlendStyle.GATE)
    bring_to(p, SeedStage.HOLDING, [0, 2], "r1c1", "norm")
    bring_to(p, SeedStage.BLENDING, [0], "r0c2", "conv_light", style=BlendStyle.GATE, tempo=8)
    bring_to(p, SeedStage.BLENDING, [2], "r0c2", "conv_light", tempo=8)
    bring_to(p, SeedStage.TRAINING, [3, 1], "r1c2", "conv_heavy", style=BlendStyle.MULTIPLY)
    bring_to(p, SeedStage.TRAINING, [3], "r1c0", "conv_light", style=BlendStyle.GATE)
    p.begin_step()
    return p


def state_of(population: Population) -> dict[str, torch.Tensor]:
    stores = {"host": population.network.host}
    stores |= {f"bank {k}": s for k, s in population.network.banks.items()}
    stores |= {f"gate {k}": s for k, s in population.network.gates.items()}
    state = {name: store.flat_EP.detach() for name, store in stores.items()}
    return state | {f"host {name}": v for name, v in population.network.host.fixed.items()}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("kind", "law"), [("cnn", "adamw"), ("transformer", "adamw"), *[(k, "sgd") for k in KINDS]]
)
def test_vmap_equals_loop_over_three_steps_with_mixed_topologies(kind, law, device):
    optim = OptimConfig(kind=law, weight_decay=0.01)
    fused, plain = mixed("vmap", device, optim, kind), mixed("loop", device, optim, kind)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if device == "cpu" else {"rtol": 1e-3, "atol": 1e-4}
    if law == "adamw":  # the sign-like first steps magnify rounding of tiny gradients
        for population in (fused, plain):
            population.set_rates(1e-3, 1e-3)
    stages = {SeedStage(s).name for s in np.unique(fused.lifecycle.stage_ES)}
    assert stages >= {"TRAINING", "BLENDING", "HOLDING", "FOSSILIZED", "DORMANT"}
    for step in range(3):
        x, y = batch(5, seed=step, device=device, kind=kind)
        left, right = fused.train_batch(x, y), plain.train_batch(x, y)
        for name in ("loss_E", "shadow_loss_ES", "host_grad_norm_E", "grad_norm_ES"):
            torch.testing.assert_close(
                getattr(left, name), getattr(right, name), equal_nan=True, **tolerance
            )
        left_eval, right_eval = fused.evaluate(x, y), plain.evaluate(x, y)
        torch.testing.assert_close(left_eval.loss_R, right_eval.loss_R, **tolerance)
        for population in (fused, plain):
            population.begin_step()
    left_state, right_state = state_of(fused), state_of(plain)
    assert left_state.keys() == right_state.keys()
    for name, value in left_state.items():
        torch.testing.assert_close(value, right_state[name], **tolerance)


@pytest.mark.parametrize(("executor", "kind"), ONE_OF_EACH)
def test_member_view_gives_the_members_output(executor, kind):
    population = mixed(executor, kind=kind)
    x, y = batch(5, kind=kind)
    population.train_batch(x, y)
    out = population.forward(x)
    for i in range(5):
        alone = population.member(i).eval()(x[i])
        torch.testing.assert_close(alone, out[i], rtol=1e-5, atol=1e-5)


def test_member_view_follows_training_and_is_an_ordinary_module():
    population = mixed("vmap")
    view = population.member(1)
    before = view.host.blocks[0].conv.weight.clone()
    population.train_batch(*batch(5))
    assert not torch.equal(before, view.host.blocks[0].conv.weight)
    assert set(view.stages) == {"r0c0", "r0c1", "r1c2"}
    names = [name for name, _ in view.named_parameters()]
    assert "seeds.r0c1.gate.weight" in names
    assert "seeds.r0c0.delta.conv.weight" in names


@pytest.mark.parametrize(("executor", "kind"), ONE_OF_EACH)
def test_shared_batch_equals_the_same_batch_given_to_each(executor, kind):
    population = mixed(executor, kind=kind)
    x, y = batch(1, kind=kind)
    shared = population.evaluate(x, y)
    each = population.evaluate(x.expand(5, *x.shape[1:]), y.expand(5, *y.shape[1:]))
    torch.testing.assert_close(shared.loss_R, each.loss_R, rtol=1e-5, atol=1e-6)
    assert torch.equal(shared.correct_R, each.correct_R)


@pytest.mark.parametrize(("executor", "kind"), ONE_OF_EACH)
def test_rows_of_chosen_members_and_alphas(executor, kind):
    """Repeated and reordered members, each with its own alphas, equal the same row asked alone."""
    population = mixed(executor, kind=kind)
    for step in range(3):  # seeds whose last map starts at 0 have moved by then
        population.train_batch(*batch(5, seed=step, kind=kind))
    x, _ = batch(5, kind=kind)
    rows = np.array([3, 0, 3, 2])
    alpha = population.lifecycle.alpha_ES[rows].copy()
    slot = "r1c0" if kind == "transformer" else "r0c1"
    alpha[0, population.slots.index(slot)] = 0.0
    alpha[3, population.slots.index("r0c0")] = 0.25
    out = population.forward(x, rows, alpha)
    for r, member in enumerate(rows):
        alone = population.forward(x, [member], alpha[r : r + 1])
        torch.testing.assert_close(out[r], alone[0], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(out[0], out[2], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("executor", "kind"), ONE_OF_EACH)
def test_a_row_that_begins_at_a_slot_equals_the_whole_forward(executor, kind):
    """A common prefix computed once gives the numbers of computing it again."""
    population = mixed(executor, kind=kind)
    for step in range(3):
        population.train_batch(*batch(5, seed=step, kind=kind))
    x, _ = batch(5, kind=kind)
    s = 1
    main = population.lifecycle.alpha_ES
    off = main[[1, 3]].copy()
    off[:, s] = 0.0
    table = RowTable(
        member_R=np.array([0, 1, 2, 3, 4, 1, 3]),
        alpha_RS=np.concatenate([main, off]),
        start_R=np.array([-1] * 5 + [s, s]),
        source_R=np.array([0] * 5 + [1, 3]),
        shadow_R=np.zeros(7, dtype=np.bool_),
    )
    with torch.no_grad():
        out = population.forward(x, table)
        whole = population.forward(x, [1, 3], off)
        torch.testing.assert_close(out[:5], population.forward(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out[5:], whole, rtol=1e-5, atol=1e-5)


class DropsInput(MLPHost):
    """Its first segment has no parameters, but is random."""

    def __init__(self) -> None:
        super().__init__(in_features=9, num_classes=5, width=12, n_layers=2)
        self.drop = nn.Dropout(0.5)

    def segments(self):
        return (self.drop, *super().segments())

    def injection_specs(self):
        return ()


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_dropout_of_a_shared_input_is_each_members_own(executor):
    population = Population(DropsInput, (), (), 4, config=PopulationConfig(executor=executor))
    flat = population.network.host.flat_EP.detach()
    flat.copy_(flat[:1].expand_as(flat).clone())  # copies of one member
    x, _ = batch(1, kind="mlp")
    out = population.forward(x, training=True)
    assert not torch.allclose(out[0], out[1], atol=1e-4)
    still = population.forward(x)
    torch.testing.assert_close(still[0], still[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("executor", "kind"),
    [("loop", "cnn"), ("vmap", "cnn"), ("vmap", "transformer"), ("vmap", "mlp")],
)
def test_member_does_not_depend_on_how_many_there_are(executor, kind, device):
    """Initial weights of host and seeds bit-identical, 6 batches within 1e-5 (1e-3 on a GPU)."""
    losses = {}
    counts = (1, 4)
    for members in counts:
        population = make_population(members, executor, seed=4, device=device, kind=kind)
        everyone = list(range(members))
        start = population.network.host.flat_EP.detach()[0].clone()
        held, trained = population.blueprints[2:4]
        bring_to(population, SeedStage.HOLDING, everyone, population.slots[1], held)
        bring_to(population, SeedStage.TRAINING, everyone, population.slots[2], trained)
        seed = population.network.banks[1, 2].flat_EP.detach()[0].clone()
        trace = [
            population.train_batch(*batch(members, b, device=device, kind=kind)).loss_E[0]
            for b in range(6)
        ]
        losses[members] = (start, seed, torch.stack(trace))
    for members in counts[1:]:
        assert torch.equal(losses[members][0], losses[1][0])
        assert torch.equal(losses[members][1], losses[1][1])
        tolerance = 1e-5 if device == "cpu" else 1e-3
        assert (losses[members][2] - losses[1][2]).abs().max() < tolerance


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("executor", "kind"), ONE_OF_EACH)
def test_nan_in_one_member_stays_there(executor, kind, device):
    """Weights of one host or the data of one member: the others train on as if nothing were."""
    sound, sick = (make_population(3, executor, kind=kind, device=device) for _ in range(2))
    for population in (sound, sick):
        bring_to(population, SeedStage.HOLDING, [0, 1, 2], population.slots[0], KINDS[kind].seed)
    sick.network.host.flat_EP.detach()[1] = float("nan")
    for step in range(2):
        x, y = batch(3, seed=step, kind=kind, device=device)
        expected = sound.train_batch(x, y).loss_E[[0, 2]]
        if x.is_floating_point():
            x = x.clone()
            x[1] = float("inf")
        found = sick.train_batch(x, y).loss_E
        torch.testing.assert_close(found[[0, 2]], expected, rtol=1e-5, atol=1e-6)
        assert torch.isnan(found[1])
    left, right = state_of(sound), state_of(sick)
    for name, value in left.items():
        torch.testing.assert_close(value[[0, 2]], right[name][[0, 2]], rtol=1e-4, atol=1e-5)
