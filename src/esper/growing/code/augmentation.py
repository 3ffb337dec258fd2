"""Augmentation of a script: the same random changes as those of the search, drawn by torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from esper.growing.code.parts import function
from esper.growing.trainers.augment import CUTOUT, NOISE, NONE, SCALE, SHIFT
from esper.leyline.errors import EsperError

MIXUP: Final = "mixup"
"""Part of the training loop, because it changes targets as well."""
_IN_ORDER: Final = ("flip", "shift", "cutout", "scale", "noise")
_PLACES: Final = "torch.arange({size}, device=x.device) + torch.randint("
_BY: Final = "    0, 2 * {most} + 1, (len(x), 1), device=x.device"

_FLIP: Final = [
    "flipped = torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5",
    "x = torch.where(flipped, x.flip(3), x)",
]
_SHIFT_SIGNAL: Final = [
    f"most = max(1, x.shape[2] // {SHIFT})",
    f"place = {_PLACES.format(size='x.shape[2]')}",
    _BY.format(most="most"),
    ")",
    "x = F.pad(x, (most, most)).gather(2, place[:, None].expand(-1, x.shape[1], -1))",
]
_SHIFT_IMAGE: Final = [
    "n, channels, height, width = x.shape",
    f"up, left = max(1, height // {SHIFT}), max(1, width // {SHIFT})",
    f"rows = {_PLACES.format(size='height')}",
    _BY.format(most="up"),
    ")",
    f"columns = {_PLACES.format(size='width')}",
    _BY.format(most="left"),
    ")",
    "sample = torch.arange(n, device=x.device)[:, None, None, None]",
    "channel = torch.arange(channels, device=x.device)[:, None, None]",
    "padded = F.pad(x, (left, left, up, up))",
    "x = padded[sample, channel, rows[:, None, :, None], columns[:, None, None, :]]",
]
_CUTOUT: Final = [
    "blank = []",
    "for size in x.shape[2:]:",
    f"    side = max(1, size // {CUTOUT})",
    "    first = torch.randint(0, size, (len(x), 1), device=x.device) - side // 2",
    "    place = torch.arange(size, device=x.device)",
    "    blank.append((place >= first) & (place < first + side))",
    "x = x.masked_fill(blank[0][:, None, :, None] & blank[1][:, None, None, :], 0.0)",
]
_SCALE: Final = [
    f"x = x * (1 + {SCALE} * (2 * torch.rand(len(x), 1, 1, device=x.device) - 1))",
]


def _noise(axes: int) -> list[str]:
    others = "0" if axes == 1 else "(0, 2)"
    return [
        f"fractions = (x != x.round()).sum({others}, keepdim=True) > 0  # no whole numbers",
        f"spread = x.std({others}, keepdim=True, correction=0) * fractions",
        f"x = x + {NOISE} * spread * torch.randn_like(x)",
    ]


_OPERATIONS: Final[Mapping[tuple[str, int], tuple[str, list[str]]]] = {
    ("flip", 3): ("flip them left to right", _FLIP),
    ("shift", 2): ("shift them by an eighth of their length at most", _SHIFT_SIGNAL),
    ("shift", 3): ("shift them by an eighth of a side at most", _SHIFT_IMAGE),
    ("cutout", 3): ("blank a window of a quarter of a side", _CUTOUT),
    ("scale", 2): ("scale them by a fifth at most", _SCALE),
    ("noise", 1): ("add noise of a tenth of each column's deviation", _noise(1)),
    ("noise", 2): ("add noise of a tenth of each channel's deviation", _noise(2)),
}
"""(operation, axes of a sample) -> what it does, and how."""


def augment_lines(name: str, axes: int) -> list[str]:
    """Source of `augment`; `axes`: of a sample. Empty: there is none."""
    parts = set(() if name == NONE else name.split("+")) - {MIXUP}
    unknown = sorted(part for part in parts if (part, axes) not in _OPERATIONS)
    if unknown:
        raise EsperError(f"a script cannot follow augment={name!r} for samples of {axes} axes")
    chosen = [_OPERATIONS[part, axes] for part in _IN_ORDER if part in parts]
    if not chosen:
        return []
    doc = ["Change samples at random:", *(f"- {what}" for what, _ in chosen)]
    text = ['"""' + doc[0], *doc[1:], '"""']
    return function("augment(x)", [*text, *(line for _, how in chosen for line in how), "return x"])


def augments(name: str) -> bool:
    """Whether there is an `augment`."""
    return bool(set(name.split("+")) - {NONE, MIXUP})


def mixes(name: str) -> bool:
    """Whether samples are mixed with others."""
    return MIXUP in name.split("+")
