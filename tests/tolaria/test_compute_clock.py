"""The compute clock: equal compute for all, larger networks train on fewer batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from context_support import EMPTY, Planner, fixed_budget, member_tensors, planned_engine
from esper.kasmina.costs.seed_costs import measure_training_costs
from esper.kasmina.ops.kernel_scope import kernel_scope
from esper.leyline import PLANNED, SeedStage
from esper.tolaria.compute_clock import ComputeClock
from support import EVERY_KIND, KINDS, batch, bring_to, make_population, refused

NOBODY = np.zeros(2, dtype=bool)


def test_twice_the_cost_trains_half_the_batches():
    clock = ComputeClock(2, batches_per_step=6, steps=4)
    clock.reset(1.0)
    steps = [clock.advance(np.array([1.0, 2.0]), NOBODY).tolist() for _ in range(4)]
    assert steps == [[6, 3]] * 4
    assert clock.share_E.tolist() == [1.0, 1.0]


def test_twice_the_budget_trains_twice_as_many():
    clock = ComputeClock(2, batches_per_step=6, steps=4)
    clock.reset(2.0)
    assert clock.advance(np.array([1.0, 3.0]), NOBODY).tolist() == [12, 4]


def test_what_is_left_over_is_carried():
    clock = ComputeClock(2, batches_per_step=1, steps=9)
    clock.reset(1.0)
    steps = [clock.advance(np.array([1.0, 3.0]), NOBODY).tolist() for _ in range(9)]
    assert steps == [[1, 0], [1, 0], [1, 1]] * 3


@given(
    st.lists(st.floats(1.0, 40.0), min_size=1, max_size=30),
    st.integers(1, 9),
    st.floats(1.0, 8.0),
)
def test_nobody_spends_more_than_was_granted_nor_keeps_a_batch(costs, batches, budget):
    clock = ComputeClock(1, batches, len(costs))
    clock.reset(budget)
    for step, cost in enumerate(costs):
        clock.advance(np.array([cost]), np.zeros(1, dtype=bool))
        granted = (step + 1) * batches * budget
        assert clock.spent_E[0] <= granted + 1e-6
        assert granted - clock.spent_E[0] < cost + 1e-6


def test_a_budget_under_one_batch_is_refused():
    clock = ComputeClock(2, batches_per_step=2, steps=5)
    assert "less than one batch" in refused(lambda: clock.reset(0.05))


def test_members_train_as_many_batches_as_their_network_costs():
    """Also in a second episode: half a batch of the first is left, and is not carried over."""
    topology = np.array([[EMPTY] * 3, [2, 2, 2], [EMPTY, EMPTY, 0]])
    engine = planned_engine(fixed_budget(1.5), batches_per_step=3)
    for _ in range(2):
        engine.run_rollout(Planner(topology))
        clock, cost_E = engine.context.clock, engine.context.cost_E()
        assert cost_E[0] == 1.0
        assert clock.trained_E.tolist() == np.floor(5 * 3 * 1.5 / cost_E + 1e-9).tolist()


def test_a_member_does_not_depend_on_the_cost_of_the_others():
    """It trains on its own batches in its own order, however many masked ones are between them."""
    topology = np.array([[EMPTY] * 3, [2, 2, EMPTY], [EMPTY, 0, EMPTY]])
    together = planned_engine(executor="vmap")
    together.run_rollout(Planner(topology))
    for member in range(3):
        alone = planned_engine(executor="vmap", members=1, member_ids=(member,))
        alone.run_rollout(Planner(topology[member : member + 1]))
        left, right = member_tensors(together, member), member_tensors(alone, 0)
        for name, value in left.items():
            torch.testing.assert_close(value, right[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_an_inactive_member_is_bit_for_bit_unchanged(executor, kind):
    """Parameters, moments, buffers and the count of passes, even with NaN in its batch."""
    population = make_population(3, executor, kind=kind)
    made = KINDS[kind]
    population.plant([1], made.slots[0], made.blueprints[0], prunable=True)
    population.train_batch(*batch(3, 0, kind=kind))

    def values() -> dict[str, torch.Tensor]:
        network, trainer = population.network, population.trainer
        found = {"host": network.host.flat_EP.detach(), "passes": population.passes_E}
        found |= {f"fixed {n}": v for n, v in network.host.fixed.items()}
        found |= {f"bank {k}": b.flat_EP.detach() for k, b in network.banks.items()}
        for optimizer in (trainer.host_optimizer, trainer.seed_optimizer):
            for key, moments in optimizer.state.items():
                found |= {f"{key} {n}": v for n, v in moments.items()}
        return {name: value.clone() for name, value in found.items()}

    before = values()
    population.set_active(torch.tensor([True, False, True]))
    x, y = batch(3, 1, kind=kind)
    if x.is_floating_point():
        x[1] = torch.nan
    population.train_batch(x, y)
    population.set_active(None)
    after = values()
    for name, value in before.items():
        assert torch.equal(after[name][1], value[1]), name
    assert not torch.equal(after["host"][0], before["host"][0])
    assert (after["passes"] - before["passes"]).tolist() == [1, 0, 1]


def _plain_macs(module: torch.nn.Module, x: torch.Tensor) -> float:
    counter = FlopCounterMode(display=False)
    module.eval()
    with kernel_scope(torch_convolutions=True), counter:
        module(x).square().sum().backward()
    return counter.get_total_flops() / 2 / len(x)


@pytest.mark.parametrize("kind", ["cnn", "mlp"])
def test_the_clock_agrees_with_torchs_flop_counter(kind):
    """On the exported network of a member, forward and backward: within 1 %."""
    population, made = make_population(3, "loop", kind=kind), KINDS[kind]
    x, _ = batch(3, 0, kind=kind)
    population.forward(x)
    costs = measure_training_costs(population.network, population.probe, x[0])
    host = _plain_macs(population.member(2).to_plain(), x[2])
    assert costs.host == pytest.approx(host, rel=0.01)
    for member, slot in ((0, made.slots[0]), (1, made.slots[-1])):
        population.plant([member], slot, made.seed, prunable=True)
    life = population.lifecycle
    cost_E = costs.relative(life.blueprint_ES, life.alpha_ES, np.zeros_like(life.pruning_ES))
    for member in range(3):
        plain = population.member(member).to_plain()
        assert cost_E[member] == pytest.approx(_plain_macs(plain, x[member]) / host, rel=0.01)


def test_an_incubating_seed_costs_its_own_training_and_the_suffix_without_weights():
    population = make_population(2, "loop")
    x, _ = batch(2, 0)
    population.forward(x)
    costs = measure_training_costs(population.network, population.probe, x[0])
    bring_to(population, SeedStage.TRAINING, [0], "r0c0", "conv_light")
    life = population.lifecycle
    cost_E = costs.relative(
        life.blueprint_ES, life.alpha_ES, np.asarray(life.stage_ES == SeedStage.TRAINING)
    )
    kind = population.blueprints.index("conv_light")
    own = costs.shadow_SK[0, kind] + costs.suffix_S[0]
    assert cost_E.tolist() == pytest.approx([1 + own / costs.host, 1.0])
    assert costs.shadow_SK[0, kind] < costs.seed_SK[0, kind], "no gradient for a detached input"
    network = population.network
    h = torch.zeros(1, *population.probe.slot_shapes[0], requires_grad=True)
    suffix = torch.nn.Sequential(*(s.module for s in network.segments[1:]))
    counter = FlopCounterMode(display=False)
    suffix.requires_grad_(False)
    with kernel_scope(torch_convolutions=True), counter:
        suffix(h).sum().backward()
    suffix.requires_grad_(True)
    assert costs.suffix_S[0] == counter.get_total_flops() // 2


def test_a_clock_with_no_growth_and_one_budget_is_the_clock_of_steps():
    topology = np.full((3, 3), EMPTY)
    compute = planned_engine()
    steps = planned_engine(replace(PLANNED, clock="steps"))
    first, second = compute.run_rollout(Planner(topology)), steps.run_rollout(Planner(topology))
    assert first.outcome.accuracy_E.tolist() == second.outcome.accuracy_E.tolist()
    for member in range(3):
        left, right = member_tensors(compute, member), member_tensors(steps, member)
        assert all(torch.equal(left[name], right[name]) for name in left)
