"""Which blocks of a network the fused kernels (`block.cu`) take, for people to read."""

from __future__ import annotations

import torch
from torch import Tensor

from esper.kasmina.layers.layers import Conv2d, channel_groups
from esper.kasmina.ops.kernels.block_plan import BlockShape
from esper.kasmina.stacked.network import StackedNetwork


def _block_shapes(network: StackedNetwork, x: Tensor) -> list[BlockShape]:
    """Return the 3x3 convolutions of the host, then those that seeds would add at its slots.

    `x`: a sample as a batch of one. Each is counted with the norm that our modules put behind it.
    """
    found: dict[BlockShape, None] = {}

    def note(inputs: int, outputs: int, h: Tensor) -> None:
        height, width = h.shape[-2:]
        found[BlockShape(inputs, outputs, height, width, channel_groups(outputs))] = None

    def note_convolution(module: Conv2d, _: object, out: Tensor) -> None:
        if module.kernel_size == 3 and module.stride == module.groups == 1:
            note(module.weight.shape[1], module.weight.shape[0], out)

    slots, h = [], x
    for index, segment in enumerate(network.segments):
        convolutions = [m for m in segment.module.modules() if isinstance(m, Conv2d)]
        hooks = [m.register_forward_hook(note_convolution) for m in convolutions]
        try:
            with torch.no_grad():
                h = segment.module(h)
        finally:
            for hook in hooks:
                hook.remove()
        slots += [h for spec in network.slots if spec.position == index and h.ndim == 4]
    for at in slots:
        note(at.shape[1], at.shape[1], at)
    return list(found)


def block_lines(network: StackedNetwork, x: Tensor) -> list[str]:
    """Return one line for the shapes that are fused, and one for the others with the reason."""
    shapes = _block_shapes(network, x)
    taken = [shape.line() for shape in shapes if shape.unsupported_reason() is None]
    others = [
        f"{shape.line()} ({reason})" for shape in shapes if (reason := shape.unsupported_reason())
    ]
    lines = [f"fused blocks: {', '.join(taken)}"] if taken else []
    return lines + ([f"not fused: {', '.join(others)}"] if others else [])
