"""The fused update follows the stacked optimiser's laws; rows at rest are not touched."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from esper.kasmina.layers.initialisation import Initialiser
from esper.kasmina.stacked.store import ParameterStore
from esper.kasmina.training.optim import OptimConfig, StackedOptimizer, gradient_norm
from esper.leyline import BlendStyle
from esper.leyline.streams import stream_keys
from kernel_support import DEVICE, choose_kernels, examples, require_kernels
from support import batch, make_population

require_kernels()

from esper.kasmina.ops.kernels.update import NORM_BLOCK, NORM_ROUNDS, row_norms  # noqa: E402

CASES = [
    OptimConfig(kind="sgd", momentum=0.0, clip_norm=None),
    OptimConfig(kind="sgd", momentum=0.9, weight_decay=0.01, clip_norm=None),
    OptimConfig(kind="sgd", momentum=0.9, nesterov=True, clip_norm=1),
    OptimConfig(kind="adamw", weight_decay=0.0, clip_norm=None),
    OptimConfig(kind="adamw", weight_decay=0.1, betas=(0.8, 0.95), clip_norm=0.3),
    OptimConfig(kind="adamw", weight_decay=0.1, betas=(0.0, 0.0)),
    OptimConfig(kind="adamw", betas=(0.4, 0.9999)),
]


class Vector(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.linspace(-1, 1, size))


class Learner:
    """One store and its optimiser, by our kernels or by torch's."""

    def __init__(self, config: OptimConfig, members: int, size: int, ours: bool) -> None:
        self.store = ParameterStore(Initialiser(lambda: Vector(size)), members, DEVICE)
        rows = np.arange(members)
        self.store.draw(stream_keys(1, rows), torch.from_numpy(rows).to(DEVICE))
        self.optimizer, self.ours = StackedOptimizer(config), ours

    def step(self, grad, rates, active, clipped: bool = True) -> torch.Tensor:
        with pytest.MonkeyPatch.context() as patch:
            choose_kernels(patch, "esper.kasmina.training.optim", self.ours)
            self.store.flat_EP.grad = grad
            norm = gradient_norm(self.store)
            self.optimizer.step("key", self.store, rates, norm if clipped else None, active)
        assert self.store.flat_EP.grad is None
        return norm

    def tensors(self) -> list[torch.Tensor]:
        kept = [self.store.flat_EP.detach(), *self.optimizer.state["key"].values()]
        return [tensor.clone() for tensor in kept]


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6, equal_nan=True)


def both(config: OptimConfig, members: int, size: int) -> tuple[Learner, Learner]:
    return Learner(config, members, size, True), Learner(config, members, size, False)


@settings(max_examples=examples(40))
@given(
    config=st.sampled_from(CASES),
    members=st.integers(1, 4),
    size=st.integers(1, 40),
    clipped=st.booleans(),
    resting=st.sampled_from(["none", "some", "all"]),
    seed=st.integers(0, 999),
)
def test_any_path_is_the_stacked_optimisers(config, members, size, clipped, resting, seed):
    fused, plain = both(config, members, size)
    generator = torch.Generator().manual_seed(seed)
    rates = torch.rand(members, generator=generator).to(DEVICE)
    for _ in range(3):
        grad = torch.randn(members, size, generator=generator).to(DEVICE)
        active = (torch.rand(members, generator=generator) < 0.6).to(DEVICE)
        active = {"none": None, "some": active, "all": torch.zeros_like(active)}[resting]
        for learner in (fused, plain):
            learner.step(grad.clone(), rates, active, clipped)
    for found, expected in zip(fused.tensors(), plain.tensors(), strict=True):
        close(found, expected)


@pytest.mark.parametrize("config", CASES)
def test_a_row_at_rest_is_bit_identical_and_a_poisoned_one_stays_alone(config):
    """Row 0 rests on NaN, row 1 learns from NaN, row 2 from infinity, row 3 as if alone."""
    fused, plain = both(config, 4, 9)
    rates = torch.full((4,), 0.1, device=DEVICE)
    for learner in (fused, plain):
        learner.step(torch.ones(4, 9, device=DEVICE), rates, None)
    before = fused.tensors()
    grad = torch.full((4, 9), 0.5, device=DEVICE)
    grad[:2, 3], grad[2, 4] = torch.nan, torch.inf
    active = torch.tensor([False, True, True, True], device=DEVICE)
    for learner in (fused, plain):
        learner.step(grad.clone(), rates, active)
    for old, found, expected in zip(before, fused.tensors(), plain.tensors(), strict=True):
        assert torch.equal(old[0], found[0])
        close(found, expected)
        assert torch.isfinite(found[3]).all()
    values = fused.tensors()[0]
    assert values[1].isnan().all() == (config.clip_norm is not None)
    assert values[1, 3].isnan()


def test_a_late_row_counts_its_own_steps():
    config = OptimConfig(kind="adamw")
    fused, plain = both(config, 2, 5)
    rates = torch.full((2,), 0.01, device=DEVICE)
    for step in range(5):
        active = torch.tensor([True, step >= 3], device=DEVICE)
        for learner in (fused, plain):
            learner.step(torch.full((2, 5), 1.0 + step, device=DEVICE), rates, active)
    assert fused.optimizer.state["key"]["steps"].flatten().tolist() == [5, 2]
    for found, expected in zip(fused.tensors(), plain.tensors(), strict=True):
        close(found, expected)


@pytest.mark.parametrize("size", [1, 1000, NORM_BLOCK + 1, NORM_BLOCK * NORM_ROUNDS + 77])
@pytest.mark.parametrize("members", [1, 3])
def test_norms_of_rows_of_any_length(members, size):
    generator = torch.Generator().manual_seed(size)
    grad = torch.randn(members, size, generator=generator).to(DEVICE)
    expected = torch.linalg.vector_norm(grad.double(), dim=1).float()
    torch.testing.assert_close(row_norms(grad), expected, rtol=1e-6, atol=0)
    assert torch.equal(row_norms(grad), row_norms(grad)), "the same order of sums each time"


def test_norms_keep_what_is_not_finite():
    grad = torch.tensor([[1.0, torch.nan], [torch.inf, 1.0], [0.0, 0.0]], device=DEVICE)
    found = row_norms(grad)
    assert found[0].isnan()
    assert found[1:].tolist() == [torch.inf, 0.0]


@pytest.mark.parametrize("config", [CASES[2], CASES[4]])
def test_gradients_whose_rows_lie_apart_or_across(config):
    for cut in (lambda g: g[:, 2:9], lambda g: g.T[:3, :7]):
        fused, plain = both(config, 3, 7)
        grad = cut(torch.randn(12, 12, generator=torch.Generator().manual_seed(4))[:, :12])
        grad = (grad[:3] if grad.shape[0] != 3 else grad).to(DEVICE)
        rates = torch.full((3,), 0.1, device=DEVICE)
        for learner in (fused, plain):
            close(learner.step(grad, rates, None), torch.linalg.vector_norm(grad, dim=1))
        for found, expected in zip(fused.tensors(), plain.tensors(), strict=True):
            close(found, expected)


def test_rows_of_several_programs():
    config = OptimConfig(kind="adamw", weight_decay=0.01)
    fused, plain = both(config, 2, 2500)
    grad = torch.randn(2, 2500, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    for learner in (fused, plain):
        learner.step(grad.clone(), torch.full((2,), 0.1, device=DEVICE), None)
    for found, expected in zip(fused.tensors(), plain.tensors(), strict=True):
        close(found, expected)


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_population_with_seeds_trains_as_with_torchs_update(kind, monkeypatch):
    """One member has a seed that learns, the other's bank rests."""
    trained = {}
    for ours in (True, False):
        choose_kernels(monkeypatch, "esper.kasmina.training.optim", ours)
        population = make_population(members=2, device=DEVICE, optim=OptimConfig(kind=kind))
        population.plant([1], "r0c1", "conv_light", BlendStyle.ADD)
        x, y = (part.to(DEVICE) for part in batch(2, size=3))
        for _ in range(2):
            reported = population.train_batch(x, y)
        bank = population.network.banks[1, 1].flat_EP.detach()
        trained[ours] = population.network.host.flat_EP.detach(), bank, reported.host_grad_norm_E
    for found, expected in zip(trained[True], trained[False], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(trained[True][1][0], trained[False][1][0])
