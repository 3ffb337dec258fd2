"""The learning curve of a training run: one point per round, with intervals over its members.

From events; rounds without events (telemetry off, or lost by a kill) from the history of the newest
checkpoint, or from the stored rounds of a policy that does not learn. Drawn on the web page
(karn/web/static/js/training_figures.js), in the terminal (karn/tui/learning_curve.py) and in the
report (karn/report/sections.py).

Shape letters: E members, R rounds.
"""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from esper.karn.views.damage import reader
from esper.karn.views.documents import (
    Entries,
    entries,
    numbers,
    read_entries,
    real,
)
from esper.karn.views.tables import EventTables, Rounds, Row, numpy_ints
from esper.leyline.errors import EsperError
from esper.leyline.stages import SeedStage
from esper.leyline.statistics import Estimate, t_interval
from esper.leyline.telemetry import TelemetryEventType
from esper.storage import run_files as f
from esper.storage.json_lines import read_json_lines

_NAN: Final = math.nan
_STORED: Final = re.compile(r"round-(\d{6,})(?:\.json)?")


@dataclass(frozen=True, slots=True)
class RoundPoint:
    """One round: E episodes, then an update. NaN: not known."""

    round: int
    """From 0."""
    members: int
    score: Estimate
    """Mean over members, with its 95 % interval."""
    accuracy: Estimate
    """On `val_score`, likewise."""
    best_member_score: float
    train_accuracy: float
    """Mean over members, on the train batches of the last step."""
    budget: float
    """Compute budget of a member, in training runs of the host."""
    spent: float
    """Mean share of it that was spent."""
    mean_return: float
    added_params: float
    """Mean over members, as are MACs, FLOPs and counts of seeds."""
    added_macs: float
    flops_ratio: float
    """Training FLOPs over those of the host."""
    germinated: float
    fossilized: float
    pruned: float
    rollbacks: int
    """Of all members."""
    restarts: int
    """Of all members."""
    stages: tuple[tuple[str, int], ...]
    """(stage, slots of all members in it) at the end of the round."""
    seconds: float
    time: float
    """When it ended, in seconds since 1970."""


@reader
def read_rounds(run: Path, after: int = -1) -> tuple[RoundPoint, ...]:
    """The rounds of a training run, or those after a given one, in order."""
    tables, wanted = EventTables.of(run), Rounds(first=after + 1)
    outcomes = _outcomes(tables, wanted)
    summaries: dict[int, Row] = {
        row["round"]: row
        for row in tables.rows(TelemetryEventType.ROUND_COMPLETED, _SUMMARY, wanted)
    }
    contexts = _contexts(tables, wanted)
    stored = _stored_rounds(run, wanted, outcomes.keys())
    members = {**stored, **outcomes}
    intervals = _intervals({at: members[at].arrays for at in members})
    return tuple(
        _point(at, members[at], intervals[at], summaries.get(at, {}) | contexts.get(at, {}))
        for at in sorted(members)
    )


@reader
def read_member_scores(run: Path, at: int) -> tuple[float, ...]:
    """Score of each member in one round of a training run; empty if it is not recorded."""
    wanted = Rounds(first=at, last=at)
    outcomes = _outcomes(EventTables.of(run), wanted)
    stored = {} if at in outcomes else _stored_rounds(run, wanted, ())
    found = {**stored, **outcomes}.get(at)
    return () if found is None else tuple(float(score) for score in found.arrays["score_E"])


# ---- what members reached ----------------------------------------------------------------------

_MEMBER: Final = {
    "score_E": "score_E",
    "accuracy_E": "accuracy_E",
    "return_E": "episode_return_E",
    "added_params_E": "added_params_E",
    "added_macs_E": "added_macs_E",
    "flops_ratio_E": "flops_ratio_E",
    "germinated_E": "germinated_E",
    "fossilized_E": "fossilized_E",
    "pruned_E": "pruned_E",
    "rollbacks_E": "rollbacks_E",
    "restarts_E": "restarts_E",
}
"""Array here -> column of EPISODE_OUTCOME."""
_SUMMARY: Final = ("mean_train_accuracy", "stage_counts", "seconds")
_Arrays = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class _Members:
    """Outcome of the members of a round."""

    arrays: _Arrays
    seconds: float
    time: float


def _outcomes(tables: EventTables, wanted: Rounds) -> dict[int, _Members]:
    table = tables.read(TelemetryEventType.EPISODE_OUTCOME, tuple(_MEMBER.values()), wanted)
    round_N, event_N = numpy_ints(table, "round"), numpy_ints(table, "event")
    columns = {name: table.column(column).to_numpy() for name, column in _MEMBER.items()}
    time_N = table.column("wall_time").to_numpy()
    ends = (np.flatnonzero(np.diff(event_N, append=-1)) + 1).tolist()
    found = {}
    for begin, end in pairwise((0, *ends)):
        arrays = {name: values[begin:end] for name, values in columns.items()}
        found[int(round_N[begin])] = _Members(arrays, _NAN, float(time_N[begin]))
    return found


def _contexts(tables: EventTables, wanted: Rounds) -> dict[int, Row]:
    """Budget of each round, and the mean share of it that was spent."""
    spent: dict[int, dict[int, float]] = defaultdict(dict)
    budgets = {}
    for row in tables.rows(TelemetryEventType.ROUND_CONTEXTS, ("spent_E", "budget"), wanted):
        spent[row["round"]][row["row"]] = row["spent_E"]
        budgets[row["round"]] = row["budget"]
    return {
        at: {"budget": budgets[at], "spent": math.fsum(shares.values()) / len(shares)}
        for at, shares in spent.items()
    }


def _stored_rounds(run: Path, wanted: Rounds, known: Iterable[int]) -> dict[int, _Members]:
    """Rounds without events."""
    if (run / f.POLICY).exists():
        return _policy_rounds(run / f.ROUNDS, wanted, set(known))
    return {
        at: _Members(
            _arrays(line) | {"restarts_E": np.array([real(line, "restarted")])},
            real(line, "rollout_seconds"),
            _NAN,
        )
        for at, line in history_lines(run, (wanted.first or 0) - 1, set(known))
    }


def history_lines(run: Path, after: int, known: set[int]) -> Iterator[tuple[int, Entries]]:
    """(round, record) in the newest checkpoint, of rounds after one that are not known."""
    found = numbered(run / f.CHECKPOINTS)
    if not found or known.issuperset(range(after + 1, found[-1][0])):
        return
    path = found[-1][1] / f.HISTORY
    for _, line in read_json_lines(path) if path.exists() else ():
        at = int(real(line, "round_index"))
        if at > after and at not in known:
            yield at, line


def _policy_rounds(folder: Path, wanted: Rounds, known: set[int]) -> dict[int, _Members]:
    found = {}
    for number, path in numbered(folder):
        if number - 1 >= (wanted.first or 0) and number - 1 not in known:
            try:
                result = entries(read_entries(path), "result")
            except EsperError:  # damaged: the resumed run computes it again
                continue
            arrays = _arrays(entries(result, "outcome"), _MEMBER)
            found[number - 1] = _Members(arrays, real(result, "seconds"), _NAN)
    return found


def _arrays(line: Entries, names: Mapping[str, str] | None = None) -> _Arrays:
    found = {name: numbers(line, (names or {}).get(name, name)) for name in _MEMBER}
    arrays = {name: np.array(values) for name, values in found.items() if values}
    whole_E = np.array(numbers(line, "steps_E")) == real(line, "steps")
    return {
        name: array[whole_E] if len(whole_E) == len(array) else array
        for name, array in arrays.items()
    }


def numbered(folder: Path) -> list[tuple[int, Path]]:
    """(number, path) of what is called `round-NUMBER` in a folder, in order."""
    if not folder.is_dir():
        return []
    matches = [_STORED.fullmatch(name) for name in os.listdir(folder)]
    return sorted((int(match[1]), folder / match[0]) for match in matches if match)


# ---- points ------------------------------------------------------------------------------------


def _intervals(arrays: Mapping[int, _Arrays]) -> dict[int, tuple[Estimate, Estimate]]:
    """Score and accuracy of each round with intervals; rounds of equal size at a time."""
    by_size: dict[int, list[int]] = defaultdict(list)
    for at, found in arrays.items():
        by_size[len(found["score_E"])].append(at)
    result = {}
    for rounds in by_size.values():
        score, accuracy = (
            t_interval(np.stack([arrays[at][name] for at in rounds], axis=1).astype(np.float64))
            for name in ("score_E", "accuracy_E")
        )
        for place, at in enumerate(rounds):
            result[at] = (
                Estimate(*(float(part[place]) for part in score)),
                Estimate(*(float(part[place]) for part in accuracy)),
            )
    return result


def _point(
    at: int, members: _Members, intervals: tuple[Estimate, Estimate], summary: Row
) -> RoundPoint:
    arrays = members.arrays
    counts = summary.get("stage_counts") or ()
    seconds = summary.get("seconds")
    accuracy = summary.get("mean_train_accuracy")
    return RoundPoint(
        round=at,
        members=len(arrays["score_E"]),
        score=intervals[0],
        accuracy=intervals[1],
        best_member_score=float(np.max(arrays["score_E"])),
        train_accuracy=_NAN if accuracy is None else accuracy,
        budget=summary.get("budget", _NAN),
        spent=summary.get("spent", _NAN),
        mean_return=_mean(arrays, "return_E"),
        added_params=_mean(arrays, "added_params_E"),
        added_macs=_mean(arrays, "added_macs_E"),
        flops_ratio=_mean(arrays, "flops_ratio_E"),
        germinated=_mean(arrays, "germinated_E"),
        fossilized=_mean(arrays, "fossilized_E"),
        pruned=_mean(arrays, "pruned_E"),
        rollbacks=int(np.sum(arrays.get("rollbacks_E", 0))),
        restarts=int(np.nansum(arrays.get("restarts_E", 0))),
        stages=tuple((stage.name, int(n)) for stage, n in zip(SeedStage, counts, strict=False)),
        seconds=members.seconds if seconds is None else seconds,
        time=members.time,
    )


def _mean(arrays: _Arrays, name: str) -> float:
    return float(np.mean(arrays[name])) if name in arrays else _NAN
