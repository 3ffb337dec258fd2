"""Augmentation of a batch of training samples, by layout: random changes that keep the meaning.

Its random numbers are hashes of (run, batch, sample), so a batch is the same eager or captured, on
every worker and after every resume.

Shape letters: B batch, C channels, H height, W width, L length, P positions of a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from esper.device.rng import derive_keys, normal_rows, random_words, to_unit_interval
from esper.device.upload import upload
from esper.leyline.errors import EsperError
from esper.leyline.streams import stream_keys

NONE: Final = "none"
LAYOUTS: Final = {1: "tables [F]", 2: "signals [C, L]", 3: "images [C, H, W]"}
"""Axes of a sample -> what it is."""
OPERATIONS: Final = {
    "flip": (3,),
    "shift": (2, 3),
    "cutout": (3,),
    "scale": (2,),
    "noise": (1, 2),
    "mixup": (2, 3),
}
"""Name -> axes of the samples that it is for. Several are joined by "+"."""
LEVELS: Final = {
    1: (NONE, "noise"),
    2: (NONE, "shift", "shift+scale+noise", "shift+scale+noise+mixup"),
    3: (NONE, "shift", "flip+shift", "flip+shift+cutout"),
}
"""Axes of a sample -> what a search chooses from, from weak to strong."""
IMAGE_LEVELS: Final = {
    True: (NONE, "flip", "flip+shift", "flip+shift+cutout"),
    False: (NONE, "shift", "shift+cutout"),
    None: LEVELS[3],
}
"""The same for images that are known to look alike mirrored, or not to."""
SHIFT: Final = 8
"""One of so many pixels of a side that a sample is shifted by, at most."""
CUTOUT: Final = 4
"""One of so many pixels of a side that are blanked."""
SCALE: Final = 0.2
"""A signal is stretched or flattened by this share, at most."""
NOISE: Final = 0.1
"""Standard deviation of noise, as a share of that of a channel or column."""
NUMBERS: Final = 6
"""Random numbers of a sample, besides noise."""


def levels(
    shapes: Sequence[Sequence[int]],
    floats: bool,
    targets: Sequence[int],
    mirrored: Callable[[], bool | None] = lambda: None,
) -> Sequence[str]:
    """What a search may choose from; `targets`: shape of the target of a sample; `mirrored`:
    whether images look alike mirrored, None: not known.

    Only for one input of floats and one class or value for each sample: what a target for each
    position becomes, or an integer, is not known here.
    """
    if len(shapes) != 1 or not floats or len(targets) > 1:
        return (NONE,)
    axes = len(shapes[0])
    return IMAGE_LEVELS[mirrored()] if axes == 3 else LEVELS.get(axes, (NONE,))


def check_augmentation(name: str, shapes: Sequence[Sequence[int]]) -> None:
    """Raise if there is no such augmentation, or none for inputs of these shapes."""
    for part in () if name == NONE else name.split("+"):
        if part not in OPERATIONS:
            raise EsperError(
                f"augment={name!r}: {part!r} is none of auto, none, {', '.join(OPERATIONS)}; join "
                f"several by +, as in flip+shift"
            )
        axes = OPERATIONS[part]
        if len(shapes) != 1 or len(shapes[0]) not in axes:
            kinds = " or ".join(LAYOUTS[one] for one in axes)
            found = ", ".join(str(list(shape)) for shape in shapes)
            raise EsperError(f"augment={name!r}: {part} is for {kinds}, and samples are {found}")


class Augmentation:
    """Changes the batches of a run."""

    def __init__(self, name: str, seed: int, device: torch.device) -> None:
        self._parts = frozenset(name.split("+"))
        key = stream_keys(seed, "run", "augmentation").reshape(1).view(np.int64)
        self._key_1 = upload(key, device)

    def __call__(self, x: Tensor, number: int | Tensor) -> Tensor:
        """A changed copy of the samples `x`; `number`: of the batch, a tensor `[1]` or not."""
        key_1, parts = derive_keys(self._key_1, number), self._parts
        words = random_words(key_1, len(x) * NUMBERS)
        words_BN = words.view(len(x), NUMBERS).to(x.device)
        if parts & {"flip", "shift", "cutout"}:
            x = self._signals(x, words_BN) if x.dim() == 3 else self._images(x, words_BN)
        if "scale" in parts:
            factor_B = 1.0 + SCALE * (2.0 * _unit(words_BN[:, 5]) - 1.0)
            x = x * factor_B.view(-1, *[1] * (x.dim() - 1))
        if "noise" in parts:
            x = _noisy(x, key_1)
        if "mixup" in parts:
            x = torch.lerp(x.flip(0), x, self.kept(number).to(x.device))
        return x

    def kept(self, number: int | Tensor) -> Tensor:
        """Weight of a sample where it is mixed with another of its batch, from 0.5 to 1, `[1]`.

        Its target is mixed alike: `B - 1 - i` is the other one's place.
        """
        key_1 = derive_keys(derive_keys(self._key_1, number), 1)
        return 1.0 - 0.5 * _unit(random_words(key_1, 1)[0]).square()

    @property
    def mixes(self) -> bool:
        """Whether samples are mixed with others."""
        return "mixup" in self._parts

    def _signals(self, x: Tensor, words_BN: Tensor) -> Tensor:
        place_BL, inside_BL = self._places(words_BN[:, 0], x.shape[2], None)
        return _moved(x, place_BL, inside_BL)

    def _images(self, x: Tensor, words_BN: Tensor) -> Tensor:
        rows, columns = x.shape[2:]
        flip_B = words_BN[:, 2] < 0 if "flip" in self._parts else None
        row_BH, inside_BH = self._places(words_BN[:, 0], rows, None)
        column_BW, inside_BW = self._places(words_BN[:, 1], columns, flip_B)
        place_BHW = row_BH[:, :, None] * columns + column_BW[:, None, :]
        inside_BHW = inside_BH[:, :, None] & inside_BW[:, None, :]
        if "cutout" in self._parts:
            blank_BH = _window(words_BN[:, 3], rows)
            blank_BW = _window(words_BN[:, 4], columns)
            inside_BHW = inside_BHW & ~(blank_BH[:, :, None] & blank_BW[:, None, :])
        return _moved(x, place_BHW.flatten(1), inside_BHW.flatten(1))

    def _places(self, word_B: Tensor, size: int, flip_B: Tensor | None) -> tuple[Tensor, Tensor]:
        """Where each position of an axis comes from, and whether that is inside of the sample."""
        place = torch.arange(size, device=word_B.device)[None]
        if flip_B is not None:
            place = torch.where(flip_B[:, None], size - 1 - place, place)
        most = max(1, size // SHIFT) if "shift" in self._parts else 0
        place_BP = place + (_upper(word_B) % (2 * most + 1) - most).to(torch.int64)[:, None]
        return place_BP.clamp(0, size - 1), (place_BP >= 0) & (place_BP < size)


def _upper(word: Tensor) -> Tensor:
    """24 bits of a word: the lower ones are not well mixed."""
    return (word >> 8).bitwise_and((1 << 24) - 1)


def _unit(word: Tensor) -> Tensor:
    """Numbers from 0 to 1."""
    return to_unit_interval(_upper(word))


def _window(word_B: Tensor, size: int) -> Tensor:
    """Positions of an axis around a random one `[B, size]`."""
    place, side = torch.arange(size, device=word_B.device)[None], max(1, size // CUTOUT)
    first_B1 = (_upper(word_B) % size - side // 2)[:, None]
    return (place >= first_B1) & (place < first_B1 + side)


def _noisy(x: Tensor, key_1: Tensor) -> Tensor:
    """Samples with noise in proportion to their channels or columns.

    Whole numbers are left as they are: they may be categories.
    """
    axes = [axis for axis in range(x.dim()) if axis != 1]
    broken = (x != x.round()).sum(axes, keepdim=True) > 0
    size = NOISE * x.std(axes, keepdim=True, correction=0) * broken
    keys_B = derive_keys(derive_keys(key_1, 2), torch.arange(len(x), device=key_1.device))
    noise = normal_rows(keys_B, x[0].numel()).view(x.shape).to(x.device)
    return x + size * noise


def _moved(x: Tensor, place_BP: Tensor, inside_BP: Tensor) -> Tensor:
    """Samples whose positions come from other ones, 0 where that is outside; same layout."""
    channels = x.shape[1]
    if x.dim() == 4 and not x.is_contiguous():  # channels-last
        flat = x.permute(0, 2, 3, 1).flatten(1, 2)
        moved = flat.gather(1, place_BP[:, :, None].expand(-1, -1, channels))
        moved = moved.where(inside_BP[:, :, None], moved.new_zeros(()))
        return moved.view(len(x), *x.shape[2:], channels).permute(0, 3, 1, 2)
    moved = x.flatten(2).gather(2, place_BP[:, None].expand(-1, channels, -1))
    return moved.where(inside_BP[:, None], moved.new_zeros(())).view(x.shape)
