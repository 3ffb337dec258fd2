"""Scores of networks by length of training: those of a search (`grow`), an audit's topologies."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from esper.karn.views.audit_records import read_audit_rows, read_audit_setup
from esper.karn.views.damage import reader
from esper.karn.views.documents import Entries, entries, real, text, texts, whole
from esper.karn.views.kinds import RunKind, kind_of
from esper.karn.views.search_table import (
    SearchTable,
    merit,
    read_search,
    recipe_differences,
    recipe_entries,
)
from esper.leyline.statistics import t_interval


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
    runs: tuple[str, ...] = ()
    """Numbers of the runs that the points are (grow)."""


@reader
def read_curves(run: Path) -> tuple[NetworkCurve, ...]:
    """Curves of a grow run or an audit, the best networks first; empty for other runs."""
    kind = kind_of(run)
    if kind is RunKind.GROW:
        return _searched(run)
    return _audited(run) if kind is RunKind.AUDIT else ()


def _searched(run: Path) -> tuple[NetworkCurve, ...]:
    search = read_search(run)
    if not search.rows:
        search.require_whole()
    groups: dict[tuple[object, ...], list[Entries]] = defaultdict(list)
    for row in search.rows:
        key = whole(row, "variant"), texts(row, "topology"), str(recipe_entries(row))
        groups[key].append(row)
    groups_by_merit = sorted(groups.values(), key=lambda rows: max(map(merit, rows)), reverse=True)
    return tuple(_network(rows, search) for rows in groups_by_merit)


def _network(rows: list[Entries], search: SearchTable) -> NetworkCurve:
    """The runs of one network by one recipe."""
    best = max(rows, key=merit)
    parent = whole(best, "parent")
    trained = [row for row in rows if text(row, "status") != "planned"]
    trained.sort(key=lambda row: whole(row, "trained") or 0)
    recipe = entries(best, "recipe")
    batch = search.length({**best, "trained": 1})
    return NetworkCurve(
        label=str(whole(best, "number")),
        topology=texts(best, "topology"),
        variant=search.variant(best),
        origin=text(best, "origin"),
        parent="" if parent is None else str(parent),
        learning_rate=real(recipe, "lr"),
        recipe=recipe_differences(best, search.rows[0]),
        params=whole(best, "params") or 0,
        macs=whole(best, "macs") or 0,
        # The length of a run is a whole number of its batches: the nearest to the full one.
        finished=any(search.length(row) + 0.5 * batch >= 1.0 for row in trained),
        points=tuple(
            CurvePoint(search.length(row), real(row, "score"), math.nan, math.nan)
            for row in trained
        ),
        runs=tuple(str(whole(row, "number")) for row in trained),
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
