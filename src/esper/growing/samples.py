"""Tell inputs and target of a sample apart, or of a batch: (x, y), (x1, x2, y) or a dict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from torch import Tensor

from esper.growing.arrays import Notes, input_tensor, stack_values, target_values
from esper.growing.parts import Inputs, RawPart
from esper.leyline.errors import EsperError, shown, unknown_name

LABEL_KEYS: Final = ("label", "labels", "target", "targets", "y")
"""Keys that hold the target of a dict sample, unless `columns` names another."""


def label_column(names: Sequence[str], columns: Sequence[str] | None, where: str) -> list[str]:
    """Return the names of the inputs, then of the target."""
    if columns is not None:
        for name in columns:
            if name not in names:
                raise unknown_name("column", name, names, f"in {where}")
        return list(columns)
    found = [name for name in names if name in LABEL_KEYS]
    if len(found) != 1:
        problem = f"several may be the target ({', '.join(found)})" if found else "none is a target"
        raise EsperError(
            f"{where}: of the columns {shown(', '.join(names))} {problem}; name them, as in "
            f"columns=('input', 'label'), the target last"
        )
    return [name for name in names if name != found[0]] + found


def split_sample(
    sample: object, columns: Sequence[str] | None, where: str
) -> tuple[object, object]:
    """Return (inputs, target) of a sample or batch; inputs are one value, a tuple or a dict."""
    if isinstance(sample, Mapping):
        *names, label = label_column([str(name) for name in sample], columns, where)
        if not names:
            raise EsperError(f"{where}: samples hold only {label!r}, the target; add an input")
        inputs = {name: sample[name] for name in names}
        return (inputs[names[0]] if len(names) == 1 else inputs), sample[label]
    if columns is not None:
        raise EsperError(
            f"{where}: columns={tuple(columns)} names keys of dict samples, but these are "
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


def convert_batch(inputs: object, targets: object, where: str, notes: Notes) -> RawPart:
    """Return a batch as tensors, targets possibly as strings."""
    made = _convert_inputs(inputs, where, notes)
    values = target_values(targets, f"{where} targets")
    if not values.ndim:
        raise EsperError(f"{where} targets: one number; give an array with one for each sample")
    return RawPart(made, values)


def _convert_inputs(inputs: object, where: str, notes: Notes) -> Inputs:
    if isinstance(inputs, Mapping):
        return {
            str(name): input_tensor(value, f"{where} inputs {str(name)!r}", notes)
            for name, value in inputs.items()
        }
    if isinstance(inputs, tuple):
        return tuple(
            input_tensor(value, f"{where} inputs {place}", notes)
            for place, value in enumerate(inputs)
        )
    return input_tensor(inputs, f"{where} inputs", notes)


def collate_samples(
    samples: Sequence[object],
    columns: Sequence[str] | None,
    where: str,
    notes: Notes,
    start: int = 0,
) -> RawPart:
    """Return consecutive samples from number `start` on as one batch."""
    pairs = [split_sample(sample, columns, where) for sample in samples]
    first = pairs[0][0]
    inputs: object
    if isinstance(first, Mapping):
        inputs = {
            name: stack_values(
                [_entry(p[0], name, where) for p in pairs], f"{where} {name!r}", start
            )
            for name in first
        }
    elif isinstance(first, tuple):
        inputs = tuple(
            stack_values(
                [_entry(p[0], place, where) for p in pairs], f"{where} inputs {place}", start
            )
            for place in range(len(first))
        )
    else:
        inputs = stack_values([p[0] for p in pairs], f"{where} inputs", start)
    targets = _stack_targets([p[1] for p in pairs], where, start)
    return convert_batch(inputs, targets, where, notes)


def _stack_targets(targets: list[object], where: str, start: int) -> object:
    """Strings and numbers may be mixed here: `target_values` refuses them."""
    for number, value in enumerate(targets, start):
        if value is None:
            raise EsperError(f"{where}: the label of sample {number} is missing; leave it out")
    if any(isinstance(value, str | bytes) for value in targets):
        return targets
    return stack_values(targets, f"{where} targets", start)


def _entry(inputs: Any, key: str | int, where: str) -> object:
    try:
        return inputs[key]
    except (KeyError, IndexError, TypeError):
        raise EsperError(
            f"{where}: the first sample has an input {key!r}, another has none; give every sample "
            f"the same"
        ) from None
