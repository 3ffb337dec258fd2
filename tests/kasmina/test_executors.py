"""vmap and loop compute the same thing; so does each member alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esper.kasmina import OptimConfig, Population
from esper.kasmina.rows import RowTable
from esper.leyline import BlendStyle, SeedStage
from support import DEVICES, batch, bring_to, make_population

SIX = ("r0c0", "r1c0", "r0c1", "r1c1", "r0c2", "r1c2")


def mixed(executor: str, device: str = "cpu", optim: OptimConfig | None = None) -> Population:
    """Five members with seeds of all kinds in all stages, one member bare."""
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
    return {name: store.flat_EP.detach() for name, store in stores.items()}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_vmap_equals_loop_over_three_steps_with_mixed_topologies(kind, device):
    optim = OptimConfig(kind=kind, weight_decay=0.01)
    fused, plain = mixed("vmap", device, optim), mixed("loop", device, optim)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if device == "cpu" else {"rtol": 1e-3, "atol": 1e-4}
    if kind == "adamw":  # the sign-like first steps magnify rounding of tiny gradients
        for population in (fused, plain):
            population.set_rates(1e-3, 1e-3)
    stages = {SeedStage(s).name for s in np.unique(fused.lifecycle.stage_ES)}
    assert stages >= {"TRAINING", "BLENDING", "HOLDING", "FOSSILIZED", "DORMANT"}
    for step in range(3):
        x, y = batch(5, seed=step, device=device)
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


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_member_view_gives_the_members_output(executor):
    population = mixed(executor)
    x, _ = batch(5)
    out = population.forward(x)
    for i in range(5):
        torch.testing.assert_close(population.member(i)(x[i]), out[i], rtol=1e-5, atol=1e-5)


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


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_shared_batch_equals_the_same_batch_given_to_each(executor):
    population = mixed(executor)
    x, y = batch(1)
    shared = population.evaluate(x, y)
    each = population.evaluate(x.expand(5, -1, -1, -1, -1), y.expand(5, -1))
    torch.testing.assert_close(shared.loss_R, each.loss_R, rtol=1e-5, atol=1e-6)
    assert torch.equal(shared.correct_R, each.correct_R)


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_rows_of_chosen_members_and_alphas(executor):
    """Repeated and reordered members, each with its own alphas, equal the same row asked alone."""
    population = mixed(executor)
    x, _ = batch(5)
    rows = np.array([3, 0, 3, 2])
    alpha = population.lifecycle.alpha_ES[rows].copy()
    alpha[0, population.slots.index("r0c1")] = 0.0
    alpha[3, population.slots.index("r0c0")] = 0.25
    out = population.forward(x, rows, alpha)
    for r, member in enumerate(rows):
        alone = population.forward(x, [member], alpha[r : r + 1])
        torch.testing.assert_close(out[r], alone[0], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(out[0], out[2])


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_a_row_that_begins_at_a_slot_equals_the_whole_forward(executor):
    """A common prefix computed once gives the numbers of computing it again."""
    population = mixed(executor)
    x, _ = batch(5)
    s = population.slots.index("r0c1")
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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_member_does_not_depend_on_how_many_there_are(executor, device):
    """Initial weights of host and seeds bit-identical, 20 batches within 1e-5 (1e-3 on a GPU)."""
    losses = {}
    for members in (1, 3, 8):
        population = make_population(members, executor, seed=4, device=device)
        everyone = list(range(members))
        start = population.network.host.flat_EP.detach()[0].clone()
        bring_to(population, SeedStage.HOLDING, everyone, "r0c1", "conv_heavy")
        bring_to(population, SeedStage.TRAINING, everyone, "r0c2", "attention")
        seed = population.network.banks[1, 2].flat_EP.detach()[0].clone()
        trace = [
            population.train_batch(*batch(members, seed=b, device=device)).loss_E[0]
            for b in range(20)
        ]
        losses[members] = (start, seed, torch.stack(trace))
    for members in (3, 8):
        assert torch.equal(losses[members][0], losses[1][0])
        assert torch.equal(losses[members][1], losses[1][1])
        tolerance = 1e-5 if device == "cpu" else 1e-3
        assert (losses[members][2] - losses[1][2]).abs().max() < tolerance
