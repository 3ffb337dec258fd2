"""Find out what a user gave as data, and open it as a `Source`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from esper.growing.data.arrays import Place
from esper.growing.data.samples import label_column, split_columns, split_sample
from esper.growing.data.sources import (
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


def open_source(given: Any, place: Place) -> Source:
    """Return the source of a part."""
    _refuse_unlikely(given, place.where)
    if isinstance(given, DataLoader):
        single = given.batch_sampler is None and _yields_samples(given, place)
        return IterableSource(given, place) if single else LoaderSource(given, place)
    arrays = _open_arrays(given, place)
    if arrays is not None:
        return arrays
    if hasattr(given, "column_names") and hasattr(given, "with_format"):
        return _open_table(given, place)
    if hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        return DatasetSource(given, place)
    if isinstance(given, Iterable):
        return IterableSource(given, place)
    raise EsperError(f"{place.where}: got a {type(given).__name__}; {ACCEPTED}")


def _open_arrays(given: Any, place: Place) -> Source | None:
    """Return a source of arrays that hold all samples; None if it is something else."""
    if isinstance(given, TensorDataset) and len(given.tensors) > 1 and place.columns is None:
        given = given.tensors
    if isinstance(given, list) and given and isinstance(given[0], Tensor | np.ndarray):
        given = tuple(given)
    if isinstance(given, tuple):
        return _open_tuple(given, place)
    if hasattr(given, "columns") and hasattr(given, "to_numpy"):
        *names, label = label_column(given.columns, place)  # a data frame
        return ArraySource(given[names], given[label], place)
    if isinstance(given, Mapping) and not hasattr(given, "column_names"):
        _refuse_parts(given, place.where)
        return ArraySource(*split_columns(given, label_column(given, place), place.where), place)
    return None


def _yields_samples(loader: DataLoader[Any], place: Place) -> bool:
    """Whether a loader with batch_size=None yields single samples, rather than made batches."""
    with user_code(f"{place.where}: the first item of the DataLoader fails"):
        first = next(iter(loader), None)
    if first is None:
        return False
    target = split_sample(first, place)[1]
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


def _open_tuple(given: tuple[Any, ...], place: Place) -> Source:
    where = place.where
    if place.columns is not None:
        raise EsperError(
            f"{where}: columns={tuple(place.columns)} is for tables and dicts; arrays are given as "
            f"(inputs, targets)"
        )
    if len(given) < 2:
        raise EsperError(f"{where}: a tuple of {len(given)}; give (inputs, targets)")
    *inputs, targets = given
    if isinstance(targets, Mapping | DataLoader):
        raise EsperError(
            f"{where}: the last of the tuple is a {type(targets).__name__}; give (inputs, targets)"
        )
    return ArraySource(inputs[0] if len(inputs) == 1 else tuple(inputs), targets, place)


def _refuse_parts(names: Iterable[Any], where: str) -> None:
    """Raise if names are those of parts, as in a dict of data sets."""
    found = [str(name) for name in names]
    if {"train", "test"} & set(found):
        raise EsperError(
            f"{where}: a dict of parts ({', '.join(found)}); give each by itself, as in "
            f"train=data['train'], test=data['test']"
        )


def _open_table(given: Any, place: Place) -> Source:
    if isinstance(given.column_names, Mapping):
        _refuse_parts(given.column_names, place.where)
    if not hasattr(given, "__getitem__") or not hasattr(given, "__len__"):
        return IterableSource(given, place)
    return TableSource(given, replace(place, columns=label_column(given.column_names, place)))
