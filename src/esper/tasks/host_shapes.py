"""Host shapes: the part of a context that makes another network, and so another engine.

8x3k1    CNN host with 8 channels in its first block, 3 blocks and kernels of 1x1
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from esper.leyline.errors import EsperError, shown
from esper.tasks.hosts import CNNFactory
from esper.tasks.spec import TaskSpec

_TEXT: Final = re.compile(r"([1-9]\d{0,3})x([1-9]\d?)k([1-9]\d?)")


def with_host_shape(spec: TaskSpec, shape: str) -> TaskSpec:
    """Return the task with a CNN host of shape WIDTHxBLOCKSkKERNEL, and all of its slots.

    The first block has as many channels as the width, each further block doubles them.
    """
    match = _TEXT.fullmatch(shape)
    if match is None or int(match[3]) % 2 == 0:
        raise EsperError(
            f"host {shown(shape)}: expected WIDTHxBLOCKSkKERNEL with an odd kernel, for example "
            f"8x3k1"
        )
    factory = spec.host_factory
    if type(factory) is not CNNFactory:  # that of signals is one, too
        raise EsperError(
            f"host {shape}: task {spec.name} has no CNN host whose shape could change; leave it out"
        )
    width, blocks, kernel = (int(part) for part in match.groups())
    pools = factory.pool_layers
    other = replace(
        factory,
        base_channels=width,
        n_blocks=blocks,
        kernel_size=kernel,
        pool_layers=None if pools is None else min(pools, blocks),
    )
    return replace(spec, host_factory=other, slots=other.slots)
