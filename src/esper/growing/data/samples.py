"""Split a sample, or a batch, into inputs and target: (x, y), (x1, x2, y) or a dict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from torch import Tensor

from esper.growing.data.arrays import Place, input_tensor, stack_values, target_values
from esper.growing.data.parts import RawPart, by_key, from_keys, input_name
from esper.leyline.errors import EsperError, shown, unknown_name

LABEL_KEYS: Final = ("label", "labels", "target", "targets", "y")
"""Keys that hold the target of a dict sample, unless `columns` names another."""


def label_column(given: Iterable[Any], place: Place) -> list[str]:
    """Return the names of the inputs, then of the target."""
    names, where = [str(name) for name in given], place.where
    if place.columns is not None:
        for name in place.columns:
            if name not in names:
                raise unknown_name("column", name, names, f"in {where}")
        return list(place.columns)
    found = [name for name in names if name in LABEL_KEYS]
    if len(found) != 1:
        problem = f"several may be the target ({', '.join(found)})" if found else "none is a target"
        raise EsperError(
            f"{where}: of the columns {shown(', '.join(names))} {problem}; name them, as in "
            f"columns=('input', 'label'), the target last"
        )
    return [name for name in names if name != found[0]] + found


def split_columns(
    columns: Mapping[Any, Any], names: Sequence[str], where: str
) -> tuple[Any, object]:
    """Return (inputs, target) of named columns, the target last."""
    *inputs, label = names
    if not inputs:
        raise EsperError(f"{where}: samples hold only {label!r}, the target; add an input")
    if len(inputs) == 1:
        return columns[inputs[0]], columns[label]
    return {name: columns[name] for name in inputs}, columns[label]


def split_sample(sample: object, place: Place) -> tuple[object, object]:
    """Return (inputs, target) of a sample or batch; inputs are one value, a tuple or a dict."""
    where = place.where
    if isinstance(sample, Mapping):
        return split_columns(sample, label_column(sample, place), where)
    if place.columns is not None:
        raise EsperError(
            f"{where}: columns={tuple(place.columns)} names keys of dict samples, but these are "
            f"{type(sample).__name__}; leave columns out, or yield dicts"
        )
    if isinstance(sample, tuple | list):
        return _split_tuple(sample, where)
    if isinstance(sample, Tensor | np.ndarray):
        raise EsperError(
            f"{where}: samples are single arrays, without targets; yield (input, target)"
        )
    raise EsperError(
        f"{where}: samples are {type(sample).__name__}; yield (input, target), or a dict with a "
        f"key 'label'"
    )


def _split_tuple(sample: tuple[Any, ...] | list[Any], where: str) -> tuple[object, object]:
    if len(sample) < 2:
        raise EsperError(
            f"{where}: samples are tuples of {len(sample)}, without targets; yield (input, target)"
        )
    *inputs, target = sample
    if isinstance(target, Mapping):
        raise EsperError(
            f"{where}: the target of a sample is a dict with {shown(', '.join(map(str, target)))}; "
            f"yield one tensor or number as target"
        )
    if len(inputs) > 1:
        return tuple(inputs), target
    return (tuple(inputs[0]) if _several(inputs[0]) else inputs[0]), target


def _several(value: object) -> bool:
    """Whether a value is several inputs, rather than one written as a list of numbers."""
    return isinstance(value, tuple | list) and any(
        isinstance(v, Tensor | np.ndarray) and np.ndim(v) for v in value
    )


def convert_batch(inputs: object, targets: object, place: Place) -> RawPart:
    """Return a batch as tensors, targets possibly as strings."""
    where = place.where
    made = {
        key: input_tensor(value, f"{where} {input_name(key)}", place.notes)
        for key, value in by_key(inputs).items()
    }
    values = target_values(targets, f"{where} targets")
    if not values.ndim:
        raise EsperError(f"{where} targets: one number; give an array with one for each sample")
    return RawPart(from_keys(made), values)


def collate_samples(samples: Sequence[object], place: Place, start: int = 0) -> RawPart:
    """Return consecutive samples from number `start` on as one batch."""
    pairs = [split_sample(sample, place) for sample in samples]
    inputs = [by_key(one) for one, _ in pairs]
    for one in inputs:
        for key in inputs[0]:
            if key not in one:
                raise EsperError(
                    f"{place.where}: the first sample has an input {key!r}, another has none; give "
                    f"every sample the same"
                )
    stacked = {
        key: stack_values([one[key] for one in inputs], f"{place.where} {input_name(key)}", start)
        for key in inputs[0]
    }
    targets = _stack_targets([target for _, target in pairs], place.where, start)
    return convert_batch(from_keys(stacked), targets, place)


def _stack_targets(targets: list[object], where: str, start: int) -> object:
    """Strings and numbers may be mixed here: `target_values` refuses them."""
    for number, value in enumerate(targets, start):
        if value is None:
            raise EsperError(f"{where}: the label of sample {number} is missing; leave it out")
    if any(isinstance(value, str | bytes) for value in targets):
        return targets
    return stack_values(targets, f"{where} targets", start)
