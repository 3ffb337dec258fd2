"""Learning curves of single networks: candidates of a search (`grow`), topologies of an audit."""

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
    """Score of a network by the compute it had."""

    compute: float
    """Training runs of the bare host (audit: share of the budget, 0..1)."""
    score: float
    low: float
    """95 % interval over contexts; NaN for a single network."""
    high: float


@dataclass(frozen=True, slots=True)
class NetworkCurve:
    """Learning curve of a network, or of a topology over contexts."""

    label: str
    topology: tuple[str, ...]
    variant: str
    origin: str
    parent: str
    """Label of the network it was derived from; empty if none."""
    learning_rate: float
    params: int
    macs: int
    finished: bool
    """Trained in full."""
    points: tuple[CurvePoint, ...]


@reader
def read_curves(run: Path) -> tuple[NetworkCurve, ...]:
    """Curves of a grow run or an audit; empty for other runs."""
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
    return tuple(_network(rows, variants, length) for rows in groups.values())


def _network(rows: list[Entries], variants: tuple[str, ...], length: float) -> NetworkCurve:
    """The runs of one network at one rate: its score by the length of the run."""
    rows.sort(key=lambda row: whole(row, "trained") or 0)
    last = rows[-1]
    variant, parent = whole(last, "variant") or 0, whole(last, "parent")
    ended = [row for row in rows if text(row, "status") != "planned"]
    return NetworkCurve(
        label=str(whole(last, "number")),
        topology=texts(last, "topology"),
        variant=variants[variant] if variant < len(variants) else str(variant),
        origin=text(last, "origin"),
        parent="" if parent is None else str(parent),
        learning_rate=real(entries(last, "recipe"), "lr"),
        params=whole(last, "params") or 0,
        macs=whole(last, "macs") or 0,
        finished=text(last, "status") == "finished" and real(last, "trained") >= length,
        points=tuple(
            CurvePoint(real(row, "trained") / length, real(row, "score"), math.nan, math.nan)
            for row in ended
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
    return tuple(curves)
