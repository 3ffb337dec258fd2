"""The stacked optimisers follow torch's own, row by row; rows at rest are not touched."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from esper.kasmina.layers.initialisation import Initialiser
from esper.kasmina.stacked.store import ParameterStore
from esper.kasmina.training.optim import OptimConfig, StackedOptimizer, gradient_norm
from esper.leyline.streams import stream_keys

CPU = torch.device("cpu")
CASES = [
    OptimConfig(kind="sgd", momentum=0.0, clip_norm=None),
    OptimConfig(kind="sgd", momentum=0.9, weight_decay=0.01, clip_norm=None),
    OptimConfig(kind="sgd", momentum=0.9, nesterov=True, clip_norm=0.3),
    OptimConfig(kind="adamw", weight_decay=0.0, clip_norm=None),
    OptimConfig(kind="adamw", weight_decay=0.1, betas=(0.8, 0.95), clip_norm=0.3),
]


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.scale = nn.Parameter(torch.tensor(0.5))


def make_store(members: int) -> ParameterStore:
    store = ParameterStore(Initialiser(Small), members, CPU)
    store.draw(stream_keys(1, torch.arange(members).numpy()), torch.arange(members))
    return store


def reference(config: OptimConfig, values: list[torch.Tensor], lr: float) -> torch.optim.Optimizer:
    if config.kind == "sgd":
        return torch.optim.SGD(
            values, lr, config.momentum, weight_decay=config.weight_decay, nesterov=config.nesterov
        )
    return torch.optim.AdamW(values, lr, config.betas, config.eps, weight_decay=config.weight_decay)


@pytest.mark.parametrize("config", CASES)
def test_each_row_follows_torch(config):
    """Three members with their own rates; one starts two steps late, one rests in between."""
    members, rates = 3, [0.1, 0.02, 0.3]
    store = make_store(members)
    stacked = StackedOptimizer(config)
    plain = [nn.Parameter(row.clone()) for row in store.flat_EP.detach()]
    torches = [reference(config, [p], lr) for p, lr in zip(plain, rates, strict=True)]
    generator = torch.Generator().manual_seed(0)
    for step in range(6):
        grad = torch.randn(store.flat_EP.shape, generator=generator)
        active = torch.tensor([True, step >= 2, step not in (1, 3)])
        store.flat_EP.grad = grad.clone()
        norm = gradient_norm(store)
        stacked.step("key", store, torch.tensor(rates), norm, active)
        assert store.flat_EP.grad is None
        for row in range(members):
            if active[row]:
                plain[row].grad = grad[row].clone()
                if config.clip_norm is not None:
                    nn.utils.clip_grad_norm_([plain[row]], config.clip_norm)
                torches[row].step()
        torch.testing.assert_close(
            store.flat_EP.detach(), torch.stack([p.detach() for p in plain]), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("config", CASES)
def test_a_row_at_rest_is_bit_identical_whatever_its_gradient_holds(config):
    store = make_store(3)
    stacked = StackedOptimizer(config)
    rates = torch.full((3,), 0.1)
    store.flat_EP.grad = torch.ones_like(store.flat_EP)
    stacked.step("key", store, rates, gradient_norm(store), None)
    values = store.flat_EP.detach().clone()
    state = {k: v.clone() for k, v in stacked.state["key"].items()}
    grad = torch.ones_like(store.flat_EP)
    grad[1] = float("nan")
    store.flat_EP.grad = grad
    stacked.step("key", store, rates, gradient_norm(store), torch.tensor([True, False, True]))
    assert torch.equal(store.flat_EP.detach()[1], values[1])
    for name, value in state.items():
        assert torch.equal(stacked.state["key"][name][1], value[1])
    moved = (store.flat_EP.detach() != values).any(dim=1)
    assert moved.tolist() == [True, False, True]
    assert torch.isfinite(store.flat_EP).all(), "a bad neighbour does not spread"


def test_clip_is_per_member():
    store = make_store(2)
    stacked = StackedOptimizer(OptimConfig(momentum=0.0, clip_norm=1.0))
    before = store.flat_EP.detach().clone()
    grad = torch.ones_like(store.flat_EP)
    grad[0] *= 100.0
    grad[1] *= 1e-3
    store.flat_EP.grad = grad
    stacked.step("key", store, torch.ones(2), gradient_norm(store))
    steps = (before - store.flat_EP.detach()).norm(dim=1)
    torch.testing.assert_close(steps[0], torch.tensor(1.0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(steps[1], grad[1].norm(), rtol=1e-3, atol=1e-6)
