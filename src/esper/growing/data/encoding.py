"""Categorical columns of tables as numbers: one-hot columns, or codes for embeddings.

    encoding = esper.encoded_columns(train)     # train as esper.grow takes it
    encoding.width                              # inputs of a model that takes one tensor
    encoding.sizes                              # rows of an nn.Embedding for each of its columns

The code of a value is 0 if train does not have it, 1 if it is missing, and from 2 on its place in
alphabetical order. Values are known from train as it is given, before parts are cut from it.

Shape letters: N rows, F columns of numbers, C categorical columns, W columns after encoding.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor, nn

from esper.growing.data.tables import Column, Table, is_missing, read_table, split_table
from esper.kasmina.layers.initialisation import build
from esper.leyline.errors import EsperError, shown, unknown_name

Categorical = Sequence[int | str] | Literal["auto"]
UNKNOWN: Final = 0
MISSING: Final = 1
FIRST: Final = 2
"""Code of the first value; those before it are of values that train does not have."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """How the rows of a table become inputs of a model."""

    columns: tuple[str, ...]
    """All columns, in order."""
    categories: tuple[tuple[str, tuple[str, ...]], ...]
    """Name and values of each categorical column."""
    two_inputs: bool = False
    """Whether the model takes numbers and codes, rather than one tensor with one-hot columns."""

    @property
    def numbers(self) -> tuple[str, ...]:
        """Columns of numbers."""
        known = dict(self.categories)
        return tuple(name for name in self.columns if name not in known)

    @property
    def width(self) -> int:
        """Columns of the one tensor: numbers, then one-hot columns (missing, and each value)."""
        return len(self.numbers) + sum(1 + len(values) for _, values in self.categories)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of codes of each categorical column, as the rows of its `nn.Embedding`."""
        return tuple(FIRST + len(values) for _, values in self.categories)

    def __str__(self) -> str:
        if self.two_inputs:
            names = ", ".join(f"{name} {size}" for (name, _), size in
                              zip(self.categories, self.sizes, strict=True))  # fmt: skip
            return (
                f"a model of two inputs takes {len(self.numbers)} numbers [B, "
                f"{len(self.numbers)}] and {len(self.categories)} codes [B, "
                f"{len(self.categories)}]; codes of each column: {names}"
            )
        count = len(self.numbers)
        return (
            f"a row has {self.width} columns after encoding: {count} of numbers and "
            f"{self.width - len(self.numbers)} one-hot columns of "
            f"{', '.join(name for name, _ in self.categories)}"
        )

    def encode(self, rows: Any, where: str = "rows") -> Tensor | tuple[Tensor, Tensor]:
        """Inputs of the model for the rows of a table; columns that train did not have are left
        out.

        One tensor [N, W]; or numbers [N, F] and codes [N, C], for a model of two inputs.
        """
        return self.inputs(read_table(rows, where), where)

    def inputs(self, table: Table, where: str) -> Tensor | tuple[Tensor, Tensor]:
        """The same of columns that were read."""
        for name in self.columns:
            if name not in table:
                raise EsperError(
                    f"{where}: no column {name!r}, which train has; they have "
                    f"{shown(', '.join(table))}"
                )
        rows = len(table[self.columns[0]])
        numbers_NF = np.zeros((rows, len(self.numbers)), np.float32)
        for place, name in enumerate(self.numbers):
            numbers_NF[:, place] = _numbers(table[name], name, where)
        codes_NC = np.zeros((rows, len(self.categories)), np.int64)
        for place, (name, values) in enumerate(self.categories):
            codes_NC[:, place] = _codes(table[name], values)
        numbers, codes = torch.from_numpy(numbers_NF), torch.from_numpy(codes_NC)
        if self.two_inputs:
            return numbers, codes
        pairs = zip(codes.unbind(1), self.sizes, strict=True)
        # A value that train does not have is 0 in all of its columns.
        hot = [nn.functional.one_hot(code, size)[:, MISSING:].float() for code, size in pairs]
        return torch.cat([numbers, *hot], dim=1)


def learn_encoding(
    table: Table, categorical: Categorical, where: str, two_inputs: bool = False
) -> Encoding:
    """The encoding of a table; `categorical`: names or places of columns, or auto."""
    if isinstance(categorical, str) and categorical != "auto":
        raise EsperError(
            f"categorical={shown(categorical)}: name columns of a table, as in ['city'], or give "
            f"'auto', or None"
        )
    if isinstance(categorical, str):
        names = [name for name, column in table.items() if column.is_categorical]
    else:
        names = [_named(given, table, where) for given in categorical]
    values = tuple((name, _values(table[name])) for name in table if name in names)
    return Encoding(tuple(table), values, two_inputs)


def encoded_columns(
    train: Any, categorical: Categorical = "auto", columns: Sequence[str] | None = None
) -> Encoding:
    """How `esper.grow(categorical=...)` encodes a table: `width` is the number of inputs of a model
    that takes one tensor, `sizes` are the rows of embeddings.

    `train` and `columns` as for `esper.grow`.
    """
    return learn_encoding(split_table(train, columns, "train")[0], categorical, "train")


def takes_two_inputs(model: Any) -> bool:
    """Whether a model takes numbers and codes as two arguments."""
    made = model if isinstance(model, nn.Module) else build(model, 0, "model")
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given = inspect.signature(made.forward).parameters.values()
    needed = [one for one in given if one.kind in kinds and one.default is one.empty]
    return len(needed) > 1


def encode_parts(
    parts: Mapping[str, Any],
    categorical: Categorical,
    columns: Sequence[str] | None,
    two_inputs: bool,
) -> tuple[dict[str, Any], Encoding]:
    """Parts as (inputs, targets) of arrays, encoded as train shows; None stays None."""
    split = {name: split_table(given, columns, name) for name, given in parts.items()
             if given is not None}  # fmt: skip
    encoding = learn_encoding(split["train"][0], categorical, "train", two_inputs)
    if not encoding.categories:
        raise EsperError(
            f"categorical={shown(categorical)}: no column of train holds text, categories or "
            f"booleans ({shown(', '.join(encoding.columns))}); name those that do, or leave it out"
        )
    encoded = dict[str, Any]()
    for name, (table, targets) in split.items():
        inputs = encoding.inputs(table, name)
        encoded[name] = (*inputs, targets) if isinstance(inputs, tuple) else (inputs, targets)
    return {name: encoded.get(name) for name in parts}, encoding


def _named(given: int | str, table: Table, where: str) -> str:
    """The column that a name or a place means."""
    if str(given) in table:
        return str(given)
    if isinstance(given, int | np.integer) and 0 <= given < len(table):
        return list(table)[given]
    raise unknown_name("column", given, tuple(table), f"of categorical=, in {where}")


def _text(value: Any) -> str:
    """A value as text: 3 and 3.0 are the same."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def _values(column: Column) -> tuple[str, ...]:
    """The values of a column, in alphabetical order."""
    return tuple(sorted({_text(value) for value in column.values_N if not is_missing(value)}))


def _codes(column: Column, values: Sequence[str]) -> list[int]:
    places = {value: FIRST + place for place, value in enumerate(values)}
    known: dict[tuple[type, Any], int] = {}
    found = list[int]()
    for value in column.values_N.tolist():
        key = (type(value), value)
        if key not in known:
            known[key] = MISSING if is_missing(value) else places.get(_text(value), UNKNOWN)
        found.append(known[key])
    return found


def _missing(column: Column) -> Any:
    """Whether each cell is empty."""
    values_N = column.values_N
    if values_N.dtype.kind == "f":
        return np.isnan(values_N)
    return np.array([is_missing(v) for v in values_N] if values_N.dtype.kind == "O" else [False])


def _numbers(column: Column, name: str, where: str) -> Any:
    values_N, what = column.values_N, f"{where}: column {name!r}"
    if values_N.dtype.kind in "Mm":
        raise EsperError(f"{what} holds dates ({values_N.dtype}); give numbers, or leave it out")
    if column.is_categorical:
        first = next(value for value in values_N if not is_missing(value))
        raise EsperError(
            f"{what} holds {shown(_text(first))}, in train it holds numbers; give the same, or "
            f"name it in categorical="
        )
    missing_N = _missing(column)
    if missing_N.any():
        raise EsperError(
            f"{what} has no number in {int(missing_N.sum())} of {len(values_N)} rows, the first is "
            f"row {int(missing_N.argmax())}; leave these rows out or fill the gaps"
        )
    try:
        return values_N.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise EsperError(f"{what} holds something else than numbers ({error})") from None
