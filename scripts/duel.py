"""`esper.grow` against Optuna over a plain training loop, at equal seconds and under the same cap.

    python scripts/duel.py --problems digits --seeds 200 201 --seconds 120 --device cpu --out duel

Every finished contender of a pair is a line of OUT/pairs.jsonl; what is there is not played again.
A table of the pairs is printed at the end, and written to OUT/duel.md.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from duel_contenders import (
    Played,
    play_grow,
    play_one,
    play_optuna,
    play_static,
    play_trees,
    score_of,
    warm_up,
)
from duel_ladders import OnceLadder, RandomLadder
from duel_problems import PROBLEMS, Problem
from esper.plotting.pareto import hypervolume

CONTENDERS = ("grow", "optuna", "optuna8", "one", "random", "eager", "bare", "inherit", "once",
              "static", "trees")  # fmt: skip
"""`optuna8`: eight processes on one GPU; `one`: one run of the widest network; `random`: our
trainer with random search; `eager`: our search with a plain loop; `bare`: without seeds; `inherit`:
some networks start from the weights of others; `once`: none is trained again from other initial
weights; `static`: six widths, each with its rate and length
drawn at random; `trees`: HistGradientBoosting, on the table."""
OURS: dict[str, dict[str, Any]] = {
    "grow": {}, "random": {"ladder": RandomLadder}, "eager": {"eager": True}, "bare": {"slots": 0},
    "inherit": {"inherit": True}, "once": {"ladder": OnceLadder},
}  # fmt: skip
ALONE = {"one": play_one, "static": play_static, "trees": play_trees}
SMALLEST = 100.0
"""Parameters from which hypervolumes are counted."""
KEY = ("problem", "contender", "seed", "seconds", "device")
"""What a line of the table is about."""
RESAMPLES = 4000


def play(problem: Problem, contender: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Let a contender play, and score its incumbents on test."""
    train, val, test = problem.parts(args.data, seed)
    given = (problem, train, val, args.device, seed, args.seconds)
    if contender in OURS:
        played = play_grow(*given, **OURS[contender])
    elif contender in ALONE:
        played = ALONE[contender](*given)
    else:
        count = 8 if contender == "optuna8" else (1 if args.device.startswith("cuda") else 2)
        played = play_optuna(*given, processes=count)
    names = (problem.name, contender, seed, args.seconds, args.device)
    return dict(zip(KEY, names, strict=True)) | figures(problem, played, test)


def figures(problem: Problem, played: Played, test: Any) -> dict[str, Any]:
    """What is written down of a contender."""
    rows = [
        {"at": round(one.seconds, 2), "val": one.val, "params": one.params,
         "test": score_of(problem, one.network, test)}
        for one in played.incumbents
    ]  # fmt: skip
    pick = rows[-1] if rows else {"val": math.nan, "test": math.nan, "params": 0}
    return {"test": pick["test"], "val": pick["val"], "params": pick["params"],
            "took": round(played.seconds, 1), "runs": played.runs, "batches": played.batches,
            "volume": volume(problem, played, test), "incumbents": rows}  # fmt: skip


def volume(problem: Problem, played: Played, test: Any) -> float:
    """Hypervolume of a frontier by test scores, over that of a perfect network of no size.

    Where the score is a loss of tokens, by the probability of a token, the exponential of it.
    """
    scores = np.array([score_of(problem, one.network, test) for one in played.front])
    scores = np.exp(scores) if problem.tokens else scores
    sizes = np.array([max(SMALLEST, float(one.params)) for one in played.front])
    return hypervolume(scores, sizes, 2.0 * problem.cap, SMALLEST) if len(scores) else 0.0


def pairs(rows: Sequence[dict[str, Any]], against: str) -> dict[str, list[tuple[Any, Any]]]:
    """Rows of grow and of a contender with the same problem, seed and seconds."""
    key = ("problem", "seed", "seconds", "device")
    found = {(row["contender"], *(row[k] for k in key)): row for row in rows}
    out: dict[str, list[tuple[Any, Any]]] = {}
    for (name, *rest), row in found.items():
        other = found.get((against, *rest))
        if name == "grow" and other is not None:
            out.setdefault(f"{row['problem']}, {row['seconds']:g} s, {row['device']}", []).append(
                (row, other)
            )
    return out


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the mean."""
    rng, given = np.random.default_rng(0), np.asarray(values)
    means = given[rng.integers(0, len(given), (RESAMPLES, len(given)))].mean(1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def reached(row: dict[str, Any], score: float) -> float:
    """Seconds until the incumbent of a row is as good as a score on test; infinite: never."""
    return next((one["at"] for one in row["incumbents"] if one["test"] >= score), math.inf)


def share_of_time(row: dict[str, Any], other: dict[str, Any]) -> float:
    """Share of the other's time after which a row has reached its final score."""
    return reached(row, other["test"]) / float(other["seconds"])


def lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A table of grow against each other contender."""
    for against in CONTENDERS[1:]:
        found = pairs(rows, against)
        if not found:
            continue
        yield (f"| problem | n | grow | {against} | difference (95 %) | share of time "
               f"| hypervolume |")  # fmt: skip
        yield "|---|---|---|---|---|---|---|"
        for name, both in found.items():
            ours, theirs = ([pair[side]["test"] for pair in both] for side in (0, 1))
            gain = [a - b for a, b in zip(ours, theirs, strict=True)]
            low, high = interval(gain)
            share = np.median([share_of_time(a, b) for a, b in both])
            more = np.mean([a["volume"] - b["volume"] for a, b in both])
            yield (f"| {name} | {len(both)} | {np.mean(ours):.4f} | {np.mean(theirs):.4f} | "
                   f"{np.mean(gain):+.4f} ({low:+.4f} to {high:+.4f}) | {share:.2f} | "
                   f"{more:+.4f} |")  # fmt: skip
        every = {name: [a["test"] - b["test"] for a, b in both] for name, both in found.items()}
        low, high = overall(list(every.values()))
        mean = np.mean([np.mean(gain) for gain in every.values()])
        times = [share_of_time(a, b) for both in found.values() for a, b in both]
        yield (f"\nAll problems: {mean:+.4f} ({low:+.4f} to {high:+.4f}); median share of time "
               f"over all {len(times)} pairs {np.median(times):.2f}")  # fmt: skip
        yield ""


def overall(gains: Sequence[Sequence[float]]) -> tuple[float, float]:
    """95 % bootstrap interval of the mean over problems, over problems and seeds."""
    rng = np.random.default_rng(0)
    means = []
    for _ in range(RESAMPLES):
        some = [np.asarray(gains[place]) for place in rng.integers(0, len(gains), len(gains))]
        means.append(np.mean([gain[rng.integers(0, len(gain), len(gain))].mean() for gain in some]))
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=["grow", "optuna"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[200])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("out/duel"))
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "pairs.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    warm_up(args.device)
    for seed in args.seeds:
        for name in args.problems:
            for contender in args.contenders:
                key = (name, contender, seed, args.seconds, args.device)
                if any(tuple(row[k] for k in KEY) == key for row in rows):
                    continue
                rows.append(play(PROBLEMS[name], contender, seed, args))
                with path.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
                shown = {k: v for k, v in rows[-1].items() if k != "incumbents"}
                print(json.dumps(shown), flush=True)
    text = "\n".join(lines(rows))
    (args.out / "duel.md").write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
