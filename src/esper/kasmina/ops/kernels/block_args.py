"""Arguments of the fused blocks, laid out as `Block` in `block.cu`."""

from __future__ import annotations

import ctypes

from torch import Tensor


class BlockArgs(ctypes.Structure):
    """One structure for both kernels; a missing pointer is null."""

    _fields_ = (
        ("x", ctypes.c_void_p), ("x_row", ctypes.c_longlong), ("x_index", ctypes.c_void_p),
        ("weight", ctypes.c_void_p), ("weight_row", ctypes.c_longlong),
        ("scale", ctypes.c_void_p), ("scale_row", ctypes.c_longlong),
        ("shift", ctypes.c_void_p), ("shift_row", ctypes.c_longlong),
        ("y", ctypes.c_void_p), ("y_row", ctypes.c_longlong), ("y_index", ctypes.c_void_p),
        ("alpha", ctypes.c_void_p), ("live", ctypes.c_void_p),
        ("statistics", ctypes.c_void_p), ("kept", ctypes.c_void_p),
        ("dx", ctypes.c_void_p), ("dx_row", ctypes.c_longlong), ("dx_index", ctypes.c_void_p),
        ("partial", ctypes.c_void_p), ("batch", ctypes.c_int), ("first_row", ctypes.c_int),
        ("steps", ctypes.c_int), ("relu", ctypes.c_int),
    )  # fmt: skip

    @classmethod
    def of(cls, **given: Tensor | int | bool | None) -> BlockArgs:
        """Pointers from tensors, numbers as they are."""
        values = {
            name: value.data_ptr() if isinstance(value, Tensor) else value
            for name, value in given.items()
        }
        return cls(**values)
