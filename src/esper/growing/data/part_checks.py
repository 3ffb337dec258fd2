"""Is a part of the data sound, and does it match the training part? One line if not.

Shape letters: N samples.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import torch

from esper.growing.data.arrays import Notes
from esper.growing.data.parts import GrowPart, RawPart, named_inputs, sample_keys
from esper.leyline.errors import EsperError, shown
from esper.tasks.row_terms import dtype_name

MAX_CLASSES: Final = 1000
"""Integer targets with more values than this are not looked at as classes."""


def check_lengths(part: RawPart, where: str) -> None:
    """Raise unless there is one target for each sample, and at least one sample."""
    for name, value in named_inputs(part.inputs):
        if not value.ndim:
            raise EsperError(f"{where} {name}: one number; give an array with one row per sample")
        if len(value) != len(part.targets):
            raise EsperError(
                f"{where}: {len(value)} {name}, {len(part.targets)} targets; give one target for "
                f"each sample"
            )
    if not len(part):
        raise EsperError(f"{where} is empty: give at least one sample")
    shapes = [tuple(value.shape[1:]) for _, value in named_inputs(part.inputs)]
    if not any(math.prod(shape) for shape in shapes):
        raise EsperError(
            f"{where} inputs: samples of shape {shapes[0]} have no features; give at least one"
        )


def check_values(part: GrowPart, where: str) -> None:
    """Raise if inputs or targets hold NaN or infinite numbers; names the first such sample."""
    for name, value in (*named_inputs(part.inputs), ("targets", part.targets)):
        if not value.dtype.is_floating_point or bool(torch.isfinite(value).all()):
            continue
        bad = ~torch.isfinite(value)
        broken = int(bad.reshape(len(value), -1).any(dim=1).sum())
        sample, *place = (int(index) for index in torch.nonzero(bad)[0])
        at = f" at {place}" if place else ""
        raise EsperError(
            f"{where} {name}: {broken} of {len(value)} samples are not finite, the first is "
            f"{float(value[bad][0])} in sample {sample}{at}; leave these samples out or fill the "
            f"gaps"
        )


def describe_samples(part: GrowPart) -> str:
    """Describe shapes and dtypes of one sample."""
    both = (*named_inputs(part.inputs), ("targets", part.targets))
    return ", ".join(f"{name} {tuple(v.shape[1:])} {dtype_name(v)}" for name, v in both)


def check_like_train(part: GrowPart, train: GrowPart, where: str) -> None:
    """Raise if samples differ from those of train in shape or dtype."""
    found, wanted = describe_samples(part), describe_samples(train)
    if found != wanted:
        raise EsperError(
            f"{where} has samples of {found}; train has {wanted}: prepare both in the same way"
        )


def check_classes(train: GrowPart, classes: tuple[str, ...] | None) -> None:
    """Raise if all samples of train have the same class."""
    targets = train.targets
    if targets.dtype.is_floating_point or targets.ndim != 1:
        return
    if bool((targets == targets[0]).all()):
        label = classes[int(targets[0])] if classes else int(targets[0])
        raise EsperError(
            f"train: all {len(train)} labels are {label!r}; there is nothing to learn from one "
            f"class, add samples of another"
        )


def note_new_classes(part: GrowPart, train: GrowPart, where: str, notes: Notes) -> None:
    """Note integer labels that train does not have."""
    if train.targets.dtype.is_floating_point or train.targets.ndim != 1:
        return
    known, found = (np.unique(each.targets.numpy()) for each in (train, part))
    new = np.setdiff1d(found, known)
    if len(new) and len(known) <= MAX_CLASSES:
        number = int(np.isin(part.targets.numpy(), new).sum())
        notes.add(
            f"{where}: {number} samples of labels {shown(new.tolist())} that train does not have; "
            f"they can hardly be predicted"
        )


def note_overlap(part: GrowPart, other: GrowPart, names: tuple[str, str], notes: Notes) -> None:
    """Note samples that two parts share: scores on them say nothing about new data."""
    shared = int(np.isin(sample_keys(part), sample_keys(other)).sum())
    if shared:
        notes.add(
            f"{names[0]}: {shared} of {len(part)} samples are also in {names[1]}, so its scores "
            f"are too good; leave them out of one"
        )
