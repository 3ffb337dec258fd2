"""Find out what a user gave as data, and open it as a `Source`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from esper.growing.arrays import Notes
from esper.growing.samples import label_column, split_sample
from esper.growing.sources import (
    ArraySource,
    DatasetSource,
    IterableSource,
    LoaderSource,
    Source,
    TableSource,
)
from esper.leyline.errors import EsperError
from esper.leyline.user_errors import user_code

ACCEPTED = (
    "give (inputs, targets) of arrays or tensors, a Dataset, a DataLoader, or a table with columns="
)


def open_source(given: Any, where: str, columns: Sequence[str] | None, notes: Notes) -> Source:
    """Return the source of a part; `where`: its name in messages."""
    _refuse_unlikely(given, where)
    if isinstance(given, DataLoader):
        return _open_loader(given, where, columns, notes)
    arrays = _open_arrays(given, where, columns, notes)
    if arrays is not None:
        return arrays
    if hasattr(given, "column_names") and hasattr(given, "with_format"):
        return _open_table(given, where, columns, notes)
    if hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        return DatasetSource(given, where, columns, notes)
    if isinstance(given, Iterable):
        return IterableSource(given, where, columns, notes)
    raise EsperError(f"{where}: got a {type(given).__name__}; {ACCEPTED}")


def _open_arrays(
    given: Any, where: str, columns: Sequence[str] | None, notes: Notes
) -> Source | None:
    """Return a source of arrays that hold all samples; None if it is something else."""
    if isinstance(given, TensorDataset) and len(given.tensors) > 1 and columns is None:
        *inputs, targets = given.tensors
        return _arrays(inputs, targets, where, notes)
    if isinstance(given, tuple):
        return _open_tuple(given, where, columns, notes)
    if isinstance(given, list) and given and isinstance(given[0], Tensor | np.ndarray):
        return _open_tuple(tuple(given), where, columns, notes)
    if _is_frame(given):
        *names, label = label_column([str(name) for name in given.columns], columns, where)
        return ArraySource(given[names], given[label], where, notes)
    if isinstance(given, Mapping) and not hasattr(given, "column_names"):
        return _open_mapping(given, where, columns, notes)
    return None


def _open_loader(
    given: DataLoader[Any], where: str, columns: Sequence[str] | None, notes: Notes
) -> Source:
    if given.batch_sampler is None and _yields_samples(given, columns, where):
        return IterableSource(given, where, columns, notes)
    return LoaderSource(given, where, columns, notes)


def _yields_samples(loader: DataLoader[Any], columns: Sequence[str] | None, where: str) -> bool:
    """Whether a loader with batch_size=None yields single samples, rather than made batches."""
    with user_code(f"{where}: the first item of the DataLoader fails"):
        first = next(iter(loader), None)
    if first is None:
        return False
    target = split_sample(first, columns, where)[1]
    return isinstance(target, str | bytes) or not np.ndim(cast(Any, target))


def _refuse_unlikely(given: Any, where: str) -> None:
    if given is None:
        raise EsperError(f"{where}: None; {ACCEPTED}")
    if isinstance(given, str | bytes | Path):
        raise EsperError(f"{where}: {str(given)!r} is a path or name, not data; load it, then "
                         f"{ACCEPTED}")  # fmt: skip
    if isinstance(given, nn.Module):
        raise EsperError(f"{where}: a model ({type(given).__name__}), not data; {ACCEPTED}")
    if isinstance(given, Tensor | np.ndarray):
        raise EsperError(
            f"{where}: one array of shape {tuple(given.shape)} without targets; give (inputs, "
            f"targets)"
        )
    if isinstance(given, type):
        raise EsperError(f"{where}: the class {given.__name__}; give an instance of it")
    if callable(given) and not hasattr(given, "__getitem__") and not hasattr(given, "__iter__"):
        name = getattr(given, "__name__", type(given).__name__)
        raise EsperError(f"{where}: the function {name}; give what it returns, as in {name}()")


def _open_tuple(
    given: tuple[Any, ...], where: str, columns: Sequence[str] | None, notes: Notes
) -> Source:
    if columns is not None:
        raise EsperError(
            f"{where}: columns={tuple(columns)} is for tables and dicts; arrays are given as "
            f"(inputs, targets)"
        )
    if len(given) < 2:
        raise EsperError(f"{where}: a tuple of {len(given)}; give (inputs, targets)")
    *inputs, targets = given
    if isinstance(targets, Mapping | DataLoader):
        raise EsperError(
            f"{where}: the last of the tuple is a {type(targets).__name__}; give (inputs, targets)"
        )
    return _arrays(inputs, targets, where, notes)


def _arrays(inputs: Sequence[Any], targets: Any, where: str, notes: Notes) -> Source:
    several = isinstance(inputs[0], tuple) and len(inputs) == 1
    given = tuple(inputs[0]) if several else tuple(inputs)
    return ArraySource(given[0] if len(given) == 1 else given, targets, where, notes)


def _open_mapping(
    given: Mapping[Any, Any], where: str, columns: Sequence[str] | None, notes: Notes
) -> Source:
    if {"train", "test"} & set(given) and where == "train":
        raise EsperError(
            f"{where}: a dict of parts ({', '.join(map(str, given))}); give each by itself, as in "
            f"train=data['train'], test=data['test']"
        )
    *names, label = label_column([str(name) for name in given], columns, where)
    inputs = {name: given[name] for name in names}
    return ArraySource(inputs[names[0]] if len(names) == 1 else inputs, given[label], where, notes)


def _open_table(given: Any, where: str, columns: Sequence[str] | None, notes: Notes) -> Source:
    if isinstance(given.column_names, Mapping):
        parts = ", ".join(map(str, given.column_names))
        raise EsperError(
            f"{where}: a dict of parts ({parts}); give each by itself, as in train=data['train']"
        )
    if not hasattr(given, "__getitem__") or not hasattr(given, "__len__"):
        return IterableSource(given, where, columns, notes)
    names = label_column([str(name) for name in given.column_names], columns, where)
    return TableSource(given, where, names, notes)


def _is_frame(given: Any) -> bool:
    """Whether it is a data frame, of pandas or alike."""
    return hasattr(given, "columns") and hasattr(given, "to_numpy") and hasattr(given, "iloc")
