"""Gradient norms at the slots: what autograd gives on a plain network, whatever the executor."""

import pytest
import torch
import torch.nn.functional as F

from esper.kasmina.activation_gradients import slot_gradient_norms
from esper.leyline import SeedStage
from support import batch, bring_to, make_population


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_norms_are_those_of_a_plain_network(executor):
    population = make_population(3, executor)
    x, y = batch(3, 0)
    found = slot_gradient_norms(population, x, y)
    assert found.shape == (3, len(population.slots))
    for member in range(3):
        host = population.member(member).eval()
        slots = {spec.position: s for s, spec in enumerate(population.network.slots)}
        h, kept = x[member], {}
        values = dict(population.network.host.named(population.network.host.flat_EP.detach()))
        state = {name: value[member] for name, value in values.items()}
        for index, segment in enumerate(population.network.segments):
            own = {local: state[name] for local, name in segment.names.items()}
            h = torch.func.functional_call(segment.module, own, (h,))
            if index in slots:
                h = h.detach().requires_grad_() if not kept else h
                h.retain_grad()
                kept[slots[index]] = h
        F.cross_entropy(h, y[member]).backward()
        for slot, activation in kept.items():
            expected = activation.grad.norm().item()
            assert found[member, slot].item() == pytest.approx(expected, rel=1e-4)
        assert host is not None


def test_executors_agree_and_nothing_changes():
    norms, before = [], []
    for executor in ("loop", "vmap"):
        population = make_population(3, executor)
        bring_to(population, SeedStage.HOLDING, [1], "r0c1", "conv_light")
        bring_to(population, SeedStage.TRAINING, [2], "r0c0", "conv_light")
        weights, passes = (
            population.network.host.flat_EP.detach().clone(),
            population.passes_E.clone(),
        )
        norms.append(slot_gradient_norms(population, *batch(3, 4)))
        assert torch.equal(weights, population.network.host.flat_EP)
        assert torch.equal(passes, population.passes_E)
        assert population.network.host.flat_EP.grad is None
        before.append(weights)
    torch.testing.assert_close(*norms, rtol=1e-4, atol=1e-6)
