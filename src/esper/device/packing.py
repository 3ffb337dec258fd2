"""How many small host arrays reach the device: side by side in one buffer, in one copy.

The buffer stays where it is when other values are filled in, so that what was told its address (a
captured graph) reads the new ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from esper.leyline.errors import EsperError

Arrays = Mapping[str, npt.NDArray[np.generic]]

ALIGNMENT: Final = 16
"""Bytes that every array begins at a multiple of."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one array lies in the buffer."""

    start: int
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.start + math.prod(self.shape) * self.dtype.itemsize

    def view(self, buffer: Tensor) -> Tensor:
        """The array, in a buffer of bytes."""
        dtype = torch.from_numpy(np.empty(0, self.dtype)).dtype
        return buffer[self.start : self.end].view(dtype).view(self.shape)


class PackedArrays:
    """Named arrays on the device, at addresses that never change."""

    def __init__(self, arrays: Arrays, device: torch.device) -> None:
        self._places: dict[str, _Place] = {}
        end = 0
        for name, array in arrays.items():
            start = -(-end // ALIGNMENT) * ALIGNMENT
            place = _Place(start, array.dtype, array.shape)
            self._places[name], end = place, place.end
        self._buffer = torch.empty(end, dtype=torch.uint8, device=device)
        self.tensors: dict[str, Tensor] = {
            name: place.view(self._buffer) for name, place in self._places.items()
        }
        """By name; to be read only."""
        self.fill(arrays)

    def fill(self, arrays: Arrays) -> None:
        """Other values of the same names, types and shapes; nothing waits for the device."""
        if arrays.keys() != self._places.keys():
            raise EsperError(f"arrays {sorted(arrays)}: the buffer has {sorted(self._places)}")
        host = np.zeros(self._buffer.shape[0], dtype=np.uint8)
        for name, array in arrays.items():
            place = self._places[name]
            if array.dtype != place.dtype or array.shape != place.shape:
                raise EsperError(
                    f"array {name!r}: {array.dtype} {array.shape} given, the buffer has room for "
                    f"{place.dtype} {place.shape}"
                )
            host[place.start : place.end] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        values = torch.from_numpy(host)
        if self._buffer.device.type == "cuda":
            values = values.pin_memory()  # the allocator keeps it until the copy is done
        self._buffer.copy_(values, non_blocking=True)

    def copies(self) -> dict[str, Tensor]:
        """All tensors as they are now, out of reach of the next `fill`; one copy on the device."""
        buffer = self._buffer.clone()
        return {name: place.view(buffer) for name, place in self._places.items()}
