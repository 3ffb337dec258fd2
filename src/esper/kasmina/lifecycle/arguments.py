"""Conversion of index and choice arguments: one value for all (member, slot) pairs, or one each.

Shape letters: N pairs of a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from esper.leyline.arrays import Floats, Ints
from esper.leyline.errors import EsperError

AnyArray = TypeVar("AnyArray", bound=npt.NDArray[np.generic])
IntLike = int | Sequence[int] | Ints


def as_ints(name: str, values: IntLike, at: tuple[Ints, Ints]) -> Ints:
    """Convert an argument to int64 `[N]`; raises on fractions."""
    return _for_each(name, as_integers(name, np.asarray(values)), at)


def as_floats(name: str, values: float | Floats, at: tuple[Ints, Ints]) -> Floats:
    """Convert an argument to float32 `[N]`."""
    return _for_each(name, np.asarray(values, dtype=np.float32), at)


def _for_each(name: str, values: AnyArray, at: tuple[Ints, Ints]) -> AnyArray:
    """Broadcast one value, or one per pair, to the (member, slot) pairs of a call."""
    if values.shape not in ((), (1,), at[0].shape):
        raise EsperError(f"{name} has shape {values.shape}: give one, or {len(at[0])}")
    return np.broadcast_to(values, at[0].shape)  # type: ignore[return-value]


def as_integers(name: str, values: npt.NDArray[np.generic]) -> Ints:
    """Convert indices or counts to int64; raises on masks and fractions instead of rounding."""
    if values.size and not np.issubdtype(values.dtype, np.integer):
        raise EsperError(
            f"{name} {np.ravel(values)[0]!r}: expected integers (for a mask use np.flatnonzero)"
        )
    return values.astype(np.int64)
