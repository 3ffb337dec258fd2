"""Channels last on a CPU: another order in memory, the same numbers."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import vmap

from esper.device.memory import keep_freed_memory
from esper.kasmina import Population, PopulationConfig
from esper.kasmina.blueprints.registry import BlueprintRegistry, blueprint
from esper.kasmina.executors import loop
from esper.kasmina.hosts.cnn import CNNHost
from esper.kasmina.layers.layers import ChannelNorm, Conv2d, LayerScale, scaled_norm
from esper.kasmina.ops import convolution_cpu
from esper.kasmina.ops.kernel_scope import SharedInput, kernel_scope
from esper.kasmina.ops.layout import channels_last, is_channels_last
from esper.kasmina.ops.normalisation import group_norm_channels_last

SEEDS = ("norm", "conv_small", "conv_light", "conv_heavy", "depthwise", "bottleneck", "attention")

LOOP = PopulationConfig(executor="loop")


def draw(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(ours: Tensor, theirs: Tensor) -> bool:
    return torch.allclose(ours, theirs, rtol=1e-9, atol=1e-10)


def test_a_layout_changes_no_value_and_is_recognised():
    x = draw((2, 3, 4, 5))
    laid = channels_last(x)
    assert torch.equal(laid, x)
    assert is_channels_last(laid)
    assert not is_channels_last(x)
    assert is_channels_last(channels_last(draw((6, 2, 3, 4, 5)))[1])  # one member of many
    assert not is_channels_last(channels_last(draw((2, 3, 4, 5)))[:, :2])  # with gaps
    assert not vmap(lambda h: torch.tensor(is_channels_last(h)))(laid[None]).any()


# ---- the convolution ----------------------------------------------------------------------


@pytest.mark.parametrize("channels", [2, 3, 5, 8])
@pytest.mark.parametrize("side", [3, 5])
@pytest.mark.parametrize("needs_input", [True, False])
def test_a_convolution_and_its_gradients_as_products_are_torch_s(channels, side, needs_input):
    x = draw((2, channels, 6, 7)).requires_grad_(needs_input)
    laid = channels_last(x.detach()).requires_grad_(needs_input)
    weight = draw((4, channels, side, side), 1).requires_grad_()
    twin = weight.detach().clone().requires_grad_()
    pull = draw((2, 4, 6, 7), 2)
    theirs, ours = F.conv2d(x, weight, padding=side // 2), convolution_cpu.convolve(laid, twin)
    assert is_channels_last(ours)
    assert close(ours, theirs)
    with torch.no_grad():
        assert close(convolution_cpu.convolve(laid, twin), theirs)
    theirs.backward(pull)
    ours.backward(pull)
    assert close(twin.grad, weight.grad)
    if needs_input:
        assert close(laid.grad, x.grad)


def test_shared_taps_belong_to_their_input_alone():
    weight, x = draw((4, 3, 3, 3), 1), channels_last(draw((2, 3, 6, 7)))
    other = channels_last(draw((2, 3, 6, 7), 5))
    with kernel_scope(shared_input=SharedInput(x)):
        for given in (x, other, x):
            wanted = F.conv2d(given, weight, padding=1)
            assert close(convolution_cpu.convolve(given, weight), wanted)


# ---- the norm -----------------------------------------------------------------------------


@settings(max_examples=15)
@given(
    batch=st.integers(1, 3),
    per_group=st.integers(1, 20),
    groups=st.integers(1, 3),
    height=st.integers(1, 4),
    width=st.integers(2, 4),
    needs_input=st.booleans(),
    plain_pull=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_norm_and_its_gradients_are_torch_s(
    batch, per_group, groups, height, width, needs_input, plain_pull, seed
):
    """Whether or not the input needs a gradient: torch's own crashes there, channels last."""
    channels = per_group * groups
    x = draw((batch, channels, height, width), seed).requires_grad_(needs_input)
    laid = channels_last(x.detach()).requires_grad_(needs_input)
    weight, bias = (draw((channels,), seed + i).requires_grad_() for i in (1, 2))
    pull = draw(tuple(x.shape), seed + 3)
    theirs = F.group_norm(x, groups, weight, bias)
    ours = group_norm_channels_last(laid, groups, weight, bias)
    assert close(ours, theirs)
    those = torch.autograd.grad(theirs, [x, weight, bias][not needs_input :], pull)
    pull = pull if plain_pull else channels_last(pull)
    these = torch.autograd.grad(ours, [laid, weight, bias][not needs_input :], pull)
    assert all(close(a, b) for a, b in zip(these, those, strict=True))


@pytest.mark.parametrize("channels", [3, 32])
def test_the_norm_of_members_under_vmap_is_that_of_each_alone(channels: int):
    norm = ChannelNorm(channels).double()
    x = draw((3, 2, channels, 4, 2)).requires_grad_()
    weight, bias = (draw((3, channels), seed).requires_grad_() for seed in (1, 2))
    together = vmap(norm.normalise)(x, weight, bias)
    alone = torch.stack(
        [F.group_norm(x[i], norm.groups, weight[i], bias[i]) for i in range(len(x))]
    )
    assert close(together, alone)
    pull = draw(tuple(alone.shape), 3)
    for a, b in zip(
        torch.autograd.grad(together, [x, weight, bias], pull),
        torch.autograd.grad(alone, [x, weight, bias], pull),
        strict=True,
    ):
        assert close(a, b)


def test_a_relu_may_work_in_place_behind_the_norm():
    norm = ChannelNorm(4).double()
    x = channels_last(draw((2, 4, 3, 3))).requires_grad_()
    grads = [
        torch.autograd.grad(F.relu(norm(x), inplace=inplace).square().sum(), x)[0]
        for inplace in (False, True)
    ]
    assert torch.equal(*grads)


def test_the_layout_is_handed_on():
    x = channels_last(draw((2, 4, 16, 16)).float())
    for module in (ChannelNorm(4), Conv2d(4, 3, 3), Conv2d(4, 3, 1), nn.MaxPool2d(2)):
        assert is_channels_last(module(x)), module


@pytest.mark.parametrize("lay", [channels_last, torch.clone])
def test_a_scaled_norm_is_a_norm_that_is_scaled(lay):
    norm, scale = ChannelNorm(6).double(), LayerScale(6, space=2).double()
    for parameter in (norm.weight, norm.bias, scale.gamma):
        parameter.data.copy_(draw(tuple(parameter.shape), parameter.ndim))
    x, pull = lay(draw((3, 6, 4, 4))).requires_grad_(), draw((3, 6, 4, 4), 1)
    inputs = [x, norm.weight, norm.bias, scale.gamma]
    ours, theirs = scaled_norm(norm, scale, x), scale(norm(x))
    assert close(ours, theirs)
    for a, b in zip(
        torch.autograd.grad(ours, inputs, pull), torch.autograd.grad(theirs, inputs, pull),
        strict=True,
    ):  # fmt: skip
        assert close(a, b)


@pytest.mark.parametrize("name", SEEDS)
def test_seeds_compute_the_same_in_both_layouts(name: str):
    module = BlueprintRegistry.get(name, "cnn").factory(8).double()
    x, pull = draw((2, 8, 8, 8)), draw((2, 8, 8, 8), 1)
    found = []
    for h in (x, channels_last(x)):
        h = h.requires_grad_()
        wanted = [h, *module.parameters()]
        out = module(h)
        found.append((out, *torch.autograd.grad(out, wanted, pull)))
    assert all(close(a, b) for a, b in zip(*found, strict=True))


# ---- the executor -------------------------------------------------------------------------


def trained(monkeypatch: pytest.MonkeyPatch, places: int, factory=CNNHost) -> Population:
    """Two members of every kind of row, two batches of training, from so many places on laid out
    channels last."""
    monkeypatch.setattr(loop, "CHANNELS_LAST_PIXELS", places)
    population = Population(
        lambda: factory(3, 3, n_blocks=2, base_channels=4), ("r0c0", "r0c1"), SEEDS[:3], 2,
        config=LOOP,
    )  # fmt: skip
    population.germinate(0, "r0c0", "norm")
    population.plant(1, "r0c0", "conv_light")
    population.germinate(1, "r0c1", "conv_small")
    population.begin_step()
    x, y = draw((2, 5, 3, 16, 16)).float(), torch.arange(10).view(2, 5) % 3
    for _ in range(2):
        population.train_batch(x, y)
    return population


def test_training_is_the_same_in_both_layouts(monkeypatch: pytest.MonkeyPatch):
    """Shadow rows too: the seed of member 0 incubates, and is a norm."""
    laid, plain = trained(monkeypatch, 256), trained(monkeypatch, 257)
    x = draw((1, 5, 3, 16, 16), 9).float()
    assert torch.allclose(laid.forward(x), plain.forward(x), rtol=1e-4, atol=1e-5)
    for store, other in zip(
        (laid.network.host, *laid.network.banks.values()),
        (plain.network.host, *plain.network.banks.values()),
        strict=True,
    ):
        assert torch.allclose(store.flat_EP, other.flat_EP, rtol=1e-4, atol=1e-5)


def test_large_images_lie_channels_last_under_loop(monkeypatch: pytest.MonkeyPatch):
    """A user's host, too, unless it asks for views of what it gets, in training or evaluation."""
    seen: list[bool] = []
    forward = ChannelNorm.forward

    def watched(self: ChannelNorm, x: Tensor) -> Tensor:
        seen.append(is_channels_last(x))
        return forward(self, x)

    theirs = type("UserHost", (CNNHost,), {"__module__": "theirs"})

    class Viewing(nn.Module):
        def __init__(self, training: bool) -> None:
            super().__init__()
            self.wanted = training

        def forward(self, x: Tensor) -> Tensor:
            return x.view(len(x), -1).view(x.shape) if self.training == self.wanted else x

    def viewing(training: bool, *sizes: int, **named: int) -> CNNHost:
        host = CNNHost(*sizes, **named)
        host.pools[0] = nn.Sequential(Viewing(training), host.pools[0])
        return host

    monkeypatch.setattr(ChannelNorm, "forward", watched)
    for places, factory, wanted in (
        (256, CNNHost, True),
        (257, CNNHost, False),
        (256, theirs, True),
        (256, partial(viewing, True), False),
        (256, partial(viewing, False), False),
    ):
        population = trained(monkeypatch, places, factory)
        seen.clear()  # what was tried before the first batch
        population.forward(draw((1, 5, 3, 16, 16)).float())
        assert set(seen) == {wanted}


def test_the_trial_of_layouts_is_not_about_rounding(monkeypatch: pytest.MonkeyPatch):
    """A host whose half precision depends on the layout is laid out; one that is wrong is not."""

    class Rounded(nn.Module):
        def __init__(self, always: bool) -> None:
            super().__init__()
            self.always = always

        def forward(self, x: Tensor) -> Tensor:
            rounded = self.always or torch.is_autocast_enabled("cpu")
            return x + 0.01 * x.flip(1) if rounded and is_channels_last(x) else x

    for always in (False, True):
        host = partial(CNNHost, 10, 3, 8, 3)

        def made(host=host, always=always) -> CNNHost:
            out = host()
            out.pools[0] = nn.Sequential(Rounded(always), out.pools[0])
            return out

        population = Population(made, ("r0c0",), ("norm",), 1, config=LOOP)
        with torch.autocast("cpu", torch.bfloat16):
            population.forward(draw((1, 2, 3, 32, 32)).float())
        assert population.network.any_layout == (not always)


def test_a_user_s_seed_gets_an_input_that_can_be_viewed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(BlueprintRegistry, "_entries", dict(BlueprintRegistry._entries))

    @blueprint("viewing", topologies=("cnn",))
    class Viewing(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(width, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return x.view(len(x), -1).view(x.shape) * self.gain

    population = Population(CNNHost, ("r0c0",), ("viewing",), 1, config=LOOP)
    population.plant(0, "r0c0", "viewing")
    out = population.forward(draw((1, 2, 3, 32, 32)).float())
    assert np.isfinite(out.detach().numpy()).all()


# ---- memory -------------------------------------------------------------------------------


FREED = """
import resource, torch
from esper.device.memory import keep_freed_memory
assert keep_freed_memory()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
size, times = 64 << 20, 24
torch.zeros(size, dtype=torch.uint8)
before = faults()
for _ in range(times):
    torch.zeros(size, dtype=torch.uint8)
print((faults() - before) * resource.getpagesize() / (times * size))
"""


@pytest.mark.skipif(not keep_freed_memory(), reason="this C library has no such setting")
def test_a_freed_block_is_used_again():
    """Every page of a block that comes from the kernel is a fault; one that was kept has none.

    In a process of its own: what other tests left free on the heap decides what is given back.
    """
    pytest.importorskip("resource")
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.5, "share of the pages that were new"


class ViewHead(nn.Module):
    """A user's: it asks for a `view`, which only some layouts have."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.view(len(x), -1))


def host_with_a_head_of_a_user() -> CNNHost:
    host = CNNHost(n_blocks=2, base_channels=4, pool_layers=1)
    host.head = ViewHead(8 * 8 * 8)
    return host


def host_with_a_norm_of_a_user() -> CNNHost:
    host = CNNHost(n_blocks=2, base_channels=4)
    host.blocks[0].norm = nn.Sequential(host.blocks[0].norm, nn.Tanh())
    return host


@pytest.mark.parametrize("executor", ["vmap", "loop"])
@pytest.mark.parametrize("make", [host_with_a_head_of_a_user, host_with_a_norm_of_a_user])
def test_what_a_user_put_into_our_host_trains_on_large_images(make, executor):
    config = PopulationConfig(executor=executor)
    population = Population(make, ["r0c0"], ["conv_light"], members=2, config=config)
    before = population.network.host.flat_EP.detach().clone()
    x = torch.randn(2, 4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    population.train_batch(x, torch.arange(4).expand(2, 4))
    assert not torch.equal(population.network.host.flat_EP.detach(), before)
