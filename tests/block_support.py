"""Cases of fused blocks, for a CPU (emulated) and for a GPU, and what torch computes in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from esper.kasmina.layers.layers import channel_groups
from esper.kasmina.ops.kernels.block_plan import BlockShape
from esper.kasmina.ops.kernels.layout import empty_activation, laid_out

NEAR = (4e-3, 6e-3, 6e-3, 1e-3, 1e-3)
"""Largest ||found - wanted|| / ||wanted|| of output and gradients of input, weights, scale, shift:
operands are bf16, sums float32."""


def shape(inputs: int, outputs: int, height: int, width: int | None = None) -> BlockShape:
    """A block of our hosts and seeds."""
    return BlockShape(inputs, outputs, height, width or height, channel_groups(outputs))


TASK_SHAPES = [
    *(shape(i, o, 32) for i, o in ((3, 8), (8, 8))),
    *(shape(i, o, 16) for i, o in ((8, 8), (8, 16), (16, 16))),
    *(shape(i, o, 8) for i, o in ((2, 4), (4, 8), (8, 8), (16, 16), (16, 32), (32, 32))),
    *(shape(i, o, 4) for i, o in ((4, 8), (8, 8), (16, 16), (16, 32), (32, 32))),
    *(shape(i, o, s) for i, o, s in ((1, 4, 28), (4, 4, 28), (4, 8, 14), (8, 8, 14))),
    *(shape(i, o, 7) for i, o in ((8, 16), (16, 16))),
]
"""Blocks of the built-in tasks' hosts (3x3 kernels) and of their seeds."""
ODD_SHAPES = [shape(4, 2, 5), shape(24, 32, 6, 9), shape(1, 8, 3, 31), shape(32, 8, 32, 2)]
"""Shapes no task has."""


@dataclass(frozen=True, slots=True)
class Case:
    """Inputs of a block."""

    x: Tensor
    """`[R or 1, B, C, H, W]`"""
    weight: Tensor
    scale: Tensor
    shift: Tensor
    dy: Tensor
    groups: int

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        return self.x, self.weight, self.scale, self.shift


def case(
    shape: BlockShape, rows: int, batch: int, seed: int = 0, shared: bool = False, device="cpu"
) -> Case:
    """Random inputs; parameters are cut from longer rows, as a store hands them out."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).to(device)

    image = (shape.inputs, shape.height, shape.width)
    x = laid_out(numbers(1 if shared else rows, batch, *image).bfloat16(), torch.bfloat16)[0]
    count, width = shape.outputs * shape.inputs * 9, shape.outputs
    flat = numbers(rows, count + 2 * width + 3)
    weight, scale, shift, _ = flat.split((count, width, width, 3), dim=1)
    size = (rows, batch, shape.outputs, shape.height, shape.width)
    dy = empty_activation(size, x).copy_(numbers(*size))
    weight = 0.3 * weight.view(rows, shape.outputs, shape.inputs, 3, 3)
    leaves = (v.detach().requires_grad_(True) for v in (x, weight, 1 + scale / 4, shift / 4))
    return Case(*leaves, dy, shape.groups)


def reference(given: Case, relu: bool) -> tuple[Tensor, ...]:
    """Output and gradients in float64, of weights as bf16 has them."""
    x, weight, scale, shift = (
        v.detach().double().requires_grad_(True)
        for v in (given.x, given.weight.bfloat16(), given.scale, given.shift)
    )
    rows = []
    for r in range(len(weight)):
        conv = F.conv2d(x[r if len(x) > 1 else 0], weight[r], padding=1)
        norm = F.group_norm(conv, given.groups, scale[r], shift[r])
        rows.append(norm.relu() if relu else norm)
    out = torch.stack(rows)
    return out.detach(), *torch.autograd.grad(out, (x, weight, scale, shift), given.dy.double())


def distance(found: Tensor, wanted: Tensor) -> float:
    """||found - wanted|| / ||wanted||; NaN is far."""
    return float((found.detach().double() - wanted).norm() / wanted.norm())


def assert_near(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> None:
    distances = [distance(f, w) for f, w in zip(found, wanted, strict=True)]
    assert all(d < near for d, near in zip(distances, NEAR, strict=True)), distances
