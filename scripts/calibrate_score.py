"""Under which score constants the best topology leaves a slot empty: what searches found, judged.

    python scripts/search_topologies.py --task mnist1d --repeats 8 --out out/mnist1d.json
    python scripts/calibrate_score.py out/mnist1d.json

Reads what `search_topologies` wrote for one task (several files are merged) and scores every
topology under a grid of constants. Few members of each topology were trained, and the best of many
noisy figures flatters itself, so accuracies are first drawn towards a fit: an effect of each
blueprint in each slot, and one of how many slots are filled.

Shape letters: K topologies, S slots, N blueprints, X terms of the fit.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import tyro

from esper.leyline.arrays import Bools, Doubles, Ints
from esper.leyline.errors import EsperError, reason_of, shown
from esper.scripts.cli.command import run_command
from esper.storage.sealed_json import parse_json

if TYPE_CHECKING:
    from esper.leyline.prices import ScoreConstants

EMPTY: Final = "-"
C_P: Final = (0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15,
              0.2, 0.3)  # fmt: skip
"""Constants that are tried, for parameters and for MACs."""
C_F: Final = (0.001, 0.002, 0.005, 0.01)
"""The same for training FLOPs."""
RIDGE: Final = 1e-3
LEAST_SPREAD: Final = 0.15
"""Deviation of topologies around the fit, over that of members: never taken to be less."""


@dataclass(frozen=True)
class CalibrateScore:
    """Find score constants under which growing pays, and filling every slot does not pay best."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """What `search_topologies` wrote for one task."""
    constants: tuple[float, float, float] | None = None
    """c_p, c_m, c_f to look at; those of the task where not given."""
    margin: float = 0.5
    """How far the best topology must lead, in standard errors of the difference."""
    top: int = 5
    """Constants that are shown, those under which growing pays most first."""

    def check(self) -> None:
        """Refuse what cannot be judged."""
        if not self.files:
            raise EsperError("calibrate_score: name at least one file of search_topologies")
        if self.top < 1 or self.margin < 0:
            raise EsperError(
                f"--top {self.top} must be 1 or more, --margin {self.margin} 0 or more"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Searched:
    """What a search found, topologies in rows."""

    task: str
    slots_K: tuple[tuple[str, ...], ...]
    """Blueprint by slot, `-` for none."""
    accuracy_K: Doubles
    """Drawn towards the fit."""
    error: float
    """Standard error of an accuracy, on average over topologies."""
    params_K: Doubles
    """Added, over the host's; MACs the same."""
    macs_K: Doubles
    flops_K: Doubles
    """Training FLOPs over the host's alone."""
    members_K: Ints

    @property
    def filled_K(self) -> Ints:
        """Slots that hold something."""
        import numpy as np

        return np.array([sum(kind != EMPTY for kind in slots) for slots in self.slots_K])

    @property
    def full_K(self) -> Bools:
        """Topologies without an empty slot."""
        full_K: Bools = self.filled_K == len(self.slots_K[0])
        return full_K

    @property
    def alone(self) -> int:
        """The host without seeds."""
        return int(self.filled_K.argmin())


@dataclass(frozen=True, slots=True)
class Verdict:
    """What constants make of a search."""

    c_p: float
    c_m: float
    c_f: float
    best: int
    """The best topology that is neither the host alone nor full."""
    best_full: int
    score: float
    score_full: float
    score_alone: float

    @property
    def lead(self) -> float:
        """Over the host alone or the best full topology, whichever is nearer."""
        return self.score - max(self.score_full, self.score_alone)


def main() -> int:
    """The command."""
    return run_command(CalibrateScore, calibrate)


def calibrate(config: CalibrateScore) -> None:
    """Read, judge, show."""
    config.check()
    found = merge([_read(path) for path in config.files])
    needed = config.margin * found.error * 2**0.5
    verdicts = [judge(found, c_p, c_m, c_f) for c_p in C_P for c_m in C_P for c_f in C_F]
    good = sorted((v for v in verdicts if v.lead >= needed), key=lambda v: v.score_alone - v.score)
    print(
        f"{found.task}: {len(found.slots_K)} topologies, {found.members_K.min()} to "
        f"{found.members_K.max()} members each, standard error {found.error:.4f}; "
        f"{len(good)} of {len(verdicts)} triples of constants put the best inside by {needed:.4f}"
    )
    own = config.constants
    if own is None:
        constants = _task_constants(found.task)
        own = (constants.c_p, constants.c_m, constants.c_f)
    _show(found, [judge(found, *own), *good[: config.top]])


def judge(found: Searched, c_p: float, c_m: float, c_f: float) -> Verdict:
    """Who leads under these constants."""
    import numpy as np

    score_K = found.accuracy_K - c_p * np.log2(1 + found.params_K)
    score_K = score_K - c_m * np.log2(1 + found.macs_K) - c_f * (found.flops_K - 1)
    inside_K = ~found.full_K & (found.filled_K > 0)
    best = int(np.where(inside_K, score_K, -np.inf).argmax())
    full = int(np.where(found.full_K, score_K, -np.inf).argmax())
    three = (float(score_K[i]) for i in (best, full, found.alone))
    return Verdict(c_p, c_m, c_f, best, full, *three)


def merge(records: list[dict[str, Any]]) -> Searched:
    """One search out of several of the same task: means over all members, drawn to the fit."""
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
        raise EsperError(f"search of {tasks[0]}: it needs the host alone and a full topology")
    accuracy_K, error = _drawn_to_fit(slots_K, means["accuracy"], members_K, _deviation(rows))
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
    """Of one member's accuracy, pooled over topologies; None where each has one member."""
    several = [row for same in rows.values() for row in same if row["members"] > 1]
    freedom = sum(row["members"] - 1 for row in several)
    if not freedom:
        return None
    squares = sum(
        row["accuracy_error"] ** 2 * row["members"] * (row["members"] - 1) for row in several
    )
    return float((squares / freedom) ** 0.5)


def _drawn_to_fit(
    slots_K: tuple[tuple[str, ...], ...],
    accuracy_K: Doubles,
    members_K: Ints,
    deviation: float | None,
) -> tuple[Doubles, float]:
    """Accuracies between what was measured and what the fit says, and their mean error.

    The weights are those of a normal prior around the fit: the more members, the more is believed.
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
    """What the fit may use `[K, X]`: each blueprint in each slot, and how many slots are filled.

    A fit of as many terms as topologies would say that nothing is noise. Then slots are not told
    apart: a blueprint counts as often as it stands.
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
        raise EsperError(f"{path}: cannot be read as a search ({reason_of(error)})") from None
    if not isinstance(record, dict) or not record.get("topologies"):
        raise EsperError(f"{path}: not a file of search_topologies, it lists no topologies")
    needed = {"topology", "accuracy", "accuracy_error", "params_over_host", "macs_over_host",
              "flops_ratio", "members"}  # fmt: skip
    lacking = sorted(needed - set(record["topologies"][0]))
    if lacking:
        raise EsperError(f"{path}: topologies lack {', '.join(lacking)}; search again")
    return record


def _task_constants(task: str) -> ScoreConstants:
    from esper.tasks.outside import is_file_reference
    from esper.tasks.registry import get_task_spec

    if is_file_reference(task):  # it would be run, and only the searches name it
        raise EsperError(f"the searches are of the task file {shown(task)}: give --constants")
    return get_task_spec(task).score


def _show(found: Searched, verdicts: list[Verdict]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{found.task}: first the constants asked for", box=SIMPLE_HEAD)
    for name in ("c_p, c_m, c_f", "best inside", "score", "best full", "score", "host", "lead"):
        table.add_column(name, justify="left" if name.startswith("best") else "right")
    for v in verdicts:
        table.add_row(
            f"{v.c_p:g}, {v.c_m:g}, {v.c_f:g}",
            " ".join(found.slots_K[v.best]),
            f"{v.score:.3f}",
            " ".join(found.slots_K[v.best_full]),
            f"{v.score_full:.3f}",
            f"{v.score_alone:.3f}",
            f"{v.lead:+.4f}",
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    sys.exit(main())
