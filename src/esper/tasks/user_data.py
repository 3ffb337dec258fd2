"""Convert arrays and CPU tensors provided by users."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from esper.leyline.arrays import Floats
from esper.leyline.errors import EsperError


def as_array(what: str, value: object) -> npt.NDArray[Any]:
    """Return an array with a sample axis; a tensor is converted without a copy."""
    array = _from_tensor(what, value) if _is_tensor(value) else value
    if not isinstance(array, np.ndarray):
        raise EsperError(
            f"{what}: got a {type(value).__name__}, give a numpy array or a tensor on the CPU"
        )
    if not array.ndim:
        raise EsperError(f"{what}: a scalar, give an array with one entry per sample")
    return array


def as_constants(what: str, values: object) -> Floats:
    """Convert numbers to float32: `mean` and `std` may be lists."""
    given = _from_tensor(what, values) if _is_tensor(values) else values
    try:
        return np.asarray(given, dtype=np.float32)
    except (TypeError, ValueError):
        raise EsperError(
            f"{what}: got a {type(values).__name__}, give an array of numbers"
        ) from None


def _is_tensor(value: object) -> bool:
    """Whether `value` is a tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _from_tensor(what: str, tensor: Any) -> npt.NDArray[Any]:
    if tensor.device.type != "cpu":
        raise EsperError(f"{what}: a tensor on {tensor.device}, move it, as in .cpu()")
    try:
        array: npt.NDArray[Any] = tensor.detach().resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError):
        kind = f"{tensor.layout} {tensor.dtype}".replace("torch.", "")
        raise EsperError(f"{what}: a tensor of {kind}, give a dense one of float32") from None
    return array
