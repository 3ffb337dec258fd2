"""On a GPU: rows of more than 2**31 numbers, and more rows than a grid takes, are torch's.

A row is zero but for its first and last images, so torch needs to compute no others.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.func import vmap

from cuda_support import DEVICE, NEEDS_CUDA
from esper.device.triton_support import can_build_kernels
from esper.kasmina.layers.layers import ChannelNorm, norm_relu
from esper.kasmina.ops.convolution import conv2d
from esper.kasmina.ops.pooling import max_pool2d
from kernel_support import close, numbers

if not can_build_kernels():
    pytest.skip("needs triton and a C compiler", allow_module_level=True)

from esper.kasmina.ops.kernels.batches import gather_batch
from esper.kasmina.ops.kernels.convolution import convolve
from esper.kasmina.ops.kernels.depthwise import convolve_depthwise
from esper.kasmina.ops.kernels.layout import pixel_stride
from esper.kasmina.ops.kernels.normalise import normalise
from esper.kasmina.ops.kernels.pooling import max_pool
from esper.kasmina.ops.kernels.rows import gather, join, scatter_add
from esper.kasmina.ops.kernels.update import row_norms, update_rows
from esper.kasmina.training.optim import OptimConfig

pytestmark = NEEDS_CUDA
HALF = torch.bfloat16
ENDS = [0, 1, -2, -1]
"""The images that are not zero."""
GIB = 2**30


@pytest.fixture(autouse=True)
def enough_memory():
    """Skip below 60 GiB free; hand memory back for the next test."""
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < 60 * GIB:
        pytest.skip("needs 60 GiB of device memory")
    yield
    torch.cuda.empty_cache()


def images(batch: int, channels: int, side: int, seed: int = 0) -> torch.Tensor:
    """One row `[1, B, C, H, W]`, channels last."""
    buffer = torch.zeros(1, batch, side, side, channels, dtype=HALF, device=DEVICE)
    buffer[:, ENDS] = numbers((1, len(ENDS), side, side, channels), seed, HALF)
    return buffer.permute(0, 1, 4, 2, 3)


def assert_as_torch(ours, torches, x, *parameters):
    """Values and gradients of the images that count; torch's are computed in float32."""
    values = [x, *parameters]
    for value in values:
        value.requires_grad_(True)
    with torch.autocast("cuda", HALF):
        out = vmap(ours)(*values)
    assert pixel_stride(out) == out.shape[2], "a kernel of ours"
    back = images(x.shape[1], out.shape[2], out.shape[3], seed=9)
    found = torch.autograd.grad(out, values, back)
    few = [value.detach()[0].float().requires_grad_(True) for value in (x[:, ENDS], *parameters)]
    expected = torches(*few)
    wanted = torch.autograd.grad(expected, few, back[0, ENDS].float())
    close(out[0, ENDS], expected)
    close(found[0][0, ENDS], wanted[0])
    for one, other in zip(found[1:], wanted[1:], strict=True):
        close(one[0], other)


@pytest.mark.parametrize("batch", [2048, 2049])
def test_convolution(batch):
    x, weight = images(batch, 64, 128), numbers((1, 64, 64, 3, 3), 1, torch.float32)
    assert_as_torch(
        lambda x, w: conv2d(x, w, None, 1, 1), lambda x, w: F.conv2d(x, w, padding=1), x, weight
    )


def test_depthwise_convolution():
    x, weight = images(2049, 64, 128), numbers((1, 64, 1, 3, 3), 1, torch.float32)
    assert_as_torch(
        lambda x, w: conv2d(x, w, None, 1, 64),
        lambda x, w: F.conv2d(x, w, padding=1, groups=64),
        x,
        weight,
    )


def test_pooling():
    assert_as_torch(max_pool2d, lambda x: F.max_pool2d(x, 2), images(2049, 64, 128))


def test_norm():
    """2**15 numbers, the most of a sample that a kernel of ours takes."""
    norm = ChannelNorm(8).to(DEVICE)

    def ours(x, weight, bias):
        return torch.func.functional_call(norm, {"weight": weight, "bias": bias}, (x,))

    def torches(x, weight, bias):
        return F.group_norm(x, norm.groups, weight, bias)

    parameters = (numbers((1, 8), seed, torch.float32) for seed in (1, 2))
    assert_as_torch(ours, torches, images(2**16 + 3, 8, 64), *parameters)
    with torch.autocast("cuda", HALF), torch.no_grad():
        x = images(2**16 + 3, 8, 64)[0]
        close(norm_relu(norm, x)[-2:], F.relu(norm(x[-2:])))


def test_rows():
    """A row is copied, handed to a seed and back: 1.5 times itself."""
    h = images(2049, 64, 128).requires_grad_(True)
    index, alpha = [torch.tensor([1], device=DEVICE)], [torch.tensor([0.5], device=DEVICE)]
    joined = join(h, torch.tensor([0], device=DEVICE), detach=False)
    joined, taken = gather(joined, index, alpha)
    out = scatter_add(joined, index, alpha, [taken])
    assert torch.equal(out[0, ENDS], h[0, ENDS])
    close(out[1, ENDS], 1.5 * h[0, ENDS].float())
    back = torch.zeros_like(out)
    back[:, ENDS] = numbers((2, len(ENDS), 64, 128, 128), 3, HALF)
    (grad,) = torch.autograd.grad(out, h, back)
    close(grad[0, ENDS], back[0, ENDS].float() + 1.5 * back[1, ENDS].float())


@pytest.mark.parametrize("size", [2**27, 2**31 + 100])
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_member_of_many_parameters_learns(kind, size):
    config = OptimConfig(kind=kind, momentum=0.5, weight_decay=0.0, clip_norm=None)
    values, grad = (torch.zeros(1, size, device=DEVICE) for _ in range(2))
    values[0, -100:], grad[0, -100:] = 1.0, torch.arange(1.0, 101.0)
    norm = row_norms(grad)
    torch.testing.assert_close(norm, grad[:, -100:].norm(dim=1))
    names = ["momentum"] if kind == "sgd" else ["mean", "square"]
    state = {name: torch.zeros(1, size, device=DEVICE) for name in names}
    state["steps"] = torch.zeros(1, 1, device=DEVICE)
    update_rows(config, values, grad, state, torch.tensor([0.1], device=DEVICE), norm, None)
    step = 0.1 * grad[0, -100:] if kind == "sgd" else torch.full((100,), 0.1, device=DEVICE)
    torch.testing.assert_close(values[0, -100:], 1 - step)
    assert not values[0, :100].any()


def test_batches_of_the_last_examples():
    count = 2**31 // 3072 + 3
    examples = torch.zeros(count, 3, 32, 32, dtype=torch.uint8, device=DEVICE)
    examples[-3:] = torch.arange(1, 4, device=DEVICE).view(3, 1, 1, 1)
    index = torch.arange(count - 3, count, device=DEVICE)[None]
    mean, std = torch.zeros(3, device=DEVICE), torch.ones(3, device=DEVICE)
    x, targets = gather_batch(examples, torch.arange(count, device=DEVICE), index, None, mean, std)
    assert x.amin(dim=(2, 3, 4)).tolist() == x.amax(dim=(2, 3, 4)).tolist() == [[1.0, 2.0, 3.0]]
    assert torch.equal(targets, index)


MANY, SOME = 65_537, [0, 65_534, 65_535, 65_536]
"""More rows than a grid takes, and those that are looked at."""


def test_more_rows_than_a_grid_takes():
    x = numbers((MANY, 1, 4, 4, 4), dtype=HALF).requires_grad_(True)
    shapes = (4, 4, 3, 3), (4, 1, 3, 3), (4,), (4,)
    parameters = [
        numbers((MANY, *shape), seed, torch.float32).requires_grad_(True)
        for seed, shape in enumerate(shapes)
    ]

    def ours(x, wide, thin, scale, shift):
        h = convolve_depthwise(convolve(x, wide, HALF), thin, HALF)
        return normalise(h, scale, shift, 1, False)

    def torches(x, wide, thin, scale, shift):
        h = F.conv2d(F.conv2d(x, wide, padding=1), thin, padding=1, groups=4)
        return F.group_norm(h, 1, scale, shift)

    out = vmap(ours)(x, *parameters)
    back = numbers(out.shape, 7, HALF)
    grads = torch.autograd.grad(out, [x, *parameters], back)
    few = [v.detach()[SOME].float().requires_grad_(True) for v in (x, *parameters)]
    expected = vmap(torches)(*few)
    wanted = torch.autograd.grad(expected, few, back[SOME].float())
    for found, other in zip((out, *grads), (expected, *wanted), strict=True):
        for row, place in enumerate(SOME):
            error = (found[place].float() - other[row]).norm() / other[row].norm()
            assert float(error.detach()) < 5e-2


def test_more_rows_than_a_grid_takes_are_pooled_and_moved():
    x = numbers((MANY, 1, 4, 4, 4), dtype=HALF).requires_grad_(True)
    out = vmap(max_pool)(x)
    back = numbers(out.shape, 7, HALF)
    (grad,) = torch.autograd.grad(out, x, back)
    few = x.detach()[SOME].requires_grad_(True)
    expected = F.max_pool2d(few[:, 0], 2)[:, None]
    assert torch.equal(out[SOME], expected)
    assert torch.equal(grad[SOME], torch.autograd.grad(expected, few, back[SOME])[0])
    index, alpha = [torch.arange(MANY, device=DEVICE)], [torch.ones(MANY, device=DEVICE)]
    same, taken = gather(x.detach(), index, alpha)
    assert torch.equal(scatter_add(same, index, alpha, [taken]), 2 * x.detach())


def test_more_members_than_a_grid_takes_learn():
    values, grad = torch.zeros(MANY, 5, device=DEVICE), torch.ones(MANY, 5, device=DEVICE)
    state, rates = {"momentum": torch.zeros_like(values)}, torch.ones(MANY, device=DEVICE)
    config = OptimConfig(kind="sgd", momentum=0.5, weight_decay=0.0, clip_norm=None)
    norm = row_norms(grad)
    assert torch.equal(norm, norm[:1].expand(MANY))
    update_rows(config, values, grad, state, rates, norm, None)
    assert torch.equal(values, -grad)
