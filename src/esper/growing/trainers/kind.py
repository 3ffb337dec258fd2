"""What networks of one kind need to be trained alike by every trainer, eager or captured."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import Tensor, nn

from esper.kasmina.layers.random_layers import Site


@dataclass(frozen=True, slots=True)
class Kind:
    """How networks of a kind are computed on a GPU; found out by trying, once for each kind."""

    channels_last: bool = False
    """Images and weights are channels-last in memory."""
    site: Site | None = None
    """Its random numbers are hashes of (run, batch, site); None: it draws none that can be."""
    seeded: bool = True
    """Whether the global generators are seeded for each batch."""
    bitwise: bool = True
    """False: an operation has no deterministic kernel, or draws that no seed repeats."""
    captured: bool = False
    """Whether its batches can be captured as a CUDA graph."""
    note: str = ""
    """Why they cannot."""


PLAIN = Kind()
"""Of all networks on a CPU."""


def kind_key(network: nn.Module) -> tuple[object, ...]:
    """Equal for networks that differ in nothing but their sizes and values."""
    return tuple(
        (name, type(part).__qualname__, type(part).__module__, part.training, *_settings(part))
        for name, part in network.named_modules()
    )


def _settings(part: nn.Module) -> list[object]:
    """Attributes of a module that are no sizes; of texts, such as traced code, all but digits."""
    return [
        (name, re.sub(r"\d+", "0", value) if isinstance(value, str) else value)
        for name, value in sorted(vars(part).items())
        if value is None or isinstance(value, bool | float | str)
    ]


def gather(value: Tensor, index: Tensor, channels_last: bool) -> Tensor:
    """Samples of an index, in one memory layout whatever that of `value` is."""
    if channels_last and value.dim() == 4:
        return value.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2)
    return value.index_select(0, index)


def laid_out(value: Tensor, channels_last: bool) -> Tensor:
    """A batch in the layout in which `gather` returns it."""
    if channels_last and value.dim() == 4:
        return value.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    return value.contiguous()
