"""The runs of a search as a lineage: what came from what, in rungs and lanes.

A rung is a column, a network is a lane, smaller ones above. A lane holds its runs of a rung one
beside the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, Literal

from esper.karn.views.damage import reader
from esper.karn.views.documents import Entries, real, text, texts, whole
from esper.karn.views.frontier import FrontierPoint, read_frontier, run_point
from esper.karn.views.kinds import RunKind, kind_of
from esper.karn.views.run_story import (
    Fate,
    ended_text,
    made_text,
    network_name,
    same_network,
    trained_again,
)
from esper.karn.views.search_table import (
    SearchTable,
    last_if_nan,
    merit,
    read_search,
    scored,
    within,
)
from esper.storage import run_files as f

SHADES: Final = 5
"""Equal parts of the runs by their scores."""

State = Literal["planned", "under way", "cut", "diverged", "finished"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageRun(FrontierPoint):
    """A run with its place, where it came from, and what became of it.

    `parent` is an earlier run of the table; `val_score` is NaN while it has none.
    """

    rung: int
    lane: int
    """Of its network, from the smallest."""
    place: int
    """Among the runs of its rung and lane."""
    is_again: bool
    """The parent's network by the same recipe, for another length."""
    state: State
    shade: int
    """Part of the scores that its own is in, from the worst; -1: it has none."""
    network: str
    made: str
    """Why it was made."""
    ended: str
    """Why it ended, and what became of it."""
    is_refit: bool
    """Trained once more after the search, on validation samples as well."""


@reader
def read_lineage(run: Path) -> tuple[LineageRun, ...]:
    """All runs of a search in the order of the table; empty for other kinds of runs."""
    if kind_of(run) is not RunKind.GROW:
        return ()
    search = read_search(run)
    if not search.rows:
        search.require_whole()
    return tuple(_Lineage(run, search).runs())


class _Lineage:
    def __init__(self, run: Path, search: SearchTable) -> None:
        self._run, self._search = run, search
        self._rows = {n: row for row in search.rows if (n := whole(row, "number")) is not None}
        found = {point.label: point for point in read_frontier(run)}
        self._points = {
            n: found.get(str(n)) or run_point(row, search) for n, row in self._rows.items()
        }
        self._lanes = _lanes(search.rows)
        self._shades = _shades(search.rows)
        self._fitting = {whole(row, "number") for row in within(search.rows, search.info)}
        self._front = [row for n, row in self._rows.items() if self._points[n].on_frontier]
        self._children: dict[int, list[Entries]] = {}
        for number, row in self._rows.items():
            if (parent := self._parent(number, row)) is not None:
                self._children.setdefault(whole(parent, "number") or 0, []).append(row)

    def runs(self) -> Iterable[LineageRun]:
        taken: dict[tuple[int, int], int] = {}
        for number, row in self._rows.items():
            cell = max(0, whole(row, "rung") or 0), self._lanes[_network(row)]
            taken[cell] = taken.get(cell, -1) + 1
            yield self._record(number, row, cell, taken[cell])

    def _record(self, number: int, row: Entries, cell: tuple[int, int], place: int) -> LineageRun:
        point, parent = self._points[number], self._parent(number, row)
        known = {f.name: getattr(point, f.name) for f in fields(FrontierPoint)}
        fate = self._fate(number, row, point)
        return LineageRun(
            **known | {"parent": "" if parent is None else str(whole(parent, "number"))},
            rung=cell[0],
            lane=cell[1],
            place=place,
            is_again=parent is not None and trained_again(row, parent),
            state=_state(row, point.under_way),
            shade=self._shades.get(number, -1),
            network=network_name(self._search, row),
            made=made_text(self._search, row, parent),
            ended=ended_text(self._search, row, fate),
            is_refit=fate.is_refit,
        )

    def _parent(self, number: int, row: Entries) -> Entries | None:
        """The row it was proposed from: an earlier one, so that a damaged table has no cycles."""
        parent = whole(row, "parent")
        return None if parent is None or parent >= number else self._rows.get(parent)

    def _fate(self, number: int, row: Entries, point: FrontierPoint) -> Fate:
        children = self._children.get(number, [])
        again = [one for one in children if trained_again(one, row)]
        refit = self._run / f.GROWN_NETWORKS / f"{number:04d}.refit.safetensors"
        return Fate(
            is_pick=point.is_pick,
            on_frontier=point.on_frontier,
            under_way=point.under_way,
            fits=number in self._fitting,
            better=self._better(row),
            again=again,
            others=len(children) - len(again),
            is_refit=refit.is_file(),
        )

    def _better(self, row: Entries) -> str:
        """The best of the frontier that is at least as good and no larger, in words."""
        size, score = real(row, "params"), merit(row)
        better = [
            one for one in self._front
            if one is not row and real(one, "params") <= size and merit(one) >= score
        ]  # fmt: skip
        if not better:
            return ""
        best = max(better, key=merit)
        said = f"#{whole(best, 'number')}"
        if same_network(best, row):
            return f"{said}, the same network"
        smaller = " (smaller)" if real(best, "params") < size else ""
        return f"{said}, {network_name(self._search, best)}{smaller}"


def _network(row: Entries) -> tuple[int, tuple[str, ...]]:
    return whole(row, "variant") or 0, texts(row, "topology")


def _lanes(rows: Sequence[Entries]) -> dict[tuple[int, tuple[str, ...]], int]:
    """The lane of every network, by its size."""
    size = {_network(row): real(row, "params") for row in rows}
    order = sorted(size, key=lambda one: (last_if_nan(size[one]), one))
    return {one: lane for lane, one in enumerate(order)}


def _shades(rows: Sequence[Entries]) -> Mapping[int | None, int]:
    """Of every run with a score the part of all scores that it is in; equal ones are in one."""
    some = scored(rows)
    merits = sorted({merit(row) for row in some})
    rank = {one: place for place, one in enumerate(merits)}
    last = max(1, len(merits) - 1)
    return {
        whole(row, "number"): min(SHADES - 1, SHADES * rank[merit(row)] // last) for row in some
    }


def _state(row: Entries, under_way: bool) -> State:
    if under_way:
        return "under way"
    if row.get("diverged") is True:
        return "diverged"
    status = text(row, "status")
    return "finished" if status == "finished" else "cut" if status == "cut" else "planned"
