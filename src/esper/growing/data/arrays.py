"""Turn what users call arrays into tensors: numpy, torch, lists, data frames; nothing is scaled.

Values keep their dtype, with these exceptions: float64 becomes float32, because networks are
float32; unsigned integers that torch can hardly compute with become signed ones; labels become
int64. Conversions of inputs are noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from esper.growing.data.parts import Strings
from esper.leyline.errors import EsperError, shown

_NARROWED: Final = {
    torch.float64: torch.float32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.uint64: torch.int64,
}

ADVICE: Final = "categorical='auto' encodes text columns"


class Notes:
    """What was decided about the data, each said once."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, line: str) -> None:
        """Add a line unless it was added before."""
        if line not in self.lines:
            self.lines.append(line)


@dataclass(frozen=True, slots=True)
class Place:
    """Which part is read, and how."""

    where: str
    """Its name in messages."""
    columns: Sequence[str] | None
    """Names of the inputs and then of the target, in tables and dicts."""
    notes: Notes


def input_tensor(value: object, where: str, notes: Notes) -> Tensor:
    """Return inputs as a tensor on the CPU; `where`: their name in messages."""
    tensor = _tensor(value, where)
    if tensor.dtype in _NARROWED:
        wide, narrow = (str(kind)[6:] for kind in (tensor.dtype, _NARROWED[tensor.dtype]))
        notes.add(f"{where}: {wide} taken as {narrow}")
        tensor = tensor.to(_NARROWED[tensor.dtype])
    return tensor


def target_values(value: object, where: str) -> Tensor | Strings:
    """Return targets as int64 or float32, or as an array of strings."""
    texts = _strings(value, where)
    if texts is not None:
        return texts
    tensor = _tensor(value, where)
    return tensor.to(torch.float32 if tensor.dtype.is_floating_point else torch.int64)


def stack_values(values: Sequence[object], where: str, start: int = 0) -> object:
    """Return the values of consecutive samples from number `start` on as one tensor, or as a list
    of strings."""
    first = values[0]
    if isinstance(first, str | bytes):
        return list(values)
    tensors = [_tensor(v, f"{where} of sample {i}") for i, v in enumerate(values, start)]
    for number, tensor in enumerate(tensors, start):
        if tensor.shape != tensors[0].shape:
            raise EsperError(
                f"{where}: sample {number} has shape {tuple(tensor.shape)}, sample {start} "
                f"{tuple(tensors[0].shape)}; pad or crop all to one shape"
            )
    return torch.stack(tensors)


def _tensor(value: object, where: str) -> Tensor:
    if isinstance(value, Tensor):
        return _plain_tensor(value, where)
    if hasattr(value, "getbands"):
        raise EsperError(
            f"{where}: a PIL image, networks take tensors; add a transform such as "
            f"torchvision.transforms.ToTensor() to the dataset"
        )
    array = _array(value, where)
    if array.dtype.kind in "OUS" and array.ndim == 2:
        check_columns(value, array, where)
    if array.dtype.kind == "c":
        raise EsperError(f"{where}: complex numbers; give real and imaginary parts as two channels")
    if array.dtype.kind in "OUSMmV":
        raise EsperError(_not_numbers(array, where))
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    try:
        shared = native.flags.writeable and all(stride >= 0 for stride in native.strides)
        return torch.from_numpy(native if shared else native.copy())
    except TypeError:
        raise EsperError(
            f"{where}: torch has no dtype {array.dtype}; give float32 or int64"
        ) from None


def _plain_tensor(tensor: Tensor, where: str) -> Tensor:
    if tensor.layout != torch.strided:
        raise EsperError(f"{where}: a {tensor.layout} tensor; give a dense one, as in x.to_dense()")
    if tensor.dtype.is_complex:
        raise EsperError(f"{where}: complex numbers; give real ones, as in torch.view_as_real(x)")
    return tensor.detach().cpu()


def _array(value: object, where: str) -> npt.NDArray[Any]:
    """Return a numpy array, not yet checked."""
    if hasattr(value, "toarray"):
        raise EsperError(f"{where}: a sparse {type(value).__name__}; give x.toarray()")
    given: Any = value.to_numpy() if hasattr(value, "to_numpy") else value
    if isinstance(given, np.ma.MaskedArray):
        raise EsperError(f"{where}: a masked array; fill its gaps, as in x.filled(0)")
    if isinstance(given, np.ndarray | np.generic | int | float | complex | bool):
        return np.asarray(given)
    if not isinstance(given, list | tuple | range):
        raise EsperError(
            f"{where}: got a {type(value).__name__}; give a numpy array, a tensor or a list"
        )
    if given and isinstance(given[0], Tensor):
        stacked = stack_values(given, where)
        return np.asarray(stacked)
    try:
        return np.asarray(given)
    except ValueError:
        lengths = sorted({len(row) for row in given if hasattr(row, "__len__")})
        sizes = f" of {lengths[0]} to {lengths[-1]} entries" if len(lengths) > 1 else ""
        raise EsperError(
            f"{where}: a ragged list, its rows{sizes} differ; pad or crop all to one length"
        ) from None


def check_columns(frame: Any, array: npt.NDArray[Any], where: str) -> None:
    """Raise if a column of a data frame holds something else than numbers; `array`: its values."""
    texts, first = list[str](), ""
    for name, values in zip(getattr(frame, "columns", ()), array.T, strict=False):
        others = [v for v in values if not isinstance(v, int | float | np.number | np.bool_)]
        words = [value for value in others if isinstance(value, str)]
        if words:
            first = first or words[0]
            texts.append(str(name))
        elif others:
            raise EsperError(
                f"{where}: column {str(name)!r} holds {type(others[0]).__name__} such as "
                f"{shown(str(others[0]))}; encode it as numbers, fill the gaps, or leave it out"
            )
    if texts:
        several = (
            f"columns {shown(', '.join(texts))} hold"
            if texts[1:]
            else (f"column {texts[0]!r} holds")
        )
        them = "them" if texts[1:] else "it"
        raise EsperError(
            f"{where}: {several} text such as {shown(first)}; {ADVICE}, or leave {them} out"
        )


def _not_numbers(array: npt.NDArray[Any], where: str) -> str:
    if array.dtype.kind in "Mm":
        return f"{where}: dates ({array.dtype}); give numbers, as in x.astype('int64')"
    if array.dtype.kind in "US":
        first = shown(str(array.flat[0]))
        return f"{where}: strings such as {first}; networks take numbers, {ADVICE} of tables"
    if len({np.shape(value) for value in array.flat}) > 1:
        return f"{where}: an object array of ragged samples; pad or crop all to one shape"
    found = ", ".join(sorted({type(value).__name__ for value in array.flat}))
    return (
        f"{where}: an object array of {found}; give numbers, as in x.astype(np.float32), or "
        f"{ADVICE}"
    )


def _strings(value: object, where: str) -> Strings | None:
    """Return labels that are strings; None if they are something else."""
    if isinstance(value, Tensor) or hasattr(value, "getbands"):
        return None
    if isinstance(value, list | tuple) and not any(isinstance(v, str | bytes) for v in value):
        return None
    given: Any = value.to_numpy() if hasattr(value, "to_numpy") else value
    if isinstance(given, list | tuple):
        given = np.array(given, dtype=object)
    if not isinstance(given, np.ndarray) or given.dtype.kind not in "OUS":
        return None
    if given.dtype.kind == "O":
        _check_objects(given, where)
        if not isinstance(given.flat[0] if given.size else None, str | bytes):
            return None
    if given.ndim == 2 and given.shape[1] == 1:
        given = given[:, 0]
    if given.ndim != 1:
        raise EsperError(
            f"{where}: strings of shape {given.shape}; give one label per sample, [{len(given)}]"
        )
    return np.array([v.decode() if isinstance(v, bytes) else str(v) for v in given], dtype=np.str_)


def _check_objects(array: npt.NDArray[Any], where: str) -> None:
    """Raise if labels of an object array are missing, or strings and numbers mixed."""
    for number, value in enumerate(array.flat):
        if value is None or value != value:  # None or NaN
            raise EsperError(f"{where}: the label of sample {number} is missing; leave it out")
    kinds = {type(value).__name__ for value in array.flat}
    if len(kinds) > 1 and kinds & {"str", "bytes"}:
        raise EsperError(
            f"{where}: labels of mixed types ({', '.join(sorted(kinds))}); give all as strings, "
            f"as in [str(v) for v in y], or all as numbers"
        )
