"""Scores of networks by length of training: those of a search (`grow`), an audit's topologies."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from esper.karn.views.audit_records import read_audit_rows, read_audit_setup
from esper.karn.views.damage import reader
from esper.karn.views.documents import (
    Entries,
    entries,
    objects,
    read_entries,
    real,
    text,
    texts,
    whole,
)
from esper.karn.views.kinds import RunKind, kind_of
from esper.leyline.codec import Json
from esper.leyline.statistics import t_interval
from esper.storage import run_files as f

_NAMES: Final = {"lr": "rate", "augment": "augmentation", "start": "weights of run"}
"""Of entries of a recipe whose own names are no words."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Score of a network by the length of its training."""

    length: float
    """1: a training run in full. In a search every point is a run of its own."""
    score: float
    low: float
    """95 % interval over contexts; NaN for a single network."""
    high: float


@dataclass(frozen=True, slots=True)
class NetworkCurve:
    """A network trained by one recipe at several lengths, or a topology over contexts."""

    label: str
    """Number of its best run (grow), or of the topology."""
    topology: tuple[str, ...]
    variant: str
    origin: str
    parent: str
    """Number of the run it was proposed from; empty if none."""
    learning_rate: float
    recipe: str
    """What differs from the recipe of the model as given, its length apart; empty: nothing."""
    params: int
    macs: int
    finished: bool
    """Trained in full."""
    points: tuple[CurvePoint, ...]


@reader
def read_curves(run: Path) -> tuple[NetworkCurve, ...]:
    """Curves of a grow run or an audit, the best networks first; empty for other runs."""
    kind = kind_of(run)
    if kind is RunKind.GROW:
        return _searched(run)
    return _audited(run) if kind is RunKind.AUDIT else ()


@dataclass(frozen=True, slots=True)
class _Search:
    """What the runs of a search are compared with."""

    variants: tuple[str, ...]
    samples: float
    """Of a training run of the model as given in full."""
    given: Entries
    """Its row."""


def _searched(run: Path) -> tuple[NetworkCurve, ...]:
    if not (run / f.SEARCH).exists():
        return ()
    info, rows = read_entries(run / f.GROW), objects(read_entries(run / f.SEARCH), "rows")
    samples = real(info, "length") * real(info, "batch_size")
    search = _Search(texts(info, "variants"), samples, rows[0] if rows else {})
    groups: dict[tuple[object, ...], list[Entries]] = defaultdict(list)
    for row in rows:
        groups[whole(row, "variant"), texts(row, "topology"), str(_recipe(row))].append(row)
    groups_by_merit = sorted(groups.values(), key=lambda rows: max(map(_merit, rows)), reverse=True)
    return tuple(_network(rows, search) for rows in groups_by_merit)


def _recipe(row: Entries) -> dict[str, Json]:
    """How a run is trained, seed and starting weights included; its length apart."""
    recipe = {**entries(row, "recipe"), "seed": row.get("seed"), "start": row.get("start")}
    return {name: value for name, value in recipe.items() if name != "batches"}


def _differences(row: Entries, given: Entries) -> str:
    """What differs from the recipe of the model as given, as in `rate 0.01, seed 7`."""
    reference, recipe = _recipe(given), _recipe(row)
    named = {name: _NAMES.get(name, name.replace("_", " ")) for name in recipe}
    return ", ".join(
        f"{named[name]} {value:.3g}" if isinstance(value, float) else f"{named[name]} {value}"
        for name, value in recipe.items()
        if value != reference.get(name)
    )


def _merit(row: Entries) -> float:
    """The score so that higher is better; unknown ones last."""
    score = real(row, "score")
    return -math.inf if math.isnan(score) else -score if row.get("lower_is_better") else score


def _network(rows: list[Entries], search: _Search) -> NetworkCurve:
    """The runs of one network by one recipe."""
    best = max(rows, key=_merit)
    variants, variant, parent = search.variants, whole(best, "variant") or 0, whole(best, "parent")
    trained = [row for row in rows if text(row, "status") != "planned"]
    trained.sort(key=lambda row: whole(row, "trained") or 0)
    recipe = entries(best, "recipe")
    share = real(recipe, "batch_size") / search.samples  # of a run in full, by one batch
    return NetworkCurve(
        label=str(whole(best, "number")),
        topology=texts(best, "topology"),
        variant=variants[variant] if variant < len(variants) else str(variant),
        origin=text(best, "origin"),
        parent="" if parent is None else str(parent),
        learning_rate=real(recipe, "lr"),
        recipe=_differences(best, search.given),
        params=whole(best, "params") or 0,
        macs=whole(best, "macs") or 0,
        # The length of a run is a whole number of its batches: the nearest to the full one.
        finished=any(share * (real(row, "trained") + 0.5) >= 1.0 for row in trained),
        points=tuple(
            CurvePoint(share * real(row, "trained"), real(row, "score"), math.nan, math.nan)
            for row in trained
        ),
    )


def _audited(run: Path) -> tuple[NetworkCurve, ...]:
    """Mean over contexts of the mean over hosts, by observation."""
    setup = read_audit_setup(run)
    sums: dict[int, dict[int, list[tuple[float, ...]]]] = defaultdict(lambda: defaultdict(list))
    for row in read_audit_rows(run):
        sums[row.topology][row.context].append(row.accuracies)
    curves = []
    for k, contexts in sorted(sums.items()):
        mean_CT = np.array([np.mean(hosts, axis=0) for hosts in contexts.values()])
        mean_T, low_T, high_T = t_interval(mean_CT)
        share_T = np.linspace(0.0, 1.0, len(mean_T))
        parts = (share_T, mean_T, low_T, high_T)
        seeds = setup.topologies[k]
        curves.append(
            NetworkCurve(
                label=str(k),
                topology=seeds,
                variant="",
                origin="planted" if any(seeds) else "host",
                parent="",
                learning_rate=math.nan,
                recipe="",
                params=setup.params[k],
                macs=setup.macs[k],
                finished=len(contexts) == setup.contexts,
                points=tuple(CurvePoint(*map(float, point)) for point in zip(*parts, strict=True)),
            )
        )
    return tuple(sorted(curves, key=lambda one: one.points[-1].score, reverse=True))
