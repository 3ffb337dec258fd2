"""Fused blocks on a GPU: every shape of our tasks against float64, and whole train batches."""

from __future__ import annotations

import pytest
import torch
from torch.func import vmap

from block_support import ODD_SHAPES, TASK_SHAPES, assert_near, case, reference, shape
from esper.device.triton_support import can_build_kernels
from esper.kasmina import Population
from esper.kasmina.hosts.cnn import CNNHost
from esper.kasmina.saving.population_config import PopulationConfig
from esper.leyline import BlendStyle

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(not can_build_kernels(), reason="needs triton and a C compiler"),
]
DEVICE = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def fused_blocks():
    from esper.kasmina.ops.kernels import compiled

    reason = compiled.unsupported_reason(DEVICE) if torch.cuda.is_available() else "no CUDA device"
    if reason is not None:
        pytest.skip(f"no fused blocks here: {reason}")


def computed(given, relu):
    from esper.kasmina.ops.kernels.blocks import convolve_normalised

    out = vmap(lambda *row: convolve_normalised(*row, given.groups, relu))(*given.leaves)
    return out, *torch.autograd.grad(out, given.leaves, given.dy)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("block", [*TASK_SHAPES, *ODD_SHAPES], ids=lambda s: s.line())
def test_a_block_is_torchs_in_float64(block, relu):
    given = case(block, rows=3, batch=150, seed=int(relu), device=DEVICE)
    assert_near(computed(given, relu), reference(given, relu))


@pytest.mark.parametrize("block", TASK_SHAPES, ids=lambda s: s.line())
def test_the_same_bits_every_time_whatever_the_number_of_rows(block):
    """A race would show as bits that change."""
    given = case(block, rows=40, batch=130, device=DEVICE)
    first, again = computed(given, True), computed(given, True)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    few = (v[37:].detach().requires_grad_(True) for v in given.leaves)
    fewer = computed(type(given)(*few, given.dy[37:], given.groups), True)
    assert all(torch.equal(a[37:], b) for a, b in zip(first, fewer, strict=True))


def test_every_number_of_the_output_is_written():
    from esper.kasmina.ops.kernels import blocks

    given = case(shape(16, 32, 8), rows=5, batch=37, device=DEVICE)
    for _ in range(3):
        poison = torch.full((64 * 2**20,), torch.nan, device=DEVICE, dtype=torch.bfloat16)
        del poison  # the allocator hands this memory out next
        out, dx, *rest = computed(given, True)
        assert all(v.isfinite().all() for v in (out, dx, *rest))
    assert blocks.unsupported_reason(shape(16, 32, 8), DEVICE) is None


def trained(kernels: str, batches: int = 3):
    """Logits and parameters of eight members with seeds of all kinds, some of them incubating, and
    of all blend styles: some groups have one, some two or three."""
    kinds = ["conv_light", "conv_heavy", "norm", "conv_small", "depthwise", "attention"]
    population = Population(
        lambda: CNNHost(10), ["r0c0", "r0c1", "r0c2"], kinds, 8,
        device=DEVICE, config=PopulationConfig(executor="vmap"),
    )  # fmt: skip
    population.plant([0, 1, 2], "r0c0", "conv_light", list(BlendStyle))
    population.plant([2, 3], "r0c1", "conv_heavy", [BlendStyle.MULTIPLY, BlendStyle.ADD])
    population.plant([4], "r0c2", "conv_heavy")
    for number, kind in enumerate(kinds[2:]):
        population.plant([4 + number], "r0c0", kind)
        population.germinate([4 + number], "r0c1", kind)
        population.plant([3 - number], "r0c2", kind, BlendStyle(number % 3))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 96, 3, 32, 32, generator=generator).to(DEVICE)
    y = torch.randint(10, (8, 96), generator=generator).to(DEVICE)
    with torch.autocast("cuda", torch.bfloat16):
        with torch.no_grad():
            population.forward(x)
        population.choice.executor.kernels = kernels
        for _ in range(batches):
            population.train_batch(x, y)
        with torch.no_grad():
            logits = population.forward(x)
    network = population.network
    stores = (network.host, *network.banks.values(), *network.gates.values())
    return logits.float(), [store.flat_EP.detach().clone() for store in stores]


def test_members_train_as_with_our_other_kernels():
    found, expected = trained("fused"), trained("own")
    torch.testing.assert_close(found[0], expected[0], rtol=5e-2, atol=5e-2)
    for one, other in zip(found[1], expected[1], strict=True):
        assert float((one - other).norm() / other.norm()) < 2e-2
