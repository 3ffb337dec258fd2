"""Host shapes: the part of a context that makes another network, and so another engine.

8x3k1    CNN host with 8 channels in its first block, 3 blocks and kernels of 1x1
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from esper.leyline.errors import EsperError, shown
from esper.tasks.hosts import CNNFactory
from esper.tasks.spec import TaskSpec

_TEXT: Final = re.compile(r"([1-9]\d{0,3})x([1-9]\d?)k([1-9]\d?)")


@dataclass(frozen=True, slots=True)
class HostShape:
    """Size of a CNN host."""

    width: int
    """Channels of the first block; each block doubles them."""
    blocks: int
    kernel: int
    """Side of every kernel, odd."""

    def __str__(self) -> str:
        return f"{self.width}x{self.blocks}k{self.kernel}"


def parse_host_shape(text: str) -> HostShape:
    """Parse WIDTHxBLOCKSkKERNEL.

    >>> parse_host_shape("8x3k1")
    HostShape(width=8, blocks=3, kernel=1)
    """
    match = _TEXT.fullmatch(text)
    if match is None or int(match[3]) % 2 == 0:
        raise EsperError(
            f"host {shown(text)}: expected WIDTHxBLOCKSkKERNEL with an odd kernel, for example "
            f"8x3k1"
        )
    return HostShape(*(int(part) for part in match.groups()))


def with_host_shape(spec: TaskSpec, shape: HostShape) -> TaskSpec:
    """Return the task with a CNN host of this shape, and all of its slots."""
    factory = spec.host_factory
    if type(factory) is not CNNFactory:  # that of signals is one, too
        raise EsperError(
            f"host {shape}: task {spec.name} has no CNN host whose shape could change; leave it out"
        )
    pools = factory.pool_layers
    other = replace(
        factory,
        base_channels=shape.width,
        n_blocks=shape.blocks,
        kernel_size=shape.kernel,
        pool_layers=None if pools is None else min(pools, shape.blocks),
    )
    return replace(spec, host_factory=other, slots=other.slots)
