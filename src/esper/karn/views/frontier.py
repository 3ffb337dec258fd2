"""Networks by size and score: those of a search (`grow`), the topologies of an audit.

Shape letters: C contexts, H hosts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from esper.karn.views.audit_records import AuditRow, AuditSetup, read_audit_rows, read_audit_setup
from esper.karn.views.contenders import UNKNOWN
from esper.karn.views.damage import reader
from esper.karn.views.documents import Entries, entries, objects, real, text, texts, whole
from esper.karn.views.kinds import RunKind, kind_of
from esper.karn.views.search_table import (
    SearchTable,
    gain,
    given_run,
    is_cut,
    judged_at,
    merit,
    pick_gain,
    read_search,
    recipe_text,
    scored,
    settled,
    validation_frontier,
    within,
)
from esper.leyline.errors import EsperError
from esper.leyline.statistics import Estimate, student_estimate
from esper.plotting.pareto import frontier
from esper.storage import run_files as f
from esper.storage.folder_lock import is_locked


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """One network, or one topology over several contexts and hosts."""

    label: str
    """Number of the network or topology."""
    topology: tuple[str, ...]
    """Blueprint of every slot, "" for an empty one."""
    variant: str
    """Width and depth of the host, as `x0.5 d2`; empty: as given."""
    origin: str
    """`given`, `width`, `seeds`, `grown`, `pruned` (grow); `host`, `planted` (audit)."""
    params: int
    macs: int
    score: Estimate
    """On test; the interval is one standard error (grow) or 95 % over contexts (audit)."""
    val_score: float
    """NaN: not known, or it diverged."""
    on_frontier: bool = False
    """No smaller one is better on validation (grow) or on test (audit)."""
    is_host: bool = False
    """The model as given (its best run), or the host without seeds."""
    is_pick: bool = False
    under_way: bool = False
    """Still being trained: its validation score is one on the way (grow)."""
    recipe: str = ""
    """How it was trained (grow)."""
    parent: str = ""
    """Number of the run it was proposed from; empty if none."""
    latency: Estimate = UNKNOWN
    """Milliseconds for one sample, and the middle half of all samples; NaN: not measured."""
    gain: float = math.nan
    """Test score over that of the model as given; positive is better."""
    val_gain: float = math.nan
    """Validation score over that of the model as given; positive is better."""
    length: float = math.nan
    """Length of its training; 1: a training run in full."""
    seconds: float = math.nan
    """That it was trained."""
    elapsed: float = math.nan
    """Seconds of the search when it was judged."""


@dataclass(frozen=True, slots=True)
class BestPoint:
    """The best validation score so far, from a run on."""

    elapsed: float
    """Seconds of the search until then."""
    val_score: float
    label: str
    """Number of the run."""
    params: int


@reader
def read_frontier(run: Path) -> tuple[FrontierPoint, ...]:
    """Networks of a grow run or topologies of an audit by size; empty for other runs."""
    kind = kind_of(run)
    if kind is RunKind.GROW:
        points = _grown(run)
    elif kind is RunKind.AUDIT:
        points = _audited(run)
    else:
        points = []
    return tuple(sorted(points, key=lambda point: (point.params, point.label)))


# ---- grow --------------------------------------------------------------------------------------


def _grown(run: Path) -> list[FrontierPoint]:
    """Every run with a validation score, from the first on; test scores once there is a result."""
    search = read_search(run)
    rows, judged = _rows_by_number(search), search.judged
    pick = whole(search.result, "pick")
    host = whole(entries(search.result, "host") or given_run(search.rows), "number")
    if pick is not None and pick not in judged:
        raise EsperError(f"{run / f.RESULT} is damaged: its pick {pick} is no network")
    if judged:
        front: set[int | None] = {
            whole(one, "number") for one in objects(search.result, "networks")
        }
    else:
        front = validation_frontier(within(search.rows, search.info))
    live = is_locked(run)
    points = [
        replace(
            run_point(row, search, judged.get(number, {}), live),
            on_frontier=number in front,
            is_host=number == host,
            is_pick=number == pick,
            elapsed=judged_at(row),
        )
        for number, row in rows.items()
    ]
    if not points:
        search.require_whole()
    return _with_gains(points, search)


def _rows_by_number(search: SearchTable) -> dict[int, Entries]:
    """Runs with a score; networks of the result whose runs the table does not have as well."""
    records = (*objects(search.result, "others"), *search.judged.values())
    every = (*map(_as_row, records), *scored(search.rows))
    return {number: row for row in every if (number := whole(row, "number")) is not None}


def _as_row(record: Entries) -> Entries:
    """A network of the result as a row of the table."""
    return {**record, "score": record.get("val_score"), "status": "finished", "trained": None}


def run_point(
    row: Entries, search: SearchTable, judged: Entries | None = None, live: bool = False
) -> FrontierPoint:
    """A run as a point; what it is among the others is not said. `judged`: on test, if it was."""
    judged = judged or {}
    score, se, parent = real(judged, "test_score"), real(judged, "test_se"), whole(row, "parent")
    variant = row.get("variant")
    return FrontierPoint(
        label=str(whole(row, "number")),
        topology=texts(row, "topology"),
        variant=variant if isinstance(variant, str) else search.variant(row),
        origin=text(row, "origin"),
        params=whole(judged or row, "params") or 0,
        macs=whole(row, "macs") or 0,
        score=Estimate(score, score - se, score + se),
        val_score=real(row, "score"),
        under_way=live and is_cut(row),
        recipe=recipe_text(row),
        parent="" if parent is None else str(parent),
        latency=_latency(judged or row),
        length=search.length(row),
        seconds=real(row, "seconds"),
    )


def _latency(one: Entries) -> Estimate:
    """0 stands for one that was not measured."""
    median, low, high = (real(one, f"latency{end}") or math.nan for end in ("", "_low", "_high"))
    return Estimate(median, low, high)


def _with_gains(points: list[FrontierPoint], search: SearchTable) -> list[FrontierPoint]:
    """Points with what they gain over the model as given."""
    host = next((point for point in points if point.is_host), None)
    if host is None:
        return points
    return [
        replace(
            point,
            gain=pick_gain(search).value
            if point.is_pick
            else gain(point.score.value, host.score.value, search.sign),
            val_gain=gain(point.val_score, host.val_score, search.sign),
        )
        for point in points
    ]


@reader
def read_best(run: Path) -> tuple[BestPoint, ...]:
    """The best validation score of a grow run so far, whenever it rose; empty for other runs."""
    if kind_of(run) is not RunKind.GROW:
        return ()
    search = read_search(run)
    if not search.rows:
        search.require_whole()
    best, found = -math.inf, list[BestPoint]()
    rows = settled(within(search.rows, search.info), is_locked(run))
    for row in sorted(rows, key=judged_at):
        if merit(row) > best:
            best, number = merit(row), whole(row, "number")
            found.append(
                BestPoint(judged_at(row), real(row, "score"), str(number),
                          whole(row, "params") or 0)
            )  # fmt: skip
    return tuple(found)


# ---- audit -------------------------------------------------------------------------------------


def _audited(run: Path) -> list[FrontierPoint]:
    setup = read_audit_setup(run)
    by_topology: dict[int, list[AuditRow]] = {}
    for row in read_audit_rows(run):
        by_topology.setdefault(row.topology, []).append(row)
    points = [_topology(setup, k, rows) for k, rows in sorted(by_topology.items())]
    best = set(frontier([p.params for p in points], [p.score.value for p in points]))
    return [replace(point, on_frontier=i in best) for i, point in enumerate(points)]


def _topology(setup: AuditSetup, k: int, rows: Sequence[AuditRow]) -> FrontierPoint:
    seeds = setup.topologies[k]
    return FrontierPoint(
        label=str(k),
        topology=seeds,
        variant="",
        origin="planted" if any(seeds) else "host",
        params=setup.params[k],
        macs=setup.macs[k],
        score=_over_contexts(rows, "test"),
        val_score=_over_contexts(rows, "accuracy").value,
        is_host=not any(seeds),
    )


def _over_contexts(rows: Sequence[AuditRow], name: str) -> Estimate:
    """Mean over contexts of the mean over hosts, with its 95 % interval."""
    by_context: dict[int, list[float]] = {}
    for row in rows:
        by_context.setdefault(row.context, []).append(getattr(row, name))
    means = [math.fsum(values) / len(values) for values in by_context.values()]
    return student_estimate(np.array(means))
