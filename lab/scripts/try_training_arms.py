"""Would averaging of weights, or distillation, help `esper.grow`? At equal seconds, on one network.

    python lab/scripts/try_training_arms.py --problems digits --seeds 10 11 12 --seconds 20

The network is the widest under the cap of a problem of `scripts/duel_problems.py`; all arms train
it with one recipe. On a CPU the seconds are those that the thread computed. Every finished arm is a
line of OUT/arms.jsonl; what is there is not trained again. A table of differences to `plain` is
printed at the end, and written to OUT/arms.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from arms_training import Bench, Pace, Trained  # first: it adds scripts/ to the path
from duel import interval
from duel_contenders import count, score_of
from duel_problems import PROBLEMS

HELD: Final = 0.3
"""Share of the peak rate that `ema-constant` holds in the last half."""
KEY: Final = ("problem", "arm", "seed", "seconds", "device")
"""What a line is about."""
TUNING_SEEDS: Final = range(10, 100)


# ---- arms ------------------------------------------------------------------------------------


def one_run(bench: Bench, **settings: Any) -> Trained:
    """One run of all seconds."""
    return bench.train(bench.width, bench.seed, bench.seconds, **settings)


def distilled(bench: Bench, wider: int, share: float) -> Trained:
    """A teacher for a share of the seconds, then a student of it."""
    teacher = bench.train(wider * bench.width, bench.seed + 1000, share * bench.seconds)
    found = one_run(bench, teacher=teacher.network)
    return found._replace(batches=teacher.batches + found.batches)


def soup(bench: Bench) -> Trained:
    """The better of two runs on validation, as restarts choose."""
    runs = [bench.train(bench.width, bench.seed + 1000 * n, (n + 1) * bench.seconds / 2)
            for n in (0, 1)]  # fmt: skip
    best = max(runs, key=lambda run: score_of(bench.problem, run.network, bench.parts[1]))
    return best._replace(batches=sum(run.batches for run in runs))


ARMS: Final[dict[str, Callable[[Bench], Trained]]] = {
    "plain": one_run,
    "ema": partial(one_run, ema=True),
    "ema-constant": partial(one_run, ema=True, since=0.5, share=HELD),
    "swa": partial(one_run, swa=True, since=0.75),
    "distill": partial(distilled, wider=2, share=0.4),
    "born-again": partial(distilled, wider=1, share=0.5),
    "soup": soup,
}


def play(bench: Bench, arm: str, key: tuple[object, ...]) -> dict[str, Any]:
    """Train an arm, and score it."""
    bench.began = bench.now()
    found = ARMS[arm](bench)
    out = dict(zip(KEY, key, strict=True)) | {"took": round(bench.now() - bench.began, 2)}
    for name, network in (("", found.network), ("last_", found.last)):
        for part, data in zip(("val", "test"), bench.parts[1:], strict=True):
            out[name + part] = score_of(bench.problem, network, data)
    return out | {"params": count(found.network), "batches": found.batches,
                  "augment": bench.augment, "captured": bench.captured}  # fmt: skip


def lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A table of each arm against `plain` with the same problem, seed and seconds."""
    yield "| arm | n | test | to plain, test | to plain, val | to its last weights | batches | s |"
    yield "|---|---|---|---|---|---|---|---|"
    base = {tuple(row[k] for k in KEY if k != "arm"): row for row in rows if row["arm"] == "plain"}
    groups: dict[str, list[tuple[Any, Any]]] = {}
    for row in rows:
        other = base.get(tuple(row[k] for k in KEY if k != "arm"))
        if other is not None:
            name = f"{row['problem']}, {row['seconds']:g} s, {row['device']}: {row['arm']}"
            groups.setdefault(name, []).append((row, other))
    for name, both in groups.items():
        gains = [[a[part] - b[part] for a, b in both] for part in ("test", "val")]
        gains.append([a["test"] - a["last_test"] for a, _ in both])
        said = " | ".join("{:+.4f} ({:+.4f} to {:+.4f})".format(np.mean(gain), *interval(gain))
                          for gain in gains)  # fmt: skip
        test, batches, took = (
            np.mean([a[k] for a, _ in both]) for k in ("test", "batches", "took")
        )
        yield f"| {name} | {len(both)} | {test:.4f} | {said} | {batches:.0f} | {took:.1f} |"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("out/arms"))
    args = parser.parse_args(argv)
    for seed in args.seeds:
        if seed not in TUNING_SEEDS:
            parser.error(f"--seeds {seed}: tuning seeds are 10 to 99; others judge the duel")
    device = torch.device("cuda:0" if args.device == "cuda" else args.device)
    args.out.mkdir(parents=True, exist_ok=True)
    path, paces = args.out / "arms.jsonl", dict[tuple[object, ...], Pace]()
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {tuple(row[k] for k in KEY) for row in rows}
    for seed in args.seeds:
        for problem in (PROBLEMS[name] for name in args.problems):
            parts = problem.parts(args.data, seed)
            bench = Bench(problem, parts, seed, args.seconds, device, paces)
            for arm in args.arms:
                key = (problem.name, arm, seed, args.seconds, args.device)
                if key in done:
                    continue
                rows.append(play(bench, arm, key))
                with path.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
                print(json.dumps(rows[-1]), flush=True)
    text = "\n".join(lines(rows))
    (args.out / "arms.md").write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
