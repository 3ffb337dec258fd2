"""Lists runs of `esper.grow` from their folders, without importing torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esper.leyline.codec import Json
from esper.leyline.errors import EsperError
from esper.simic.training.runs.folder import GROW, is_grow_run
from esper.simic.training.runs.listing import RunState, run_folders
from esper.storage.folder_lock import is_locked
from esper.storage.run_files import RESULT as RESULT
from esper.storage.run_files import SEARCH as SEARCH
from esper.storage.sealed_json import read_document


@dataclass(frozen=True, slots=True)
class ListedGrowRun:
    """One run of the list; None: not known."""

    path: Path
    state: RunState
    problem: str
    """Why the folder cannot be read; empty if it can."""
    created: str = ""
    """In UTC."""
    model: str | None = None
    seed: int | None = None
    metric: str | None = None
    verdict: str | None = None
    params: int | None = None
    """Of the pick."""
    score: float | None = None
    """Of the pick on test."""
    host_score: float | None = None
    """Of the model as it was given."""
    runs: float | None = None
    """Compute spent, in training runs of the model."""
    budget_runs: float | None = None


def list_grow_runs(root: Path) -> list[ListedGrowRun]:
    """List all runs of `esper.grow` in `root`, oldest first."""
    found = [listed_grow_run(path) for path in run_folders(root) if is_grow_run(path)]
    return sorted(found, key=lambda run: (run.created, run.path.name))


def listed_grow_run(path: Path) -> ListedGrowRun:
    """Read the state and the outcome of one run."""
    running = is_locked(path)
    try:
        known = _facts(path)
    except (EsperError, OSError) as error:
        # Its files are written a moment after the folder and its lock.
        missing = running and not (path / GROW).exists()
        state = RunState.RUNNING if missing else RunState.BROKEN
        return ListedGrowRun(path, state, "" if missing else str(error))
    complete = known.pop("complete")
    if running:
        state = RunState.RUNNING
    elif complete is None:  # ended without a result
        state = RunState.CRASHED
    else:
        state = RunState.FINISHED if complete else RunState.INTERRUPTED
    return ListedGrowRun(path, state, "", **known)


def _facts(path: Path) -> dict[str, Any]:
    info = _read(path / GROW)
    known: dict[str, Any] = {
        "created": str(info.get("created", "")),
        "model": info.get("model"),
        "seed": info.get("seed"),
        "metric": info.get("metric"),
        "budget_runs": info.get("runs"),
        "complete": None,
    }
    if not (path / RESULT).exists():
        return known | {"runs": _runs_so_far(path, info)}
    result = _read(path / RESULT)
    networks, host = result.get("networks"), result.get("host")
    if not isinstance(networks, list) or not isinstance(host, dict):
        raise EsperError(f"{path / RESULT} is damaged: it has no networks")
    every = [n for n in (*networks, host) if isinstance(n, dict)]
    pick = next((n for n in every if n.get("number") == result.get("pick")), {})
    return known | {
        "complete": bool(result.get("complete")),
        "verdict": result.get("verdict"),
        "runs": _number(result.get("runs")),
        "params": pick.get("params"),
        "score": _number(pick.get("test_score")),
        "host_score": _number(host.get("test_score")),
    }


def _runs_so_far(path: Path, info: Mapping[str, Json]) -> float:
    if not (path / SEARCH).exists():
        return 0.0
    spent, length = _number(_read(path / SEARCH).get("compute")), _number(info.get("length"))
    return spent / length if spent and length else 0.0


def _read(path: Path) -> Mapping[str, Json]:
    document = read_document(path)
    if not isinstance(document, dict):
        raise EsperError(f"{path} is damaged: it holds no record")
    return document


def _number(value: Json) -> float | None:
    """None for NaN, which records hold as text."""
    return float(value) if isinstance(value, int | float) else None
