"""Calibrates score constants, so that the best topology leaves a slot empty.

    python lab/scripts/search_topologies.py --task mnist1d --repeats 8 --out out/mnist1d.json
    python lab/scripts/calibrate_score.py out/mnist1d.json

Reads the output of `search_topologies` for one task (several files are merged) and scores every
topology under a grid of constants. Few members of each topology were trained, and the best of many
noisy values is biased upwards, so accuracies are first shrunk towards a linear fit with an effect
of each blueprint in each slot and of the number of filled slots.

Shape letters: K topologies, S slots, N blueprints, X terms of the fit.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import tyro

from esper.leyline.arrays import Bools, Doubles, Ints
from esper.leyline.errors import EsperError, parse_error_line, shown
from esper.scripts.cli.command import run_command
from esper.storage.sealed_json import parse_json

if TYPE_CHECKING:
    from esper.leyline.prices import ScoreConstants

EMPTY: Final = "-"
C_P: Final = (0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15,
              0.2, 0.3)  # fmt: skip
"""Grid of constants for parameters and MACs."""
C_F: Final = (0.001, 0.002, 0.005, 0.01)
"""Grid of constants for training FLOPs."""
RIDGE: Final = 1e-3
LEAST_SPREAD: Final = 0.15
"""Minimum standard deviation of topologies around the fit, relative to that of members."""


@dataclass(frozen=True)
class CalibrateScore:
    """Find score constants under which growing pays, but filling every slot is not best."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Output files of `search_topologies` for one task."""
    constants: tuple[float, float, float] | None = None
    """c_p, c_m, c_f to show; default: the task's."""
    margin: float = 0.5
    """Required lead of the best topology, in standard errors of the difference."""
    top: int = 5
    """Number of constants to show, sorted by the gain from growing."""

    def check(self) -> None:
        """Check the settings."""
        if not self.files:
            raise EsperError("calibrate_score: name at least one file of search_topologies")
        if self.top < 1 or self.margin < 0:
            raise EsperError(
                f"--top {self.top} must be 1 or more, --margin {self.margin} 0 or more"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Searched:
    """Merged search results, one row per topology."""

    task: str
    slots_K: tuple[tuple[str, ...], ...]
    """Blueprint by slot, `-` for none."""
    accuracy_K: Doubles
    """Accuracies, shrunk towards the fit."""
    error: float
    """Mean standard error of an accuracy."""
    params_K: Doubles
    """Added parameters relative to the host's; MACs likewise."""
    macs_K: Doubles
    flops_K: Doubles
    """Training FLOPs relative to the host's."""
    members_K: Ints

    @property
    def filled_K(self) -> Ints:
        """Number of filled slots."""
        import numpy as np

        return np.array([sum(kind != EMPTY for kind in slots) for slots in self.slots_K])

    @property
    def full_K(self) -> Bools:
        """Whether every slot is filled."""
        full_K: Bools = self.filled_K == len(self.slots_K[0])
        return full_K

    @property
    def alone(self) -> int:
        """Index of the host without seeds."""
        return int(self.filled_K.argmin())


@dataclass(frozen=True, slots=True)
class Verdict:
    """Ranking of topologies under some constants."""

    c_p: float
    c_m: float
    c_f: float
    best: int
    """Best topology with some but not all slots filled."""
    best_full: int
    score: float
    score_full: float
    score_host: float

    @property
    def lead(self) -> float:
        """Lead over the better of the host and the best full topology."""
        return self.score - max(self.score_full, self.score_host)


def main() -> int:
    """Entry point of the command."""
    return run_command(CalibrateScore, calibrate)


def calibrate(config: CalibrateScore) -> None:
    """Read the files, rank the constants and print a table."""
    config.check()
    found = merge([_read(path) for path in config.files])
    needed = config.margin * found.error * 2**0.5
    verdicts = [judge(found, c_p, c_m, c_f) for c_p in C_P for c_m in C_P for c_f in C_F]
    good = sorted((v for v in verdicts if v.lead >= needed), key=lambda v: v.score_host - v.score)
    print(
        f"{found.task}: {len(found.slots_K)} topologies, {found.members_K.min()} to "
        f"{found.members_K.max()} members each, standard error {found.error:.4f}; "
        f"under {len(good)} of {len(verdicts)} triples of constants the best topology leaves a "
        f"slot empty, with a lead of {needed:.4f} or more"
    )
    own = config.constants
    if own is None:
        constants = _task_constants(found.task)
        own = (constants.c_p, constants.c_m, constants.c_f)
    _show(found, [judge(found, *own), *good[: config.top]])


def judge(found: Searched, c_p: float, c_m: float, c_f: float) -> Verdict:
    """Rank the topologies under these constants."""
    import numpy as np

    score_K = found.accuracy_K - c_p * np.log2(1 + found.params_K)
    score_K = score_K - c_m * np.log2(1 + found.macs_K) - c_f * (found.flops_K - 1)
    inside_K = ~found.full_K & (found.filled_K > 0)
    best = int(np.where(inside_K, score_K, -np.inf).argmax())
    full = int(np.where(found.full_K, score_K, -np.inf).argmax())
    three = (float(score_K[i]) for i in (best, full, found.alone))
    return Verdict(c_p, c_m, c_f, best, full, *three)


def merge(records: list[dict[str, Any]]) -> Searched:
    """Merge searches of one task: means over all members, shrunk towards the fit."""
    import numpy as np

    tasks = sorted({record["task"] for record in records})
    if len(tasks) > 1:
        raise EsperError(f"searches of {' and '.join(tasks)}: give files of one task")
    rows: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for record in records:
        for row in record["topologies"]:
            rows.setdefault(tuple(row["topology"].split()), []).append(row)
    slots_K = tuple(rows)
    members = [np.array([row["members"] for row in same]) for same in rows.values()]
    means = {
        name: np.array(
            [np.average([row[name] for row in same], weights=n)
             for same, n in zip(rows.values(), members, strict=True)]
        )
        for name in ("accuracy", "params_over_host", "macs_over_host", "flops_ratio")
    }  # fmt: skip
    members_K = np.array([n.sum() for n in members])
    filled_K = np.array([sum(kind != EMPTY for kind in slots) for slots in slots_K])
    if filled_K.min() > 0 or filled_K.max() < len(slots_K[0]):
        raise EsperError(f"search of {tasks[0]}: it needs the host and a full topology")
    accuracy_K, error = _shrunk_to_fit(slots_K, means["accuracy"], members_K, _deviation(rows))
    return Searched(
        task=tasks[0],
        slots_K=slots_K,
        accuracy_K=accuracy_K,
        error=error,
        params_K=means["params_over_host"],
        macs_K=means["macs_over_host"],
        flops_K=means["flops_ratio"],
        members_K=members_K,
    )


def _deviation(rows: dict[tuple[str, ...], list[dict[str, Any]]]) -> float | None:
    """Standard deviation of a member's accuracy, pooled; None with one member per topology."""
    several = [row for same in rows.values() for row in same if row["members"] > 1]
    freedom = sum(row["members"] - 1 for row in several)
    if not freedom:
        return None
    squares = sum(
        row["accuracy_error"] ** 2 * row["members"] * (row["members"] - 1) for row in several
    )
    return float((squares / freedom) ** 0.5)


def _shrunk_to_fit(
    slots_K: tuple[tuple[str, ...], ...],
    accuracy_K: Doubles,
    members_K: Ints,
    deviation: float | None,
) -> tuple[Doubles, float]:
    """Accuracies shrunk towards the fit, and their mean standard error.

    Weights of a normal prior around the fit: more members, less shrinkage.
    """
    import numpy as np

    terms_KX = _terms(slots_K)
    weighted_KX = terms_KX * members_K[:, None]
    normal_XX = weighted_KX.T @ terms_KX + RIDGE * np.eye(terms_KX.shape[1])
    fit_K = terms_KX @ np.linalg.solve(normal_XX, weighted_KX.T @ accuracy_K)
    left_K = accuracy_K - fit_K
    freedom = max(len(slots_K) - terms_KX.shape[1], 1)
    if deviation is None:
        deviation = float(np.sqrt((left_K**2 * members_K).sum() / freedom))
    noise_K = deviation**2 / members_K
    spread = max(float((left_K**2 - noise_K).mean()), (LEAST_SPREAD * deviation) ** 2)
    belief_K = spread / (spread + noise_K)
    of_fit = deviation**2 * terms_KX.shape[1] / members_K.sum()
    return fit_K + belief_K * left_K, float(np.sqrt(belief_K * noise_K + of_fit).mean())


def _terms(slots_K: tuple[tuple[str, ...], ...]) -> Doubles:
    """Design matrix `[K, X]` of the fit: each blueprint in each slot, and the filled slots.

    With as many terms as topologies the fit would have no residual; then only the count of each
    blueprint is used, regardless of slots.
    """
    import numpy as np

    kinds = sorted({kind for slots in slots_K for kind in slots} - {EMPTY})
    found_KSN = np.array([[[kind == name for name in kinds] for kind in s] for s in slots_K], float)
    filled_K = found_KSN.sum(axis=(1, 2))
    shared_KX = np.column_stack([np.ones(len(slots_K)), filled_K**2 / len(slots_K[0])])
    if shared_KX.shape[1] + found_KSN[0].size >= len(slots_K):
        return np.column_stack([shared_KX, found_KSN.sum(axis=1)])
    return np.column_stack([shared_KX, found_KSN.reshape(len(slots_K), -1)])


def _read(path: Path) -> dict[str, Any]:
    try:
        record: Any = parse_json(path.read_bytes())
    except OSError as error:
        raise EsperError(f"{path}: cannot be read as a search ({error.strerror})") from None
    except ValueError as error:
        raise EsperError(
            f"{path}: cannot be read as a search ({parse_error_line(error)})"
        ) from None
    if not isinstance(record, dict) or not record.get("topologies"):
        raise EsperError(f"{path}: not a file of search_topologies, it lists no topologies")
    needed = {"topology", "accuracy", "accuracy_error", "params_over_host", "macs_over_host",
              "flops_ratio", "members"}  # fmt: skip
    lacking = sorted(needed - set(record["topologies"][0]))
    if lacking:
        raise EsperError(f"{path}: topologies lack {', '.join(lacking)}; search again")
    return record


def _task_constants(task: str) -> ScoreConstants:
    from esper.tasks.registry import get_task_spec
    from esper.tasks.task_files import is_file_reference

    if is_file_reference(task):  # untrusted: only the search files name it
        raise EsperError(f"the searches are of the task file {shown(task)}: give --constants")
    return get_task_spec(task).score


def _show(found: Searched, verdicts: list[Verdict]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{found.task}: given constants first", box=SIMPLE_HEAD)
    for name in ("c_p, c_m, c_f", "best inside", "score", "best full", "score", "host", "lead"):
        table.add_column(name, justify="left" if name.startswith("best") else "right")
    for v in verdicts:
        table.add_row(
            f"{v.c_p:g}, {v.c_m:g}, {v.c_f:g}",
            " ".join(found.slots_K[v.best]),
            f"{v.score:.3f}",
            " ".join(found.slots_K[v.best_full]),
            f"{v.score_full:.3f}",
            f"{v.score_host:.3f}",
            f"{v.lead:+.4f}",
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    sys.exit(main())
