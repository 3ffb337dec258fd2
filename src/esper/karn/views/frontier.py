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
from esper.karn.views.damage import reader
from esper.karn.views.documents import Entries, entries, objects, read_entries, real, text, texts
from esper.karn.views.kinds import RunKind, kind_of
from esper.leyline.errors import EsperError
from esper.leyline.statistics import Estimate, student_estimate
from esper.plotting.pareto import frontier
from esper.storage import run_files as f


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
    on_frontier: bool
    """No smaller one is better on validation (grow) or on test (audit)."""
    is_host: bool
    is_pick: bool


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
    if not (run / f.RESULT).exists():
        return []
    result = read_entries(run / f.RESULT)
    host, pick = entries(result, "host"), real(result, "pick")
    judged = {real(one, "number"): one for one in (*objects(result, "networks"), host)}
    if pick == pick and pick not in judged:  # an unknown one is NaN
        raise EsperError(f"{run / f.RESULT} is damaged: its pick {pick:.0f} is no network")
    front = {real(one, "number") for one in objects(result, "networks")}
    others = {real(one, "number"): one for one in objects(result, "others")}
    return [
        _network(one, number in front, number == real(host, "number"), number == pick)
        for number, one in (others | judged).items()
    ]


def _network(one: Entries, on_frontier: bool, is_host: bool, is_pick: bool) -> FrontierPoint:
    score, se = real(one, "test_score"), real(one, "test_se")
    return FrontierPoint(
        label=f"{real(one, 'number'):.0f}",
        topology=texts(one, "topology"),
        variant=text(one, "variant"),
        origin=text(one, "origin"),
        params=int(real(one, "params")),
        macs=int(real(one, "macs")),
        score=Estimate(score, score - se, score + se),
        val_score=real(one, "val_score"),
        on_frontier=on_frontier,
        is_host=is_host,
        is_pick=is_pick,
    )


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
        on_frontier=False,
        is_host=not any(seeds),
        is_pick=False,
    )


def _over_contexts(rows: Sequence[AuditRow], name: str) -> Estimate:
    """Mean over contexts of the mean over hosts, with its 95 % interval."""
    by_context: dict[int, list[float]] = {}
    for row in rows:
        by_context.setdefault(row.context, []).append(getattr(row, name))
    means = [math.fsum(values) / len(values) for values in by_context.values()]
    return student_estimate(np.array(means))
