"""Tables as named columns: data frames, dicts, structured arrays, arrays with a column each.

Shape letters: N rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from torch import Tensor

from esper.growing.data.arrays import Notes, Place
from esper.growing.data.samples import label_column
from esper.leyline.errors import EsperError

ACCEPTED: Final = "a data frame, a dict of columns, or an array [N, columns]"
_CATEGORY_TYPES: Final = ("category", "categorical", "enum")
"""How the names of the dtypes of pandas and polars begin."""
_MISSING_TYPES: Final = ("NoneType", "NAType", "NaTType")


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """Values of all rows."""

    values_N: npt.NDArray[Any]
    is_category: bool = False
    """Whether its dtype says so."""

    def __len__(self) -> int:
        return len(self.values_N)

    @property
    def is_categorical(self) -> bool:
        """Whether it holds categories, text or booleans, rather than numbers."""
        kind = self.values_N.dtype.kind
        if self.is_category or kind in "bUS":
            return True
        present = [v for v in self.values_N if not is_missing(v)] if kind == "O" else []
        if any(isinstance(value, str | bytes) for value in present):
            return True
        return bool(present) and all(isinstance(value, bool | np.bool_) for value in present)


Table = dict[str, Column]


def is_missing(value: Any) -> bool:
    """Whether a cell is empty: None, NaN, or pandas' NA and NaT."""
    is_number = isinstance(value, float | np.floating)
    return type(value).__name__ in _MISSING_TYPES or bool(is_number and value != value)


def split_table(given: Any, columns: Sequence[str] | None, where: str) -> tuple[Table, Any]:
    """Columns of the inputs, and the targets, of a part as `esper.grow` takes it."""
    if isinstance(given, tuple | list) and len(given) == 2 and columns is None:
        return read_table(given[0], where), given[1]
    table = read_table(given, where)
    *names, label = label_column(table, Place(where, columns, Notes()))
    return {name: table[name] for name in names}, table[label].values_N


def read_table(given: Any, where: str) -> Table:
    """The columns of a table, by name; those of a plain array are called 0, 1, ..."""
    if isinstance(given, Tensor):
        given = given.detach().cpu().numpy()
    if isinstance(given, list | tuple):
        given = np.array(given, dtype=object)  # so that numbers beside text stay numbers
    names = _names(given)
    if not names:
        raise EsperError(
            f"{where}: got a {type(given).__name__}, and categorical= is for tables; give "
            f"{ACCEPTED}, with its targets"
        )
    plain = isinstance(given, np.ndarray) and given.dtype.names is None
    found = {str(n): _column(given[:, n] if plain else given[n], f"{where}: {n!r}") for n in names}
    lengths = {len(column) for column in found.values()}
    if len(lengths) > 1:
        raise EsperError(
            f"{where}: its columns have {min(lengths)} to {max(lengths)} rows; give all of them "
            f"the same number"
        )
    return found


def _names(given: Any) -> list[Any]:
    """Names of the columns; empty: it is no table."""
    if isinstance(given, np.ndarray):
        if given.dtype.names is not None:
            return list(given.dtype.names)
        return list(range(given.shape[1])) if given.ndim == 2 else []
    if isinstance(given, Mapping):
        return list(given)
    for name in ("columns", "column_names"):  # data frames; tables of Hugging Face
        if hasattr(given, name) and hasattr(given, "__getitem__"):
            return list(getattr(given, name))
    return []


def _column(values: Any, what: str) -> Column:
    kind = str(getattr(values, "dtype", "")).lower()
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    elif hasattr(values, "to_numpy"):
        values = values.to_numpy()
    elif not isinstance(values, np.ndarray):
        values = np.array(values, dtype=object)
    if values.ndim != 1:
        raise EsperError(f"{what}: a column of shape {values.shape}; give one value for each row")
    return Column(values, kind.startswith(_CATEGORY_TYPES))
