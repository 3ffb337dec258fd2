"""Augmentation of a batch of training samples: random changes that leave the targets as they are.

Its random numbers are hashes of (run, batch, sample), so a batch is the same on every device, eager
or captured.

Shape letters: B batch, C channels, H height, W width, L length, P positions of a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from esper.device.rng import derive_keys, random_words
from esper.device.upload import upload
from esper.leyline.errors import EsperError, unknown_name
from esper.leyline.streams import stream_keys

AUGMENTATIONS: Final = {
    "none": (),
    "shift": (2, 3),
    "flip": (3,),
    "flip+shift": (3,),
}
"""Name -> numbers of axes of the samples that it is for: 2 are signals `[C, L]`, 3 images
`[C, H, W]`."""
SHIFT: Final = 8
"""One of so many pixels of a side that a sample is shifted by, at most."""
NUMBERS: Final = 3
"""Random numbers of a sample."""


def check_augmentation(name: str, shapes: Sequence[Sequence[int]]) -> None:
    """Raise if there is no such augmentation, or none for inputs of these shapes."""
    if name not in AUGMENTATIONS:
        raise unknown_name("augment", name, list(AUGMENTATIONS))
    axes = AUGMENTATIONS[name]
    if axes and (len(shapes) != 1 or len(shapes[0]) not in axes):
        kinds = " or ".join({2: "signals [C, L]", 3: "images [C, H, W]"}[one] for one in axes)
        found = ", ".join(str(list(shape)) for shape in shapes)
        raise EsperError(f"augment={name!r}: it is for {kinds}, and samples are {found}")


class Augmentation:
    """Changes the batches of a run."""

    def __init__(self, name: str, seed: int, device: torch.device) -> None:
        self._shifts, self._flips = "shift" in name, "flip" in name
        key = stream_keys(seed, "run", "augmentation").reshape(1).view(np.int64)
        self._key_1 = upload(key, device)

    def __call__(self, x: Tensor, number: int | Tensor) -> Tensor:
        """A changed copy of the samples `x`; `number`: of the batch, a tensor `[1]` or not."""
        words = random_words(derive_keys(self._key_1, number), len(x) * NUMBERS)
        words_B3 = words.view(len(x), NUMBERS).to(x.device)
        if x.dim() == 3:
            column_BL, inside_BL = self._places(words_B3[:, 0], x.shape[2], None)
            return _moved(x, column_BL, inside_BL)
        rows, columns = x.shape[2:]
        flip_B = words_B3[:, 2] < 0 if self._flips else None
        row_BH, inside_BH = self._places(words_B3[:, 0], rows, None)
        column_BW, inside_BW = self._places(words_B3[:, 1], columns, flip_B)
        place_BP = (row_BH[:, :, None] * columns + column_BW[:, None, :]).flatten(1)
        inside_BP = (inside_BH[:, :, None] & inside_BW[:, None, :]).flatten(1)
        return _moved(x, place_BP, inside_BP)

    def _places(self, word_B: Tensor, size: int, flip_B: Tensor | None) -> tuple[Tensor, Tensor]:
        """Where each position of an axis comes from, and whether that is inside of the sample."""
        place = torch.arange(size, device=word_B.device)[None]
        if flip_B is not None:
            place = torch.where(flip_B[:, None], size - 1 - place, place)
        most = max(1, size // SHIFT) if self._shifts else 0
        # Upper bits: the lower ones are not well mixed.
        by_B = ((word_B >> 8).bitwise_and((1 << 24) - 1) % (2 * most + 1) - most).to(torch.int64)
        place_BP = place + by_B[:, None]
        return place_BP.clamp(0, size - 1), (place_BP >= 0) & (place_BP < size)


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
