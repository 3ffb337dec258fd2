"""Pack many small host arrays into one device buffer, uploaded in one copy.

The buffer keeps its address when it is refilled, so that captured graphs read the new values.
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
"""Byte alignment of every array."""


@dataclass(frozen=True, slots=True)
class _Span:
    """Position of one array in the buffer."""

    start: int
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.start + math.prod(self.shape) * self.dtype.itemsize

    def view(self, buffer: Tensor) -> Tensor:
        """Return the array as a view of a byte buffer."""
        dtype = torch.from_numpy(np.empty(0, self.dtype)).dtype
        return buffer[self.start : self.end].view(dtype).view(self.shape)


class PackedArrays:
    """Named arrays on the device, at fixed addresses."""

    def __init__(self, arrays: Arrays, device: torch.device) -> None:
        self._spans: dict[str, _Span] = {}
        end = 0
        for name, array in arrays.items():
            start = -(-end // ALIGNMENT) * ALIGNMENT
            span = _Span(start, array.dtype, array.shape)
            self._spans[name], end = span, span.end
        self._buffer = torch.empty(end, dtype=torch.uint8, device=device)
        self.tensors: dict[str, Tensor] = {
            name: span.view(self._buffer) for name, span in self._spans.items()
        }
        """By name; read-only."""
        self._host = np.zeros(end, dtype=np.uint8)
        self.fill(arrays)

    def fill(self, arrays: Arrays) -> None:
        """Replace the values, with the same names, dtypes and shapes; does not synchronise."""
        if arrays.keys() != self._spans.keys():
            raise EsperError(f"arrays {sorted(arrays)}: the buffer has {sorted(self._spans)}")
        for name, array in arrays.items():
            span = self._spans[name]
            if array.dtype != span.dtype or array.shape != span.shape:
                raise EsperError(
                    f"array {name!r}: {array.dtype} {array.shape} given, the buffer has room for "
                    f"{span.dtype} {span.shape}"
                )
            np.ndarray(span.shape, span.dtype, self._host, span.start)[...] = array
        values = torch.from_numpy(self._host)
        if self._buffer.device.type == "cuda":
            values = values.pin_memory()  # a copy: the allocator keeps it until it is uploaded
        self._buffer.copy_(values, non_blocking=True)

    def clone(self) -> dict[str, Tensor]:
        """Return copies of all tensors, unaffected by the next `fill`; one copy on the device."""
        buffer = self._buffer.clone()
        return {name: span.view(buffer) for name, span in self._spans.items()}
