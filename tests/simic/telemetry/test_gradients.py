"""Per-layer gradients in closed form, non-finite values by name, one copy for all."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from esper.simic.telemetry.gradients import (
    LARGE,
    SMALL,
    check_numerical_stability,
    collect_per_layer_gradients,
)
from support import DEVICES

NAN, INF = math.nan, math.inf


def module_with(**grads: list[float] | None) -> nn.Module:
    """Parameters of ones, with these gradients."""
    module = nn.Module()
    for name, grad in grads.items():
        size = 2 if grad is None else len(grad)
        parameter = nn.Parameter(torch.ones(size))
        parameter.grad = None if grad is None else torch.tensor(grad)
        module.register_parameter(name, parameter)
    return module


def test_figures_of_a_layer_in_closed_form():
    (layer,) = collect_per_layer_gradients(module_with(w=[0.0, 3.0, -4.0, 1e-7, 11.0]))
    assert layer.layer == "w"
    assert layer.grad_norm == pytest.approx(math.sqrt(9 + 16 + 121))
    assert layer.grad_mean == pytest.approx(2.0)
    assert layer.grad_std == pytest.approx(math.sqrt((4 + 1 + 36 + 4 + 81) / 5))
    assert layer.param_norm == pytest.approx(math.sqrt(5))
    shares = (layer.zero_fraction, layer.small_fraction, layer.large_fraction)
    assert shares == pytest.approx((0.2, 0.4, 0.2))
    assert (layer.nan_count, layer.inf_count) == (0, 0)


def test_one_element_has_no_deviation():
    (layer,) = collect_per_layer_gradients(module_with(w=[3.0]))
    assert (layer.grad_norm, layer.grad_std) == (3.0, 0.0)


def test_what_is_not_finite_is_counted_and_not_hidden():
    (layer,) = collect_per_layer_gradients(module_with(w=[NAN, INF, -INF, 1.0]))
    assert (layer.nan_count, layer.inf_count) == (1, 2)
    assert math.isnan(layer.grad_norm)
    assert layer.large_fraction == 0.5


def test_layers_come_by_name_in_order_and_those_without_a_gradient_not_at_all():
    found = collect_per_layer_gradients(module_with(b=[1.0], frozen=None, a=[2.0], empty=[]))
    assert [(layer.layer, layer.grad_norm) for layer in found] == [("b", 1.0), ("a", 2.0)]
    assert collect_per_layer_gradients(nn.Linear(2, 2)) == ()


def test_a_sparse_gradient_counts_like_a_dense_one():
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1, 1])).sum().backward()
    (layer,) = collect_per_layer_gradients(table)
    assert layer.grad_norm == pytest.approx(math.sqrt(8))
    assert layer.zero_fraction == 0.75
    assert check_numerical_stability(table) == {}


numbers = st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, NAN, INF, -INF, SMALL, LARGE])


@given(st.lists(numbers, min_size=1, max_size=12))
def test_counts_and_shares_agree_with_counting(grad):
    (layer,) = collect_per_layer_gradients(module_with(w=grad))
    seen = torch.tensor(grad).double().tolist()
    n = len(seen)
    assert layer.nan_count == sum(map(math.isnan, seen))
    assert layer.inf_count == sum(map(math.isinf, seen))
    assert layer.zero_fraction == pytest.approx(sum(x == 0 for x in seen) / n)
    assert layer.small_fraction == pytest.approx(sum(abs(x) < SMALL for x in seen) / n)
    assert layer.large_fraction == pytest.approx(sum(abs(x) > LARGE for x in seen) / n)
    finite = all(map(math.isfinite, seen))
    assert math.isfinite(layer.grad_norm) == finite
    if finite:
        assert layer.grad_norm == pytest.approx(math.hypot(*seen), rel=1e-9)


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_is_changed(device):
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)).to(device)
    module(torch.ones(2, 3, device=device)).sum().backward()
    before = [(p.detach().clone(), p.grad.clone()) for p in module.parameters()]
    assert len(collect_per_layer_gradients(module)) == 4
    assert check_numerical_stability(module) == {}
    for parameter, (value, grad) in zip(module.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
        assert torch.equal(parameter.grad, grad)


def test_what_is_not_finite_is_named():
    module = module_with(sound=[1.0, 2.0], ill=[NAN, INF], quiet=None)
    with torch.no_grad():
        module.quiet[0] = -INF
    assert check_numerical_stability(module) == {"gradient ill": 2, "parameter quiet": 1}
    assert check_numerical_stability(nn.Module()) == {}


class Readings(TorchDispatchMode):
    """Counts single numbers that are read (`item`, `float`): each would wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("layers", [1, 7])
def test_no_number_is_read_layer_by_layer(layers, monkeypatch):
    """The only way to the host is `Tensor.cpu`, and it is taken once whatever the layers."""
    module = nn.Sequential(*(nn.Linear(2, 2) for _ in range(layers)))
    module(torch.ones(1, 2)).sum().backward()
    copies: list[Tensor] = []
    kept = Tensor.cpu
    monkeypatch.setattr(Tensor, "cpu", lambda self: copies.append(self) or kept(self))
    with Readings() as readings:
        collect_per_layer_gradients(module)
        assert [tuple(copy.shape) for copy in copies] == [(2 * layers, 9)]
        check_numerical_stability(module)
    assert len(copies) == 2
    assert readings.count == 0


def test_the_count_of_readings_can_fail():
    with Readings() as readings:
        float(torch.ones(1))
    assert readings.count == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("look", [collect_per_layer_gradients, check_numerical_stability])
def test_the_device_is_waited_for_once(look):
    module = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6))).cuda()
    module(torch.ones(2, 8, device="cuda")).sum().backward()
    look(module)
    with torch.profiler.profile() as profile:
        look(module)
    copies = [event for event in profile.events() if "Memcpy DtoH" in event.name]
    assert len(copies) == 1
