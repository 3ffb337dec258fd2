"""Rows of more than 2**31 numbers, and more rows than a grid takes, by Triton's interpreter.

Only the last programs of a grid are run, on memory that is reserved but never touched elsewhere. In
front of each tensor lies more of it, so that an offset that wraps around gives a wrong number
rather than a crash. tests/cuda/test_large_rows_cuda.py runs all programs on a GPU.
"""

from __future__ import annotations

import mmap

import pytest
import torch
import torch.nn.functional as F

from kernel_support import INTERPRETED, close, numbers, require_kernels

require_kernels()
if not INTERPRETED:
    pytest.skip("needs TRITON_INTERPRET=1", allow_module_level=True)

from triton.runtime import interpreter  # noqa: E402

from esper.kasmina.layers.initialisation import Initialiser  # noqa: E402
from esper.kasmina.layers.layers import Linear  # noqa: E402
from esper.kasmina.ops import fused  # noqa: E402
from esper.kasmina.ops.flat_draws import FlatDraws  # noqa: E402
from esper.kasmina.ops.kernels import (  # noqa: E402
    convolution,
    depthwise,
    draws,
    gather,
    layout,
    normalise,
    pooling,
    rows,
    sums,
    update,
)
from esper.kasmina.training.optim import OptimConfig  # noqa: E402

FEW, LAST = 16, 2
"""Along an axis of more than FEW programs, the LAST are run."""
WRAP = 2**31
NO_RESERVE = 0x4000
"""Linux's MAP_NORESERVE."""


def room(*shape: int) -> torch.Tensor:
    """Zeros in float32; nothing is allocated before it is written to."""
    count = torch.Size(shape).numel()
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    memory = mmap.mmap(-1, 4 * (WRAP + count), flags=flags)
    return torch.frombuffer(memory, dtype=torch.float32)[WRAP:].view(shape)


def images(batch: int, channels: int, side: int = 8, last: torch.Tensor | None = None):
    """One row of images, channels last; zeros but for the last ones."""
    x = room(1, batch, side, side, channels).permute(0, 1, 4, 2, 3)
    if last is not None:
        x[0, -len(last) :] = last
    return x


@pytest.fixture(autouse=True)
def last_programs(monkeypatch):
    """Run the last programs alone, in grids that CUDA would take."""
    run_all, builder = interpreter.GridExecutor.__call__, interpreter.interpreter_builder
    set_dim, set_idx = builder.set_grid_dim, builder.set_grid_idx

    def run_last(executor, *args, **options):
        whole = executor.grid + (1,) * (3 - len(executor.grid))
        assert whole[0] < 2**31
        assert max(whole[1:]) <= 65_535, "more programs than CUDA takes along this axis"
        executor.grid = tuple(n if n <= FEW else LAST for n in whole)
        skipped = [n - kept for n, kept in zip(whole, executor.grid, strict=True)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(builder, "set_grid_dim", lambda *_: set_dim(*whole))
            patch.setattr(
                builder,
                "set_grid_idx",
                lambda *at: set_idx(*(a + s for a, s in zip(at, skipped, strict=True))),
            )
            run_all(executor, *args, **options)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", run_last)

    def empty_activation(shape, like):
        large = torch.Size(shape).numel() > 2**20
        return images(*shape[1:4]) if large else layout.empty_activation(shape, like)

    for module in (convolution, depthwise, normalise, pooling):
        monkeypatch.setattr(module, "empty_activation", empty_activation)
    for module in (convolution, depthwise, normalise):  # small, and needs all its programs
        monkeypatch.setattr(module, "add_parts", lambda partial: partial.sum(dim=1))


@pytest.mark.parametrize("batch", [2**22 + 16, 2**24 + 16], ids=["inputs", "outputs too"])
def test_pooling(batch):
    """512 numbers an image; four times as many images, and the outputs have 2**31 as well."""
    last = numbers((15, 8, 8, 8))
    x = images(batch, 8, last=last).requires_grad_(True)
    out = pooling.max_pool(x)
    back = numbers((15, 8, 4, 4), seed=1)
    dy = images(batch, 8, 4, back)
    (dx,) = torch.autograd.grad(out, x, dy)
    last.requires_grad_(True)
    expected = F.max_pool2d(last, 2)
    assert torch.equal(out[0, -15:], expected)
    assert torch.equal(dx[0, -15:], torch.autograd.grad(expected, last, back)[0])


def assert_convolved(module, outputs, inputs, groups, monkeypatch):
    """A convolution of more than 2**31 numbers is torch's in the last image; gradients too."""
    weight = numbers((1, outputs, inputs, 3, 3), seed=2)
    last, back = numbers((5, outputs, 8, 8)), numbers((5, outputs, 8, 8), seed=1)
    batch = WRAP // (64 * outputs) + 2**14  # so many that no part of the gradient is empty
    x, dy = images(batch, outputs, last=last), images(batch, outputs, last=back)
    out = module._run(x, weight, torch.float32, False)
    dx = module._run(dy, weight, torch.float32, True)
    with monkeypatch.context() as patch:
        patch.setattr(module, "MAX_PARTS", 2**13)  # of a few tiles each
        patch.setattr(torch, "empty", torch.zeros)  # what other programs would write
        dw = module.gradient_of_weights(x, dy, 1)
    last.requires_grad_(True)
    expected = F.conv2d(last, weight[0], padding=1, groups=groups)
    close(out[0, -1:], expected[-1:])
    close(dx[0, -1:], torch.autograd.grad(expected, last, back)[0][-1:])
    small = torch.zeros(outputs, inputs, 1, 1, requires_grad=True)
    expected = F.conv2d(last.detach(), small, groups=groups)
    close(dw[0], torch.autograd.grad(expected, small, back)[0])


def test_convolution(monkeypatch):
    assert_convolved(convolution, 64, 64, 1, monkeypatch)


def test_depthwise_convolution(monkeypatch):
    assert_convolved(depthwise, 64, 1, 64, monkeypatch)


def test_norm(monkeypatch):
    batch = WRAP // 512 + 24
    last, back = numbers((7, 8, 8, 8)), numbers((7, 8, 8, 8), seed=1)
    x, dy = images(batch, 8, last=last), images(batch, 8, last=back)
    weight, bias = numbers((1, 8), seed=2), numbers((1, 8), seed=3)
    y, statistics = normalise._normalised(x, weight, bias, 2, False)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", torch.zeros)  # what other programs would write
        dx = images(batch, 8)
        dw, db = normalise.run_backward(x, dy, weight, bias, statistics, 2, False, dx)
    values = [value.requires_grad_(True) for value in (last, weight[0], bias[0])]
    expected = F.group_norm(values[0], 2, values[1], values[2])
    wanted = torch.autograd.grad(expected, values, back)
    close(y[0, -7:], expected)
    for found, other in zip((dx[0, -7:], dw[0], db[0]), wanted, strict=True):
        close(found, other)


def test_rows_are_taken_and_added():
    size = WRAP + 100
    h = room(2, size)
    h[1, -100:] = torch.arange(1.0, 101.0)
    index, alpha = torch.tensor([1]), torch.tensor([0.5])
    taken = rows._take_rows(h, index, room(1, size), alpha)
    assert torch.equal(taken[0, -100:], 0.5 * h[1, -100:])
    rows._add_rows_(h, index, alpha, taken, scaled=True)
    assert torch.equal(h[1, -100:], 1.25 * torch.arange(1.0, 101.0))
    assert not h[0, -100:].any()


@pytest.mark.parametrize("size", [2**27, WRAP + 100])
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_member_of_many_parameters_learns(kind, size, monkeypatch):
    """67 million took more programs along the second axis of a grid than there may be."""
    config = OptimConfig(kind=kind, momentum=0.5, clip_norm=None)
    values, grad = room(1, size), room(1, size)
    values[0, -100:], grad[0, -100:] = 1.0, torch.arange(1.0, 101.0)
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "new_empty", torch.Tensor.new_zeros)
        norm = update.row_norms(grad)
    close(norm, torch.linalg.vector_norm(grad[:, -100:], dim=1))
    state = {name: room(1, size) for name in ("momentum", "mean", "square")}
    state["steps"] = torch.zeros(1, 1)
    update.update_rows(config, values, grad, state, torch.tensor([0.1]), norm, None)
    step = 0.1 * grad[0, -100:] if kind == "sgd" else torch.full((100,), 0.1)
    decay = 1 - 0.1 * config.weight_decay if kind == "adamw" else 1.0
    close(values[0, -100:], decay - step)


def test_parameters_of_a_large_member_are_gathered_returned_and_drawn(monkeypatch):
    size, last = WRAP + 100, torch.arange(1.0, 101.0)
    flat, member_R = room(2, size), torch.tensor([1])
    flat[1, -100:] = last
    allocate = torch.Tensor.new_empty  # as the interpreter does, too

    def allocated(like, *shape, **settings):
        return allocate(like, *shape, **settings) if settings else room(*shape)

    monkeypatch.setattr(torch.Tensor, "new_empty", allocated)
    assert torch.equal(gather.gather_rows(flat, member_R)[0, -100:], last)
    returned = gather.scatter_rows(flat[1:], member_R, torch.tensor([False]), 2)
    assert torch.equal(returned[:, -100:], torch.stack([torch.zeros(100), last]))
    words = room(2 * size).view(torch.int64)  # all parameters are constants
    plans = FlatDraws(words, words, room(size), room(size))
    plans.constants[-100:] = 2 * last
    draws.draw_rows(flat, member_R, torch.tensor([5]), plans)
    assert torch.equal(flat[1, -100:], 2 * last)


def test_what_is_counted_in_32_bits_fits():
    """The largest counts of a convolution at the limits that its entry point checks."""
    tile = max(convolution.PIXELS, convolution.GRADIENT_PIXELS, depthwise.NUMBERS)
    parts = max(convolution.MAX_PARTS, depthwise.MAX_PARTS)
    assert fused.MAX_PIXELS + parts * tile <= 2**31
    assert fused.MAX_ROW // parts + 2 * tile * 256 < 2**31
    assert 2 * fused.MAX_IMAGE + pooling.BLOCK < 2**31


def test_one_launch_unless_there_are_more_rows_than_a_grid_takes():
    most = layout.MAX_ROWS
    assert list(layout.row_launches(most)) == [(0, most)]
    assert list(layout.row_launches(most + 1)) == [(0, most), (most, 1)]
    assert list(layout.row_launches(0)) == []


def through_every_kernel() -> list[torch.Tensor]:
    """Values and gradients of five rows, and what five members learn."""
    x = numbers((5, 2, 8, 4, 4)).requires_grad_(True)
    wide, thin = numbers((5, 8, 8, 3, 3), 1), numbers((5, 8, 1, 3, 3), 2)
    scale, shift = numbers((5, 8), 3), numbers((5, 8), 4)
    parameters = [part.requires_grad_(True) for part in (wide, thin, scale, shift)]
    h = convolution.convolve(x, wide, torch.float32)
    h = depthwise.convolve_depthwise(h, thin, torch.float32)
    h = pooling.max_pool(normalise.normalise(h, scale, shift, 2, True))
    index, alpha = [torch.tensor([4, 2, 0])], [torch.tensor([0.3, 0.5, 1.0])]
    h, taken = rows.gather(h, index, alpha)
    h = rows.scatter_add(h, index, alpha, [taken.square()])
    grads = torch.autograd.grad(h.square().sum(), [x, *parameters])
    values, grad = numbers((5, 70), 5), numbers((5, 70), 6)
    state = {"mean": torch.zeros(5, 70), "square": torch.zeros(5, 70), "steps": torch.zeros(5, 1)}
    norm, rates = update.row_norms(grad), torch.linspace(0.1, 0.5, 5)
    update.update_rows(OptimConfig(kind="adamw"), values, grad, state, rates, norm, None)
    member_R, frozen_R = torch.tensor([4, 0, 2, 2]), torch.tensor([False, True, False, False])
    gathered = gather.gather_rows(values, member_R)
    returned = gather.scatter_rows(gathered, member_R, frozen_R, 5)
    total = sums.add_parts(numbers((5, 3, 4), 7))
    made = Initialiser(lambda: Linear(3, 4))
    plan = made.flat_draws([name for name, _ in made.template.named_parameters()], x.device)
    drawn = torch.zeros(5, 16)
    draws.draw_rows(drawn, torch.arange(5), torch.arange(5), plan)
    return [h, *grads, values, norm, gathered, returned, total, drawn]


def test_rows_beyond_one_grid_are_computed_alike(monkeypatch):
    at_once = through_every_kernel()
    monkeypatch.setattr(layout, "MAX_ROWS", 2)
    for found, expected in zip(through_every_kernel(), at_once, strict=True):
        assert torch.equal(found, expected)
