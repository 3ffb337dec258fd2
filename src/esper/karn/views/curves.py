"""Scores of networks by length of training: those of a search (`grow`), an audit's topologies."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

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
from esper.leyline.statistics import t_interval
from esper.storage import run_files as f


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
    """A network at one learning rate, or a topology over contexts."""

    label: str
    """Number of its best run (grow), or of the topology."""
    topology: tuple[str, ...]
    variant: str
    origin: str
    parent: str
    """Number of the run it was proposed from; empty if none."""
    learning_rate: float
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


def _searched(run: Path) -> tuple[NetworkCurve, ...]:
    if not (run / f.SEARCH).exists():
        return ()
    info, search = read_entries(run / f.GROW), read_entries(run / f.SEARCH)
    groups: dict[tuple[object, ...], list[Entries]] = defaultdict(list)
    for row in objects(search, "rows"):
        recipe = entries(row, "recipe")
        key = whole(row, "variant"), texts(row, "topology"), real(recipe, "lr"), row.get("start")
        groups[key].append(row)
    variants, length = texts(info, "variants"), real(info, "length")
    groups_by_merit = sorted(groups.values(), key=lambda rows: max(map(_merit, rows)), reverse=True)
    return tuple(_network(rows, variants, length) for rows in groups_by_merit)


def _merit(row: Entries) -> float:
    """The score so that higher is better; unknown ones last."""
    score = real(row, "score")
    return -math.inf if math.isnan(score) else -score if row.get("lower_is_better") else score


def _network(rows: list[Entries], variants: tuple[str, ...], length: float) -> NetworkCurve:
    """The runs of one network at one rate."""
    best = max(rows, key=_merit)
    variant, parent = whole(best, "variant") or 0, whole(best, "parent")
    trained = [row for row in rows if text(row, "status") != "planned"]
    trained.sort(key=lambda row: whole(row, "trained") or 0)
    return NetworkCurve(
        label=str(whole(best, "number")),
        topology=texts(best, "topology"),
        variant=variants[variant] if variant < len(variants) else str(variant),
        origin=text(best, "origin"),
        parent="" if parent is None else str(parent),
        learning_rate=real(entries(best, "recipe"), "lr"),
        params=whole(best, "params") or 0,
        macs=whole(best, "macs") or 0,
        finished=any(real(row, "trained") >= length for row in trained),
        points=tuple(
            CurvePoint(real(row, "trained") / length, real(row, "score"), math.nan, math.nan)
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
                params=setup.params[k],
                macs=setup.macs[k],
                finished=len(contexts) == setup.contexts,
                points=tuple(CurvePoint(*map(float, point)) for point in zip(*parts, strict=True)),
            )
        )
    return tuple(sorted(curves, key=lambda one: one.points[-1].score, reverse=True))
