"""Augmentation of a script: random changes of the same distribution as in the search, by torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from esper.growing.code.parts import function
from esper.growing.trainers.augment import CUTOUT, NOISE, NONE, SCALE, SHIFT
from esper.leyline.errors import EsperError

_MIXUP: Final = "mixup"
"""Part of the training loop, because it changes targets as well."""
_IN_ORDER: Final = ("flip", "shift", "cutout", "scale", "noise")
_FLIP: Final = """
flipped = torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5
x = torch.where(flipped, x.flip(3), x)
"""
_SHIFT: Final = f"""
for axis in range(2, x.ndim):
    size = x.shape[axis]
    most = max(1, size // {SHIFT})
    by = torch.randint(-most, most + 1, (len(x), 1), device=x.device)
    shape = [size if other == axis else 1 for other in range(1, x.ndim)]
    place = (torch.arange(size, device=x.device) + by).view(-1, *shape)
    moved = x.gather(axis, place.clamp(0, size - 1).expand_as(x))
    x = moved.masked_fill((place < 0) | (place >= size), 0.0)
"""
_CUTOUT: Final = f"""
blank = []
for size in x.shape[2:]:
    side = max(1, size // {CUTOUT})
    first = torch.randint(0, size, (len(x), 1), device=x.device) - side // 2
    place = torch.arange(size, device=x.device)
    blank.append((place >= first) & (place < first + side))
x = x.masked_fill(blank[0][:, None, :, None] & blank[1][:, None, None, :], 0.0)
"""
_SCALE: Final = f"""
x = x * (1 + {SCALE} * (2 * torch.rand(len(x), 1, 1, device=x.device) - 1))
"""
_NOISE: Final = f"""
axes = [axis for axis in range(x.ndim) if axis != 1]
fractions = (x != x.round()).sum(axes, keepdim=True) > 0  # no whole numbers
spread = x.std(axes, keepdim=True, correction=0) * fractions
x = x + {NOISE} * spread * torch.randn_like(x)
"""
_OPERATIONS: Final[Mapping[tuple[str, int], tuple[str, str]]] = {
    ("flip", 3): ("flip them left to right", _FLIP),
    ("shift", 2): (f"shift them by 1/{SHIFT} of their length at most", _SHIFT),
    ("shift", 3): (f"shift them by 1/{SHIFT} of a side at most", _SHIFT),
    ("cutout", 3): (f"blank a window of 1/{CUTOUT} of a side", _CUTOUT),
    ("scale", 2): (f"scale them by {SCALE:.0%} at most", _SCALE),
    ("noise", 1): (f"add noise of {NOISE:.0%} of each column's deviation", _NOISE),
    ("noise", 2): (f"add noise of {NOISE:.0%} of each channel's deviation", _NOISE),
}
"""(operation, axes of a sample) -> what it does, and how."""


def augment_lines(name: str, axes: int) -> list[str]:
    """Source of `augment`; `axes`: of a sample. Empty: there is none."""
    parts = set(() if name == NONE else name.split("+")) - {_MIXUP}
    unknown = sorted(part for part in parts if (part, axes) not in _OPERATIONS)
    if unknown:
        raise EsperError(f"a script cannot follow augment={name!r} for samples of {axes} axes")
    chosen = [_OPERATIONS[part, axes] for part in _IN_ORDER if part in parts]
    if not chosen:
        return []
    doc = ["Change samples at random:", *(f"- {what}" for what, _ in chosen)]
    text = ['"""' + doc[0], *doc[1:], '"""']
    how = [line for _, source in chosen for line in source.strip().splitlines()]
    return function("augment(x)", [*text, *how, "return x"])


def augments(name: str) -> bool:
    """Whether there is an `augment`."""
    return bool(set(name.split("+")) - {NONE, _MIXUP})


def mixes(name: str) -> bool:
    """Whether samples are mixed with others."""
    return _MIXUP in name.split("+")
