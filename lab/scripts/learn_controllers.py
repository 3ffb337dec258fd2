"""Train controllers of several seeds side by side on one device, in calls that follow each other.

    python lab/scripts/learn_controllers.py --seeds 1000 1001 --out out/learn --until 540 -- \\
        --task digits_tiny8 --contexts lab/contexts/restarts_long.json --envs 128 --device cuda

What stands after `--` are settings of `esper train ppo`. Each seed trains in a process of its own
(on a GPU by MPS); after `--until` seconds all are asked to save and stop, and the same command
resumes those that are not done. Then the learning curve is printed: training scores, in blocks of
rounds, with 95 % intervals over seeds.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, NoReturn, TextIO

import numpy as np

from esper.karn import views
from esper.leyline.statistics import Estimate, student_estimate

SAVING_SECONDS: Final = 60.0
"""After which a run that was asked to stop is killed; it resumes from its last checkpoint."""
LINE_SECONDS: Final = 30.0
BLOCKS: Final = 10
"""Of rounds, in the curve."""


@dataclass(eq=False)
class Learner:
    """The run of one seed, in a folder of its own."""

    seed: int
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def run(self) -> views.RunSummary | None:
        """What its folder says."""
        return next(iter(views.list_runs(self.folder)), None) if self.folder.is_dir() else None

    @property
    def done(self) -> bool:
        """Whether all its rounds are trained and it is judged."""
        return self.run is not None and self.run.state is views.RunState.FINISHED

    def start(self, settings: Sequence[str], log: TextIO) -> None:
        """Begin, or resume what was begun."""
        run = self.run
        self.folder.mkdir(parents=True, exist_ok=True)
        if run is not None:
            words = ["--resume", str(run.path)]
        else:
            words = [*settings, "--seed", str(self.seed), "--runs", str(self.folder)]
        command = [sys.executable, "-m", "esper.scripts.main", "train", "ppo", *words, "--quiet"]
        # A session of its own: Ctrl-C reaches this script alone, which asks each once to save.
        self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def scores(self) -> list[float]:
        """Mean training score of every round."""
        run = self.run
        return [] if run is None else [row.score.value for row in views.read_rounds(run.path)]


def train(learners: Sequence[Learner], settings: Sequence[str], until: float, out: Path) -> None:
    """Train all that are not done, until `until` (of `time.monotonic()`)."""
    began = time.monotonic()
    with (out / "learn.log").open("a") as log, _exit_by_signals():
        try:
            for one in learners:
                one.start(settings, log)
            while any(one.process and one.process.poll() is None for one in learners):
                if time.monotonic() > until:
                    break
                time.sleep(min(LINE_SECONDS, max(0.1, until - time.monotonic())))
                said = ", ".join(f"{one.seed}: {len(one.scores())} rounds" for one in learners)
                print(f"{time.monotonic() - began:6.0f} s  {said}", flush=True)
        finally:
            stop(learners)


@contextlib.contextmanager
def _exit_by_signals() -> Iterator[None]:
    """A kill or a hang-up ends this script as Ctrl-C does, so that it stops its trainings."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    heard = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in heard:  # not where nohup has it ignored
        signal.signal(number, _exit)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, before[number])


def _exit(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def stop(learners: Sequence[Learner]) -> None:
    """Ask all to save and stop, and wait for them."""
    running = [one.process for one in learners if one.process and one.process.poll() is None]
    for process in running:
        process.send_signal(signal.SIGTERM)
    for process in running:
        try:
            process.wait(SAVING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def curve(scores_by_seed: Sequence[Sequence[float]]) -> Iterator[tuple[int, int, Estimate]]:
    """First and last round of each block, and the mean over seeds with its interval."""
    rounds = min(map(len, scores_by_seed), default=0)
    edges = np.unique(np.linspace(0, rounds, min(BLOCKS, rounds) + 1).round().astype(int))
    scores_NR = np.array([scores[:rounds] for scores in scores_by_seed])
    for first, end in pairwise(edges):
        yield int(first) + 1, int(end), student_estimate(scores_NR[:, first:end].mean(axis=1))


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    end = words.index("--") if "--" in words else len(words)
    own, settings = words[:end], words[end + 1 :]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--until", type=float, default=math.inf)
    args = parser.parse_args(own)
    until = time.monotonic() + args.until
    args.out.mkdir(parents=True, exist_ok=True)
    if "cuda" in settings and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=False)
    learners = [Learner(seed, args.out / str(seed)) for seed in args.seeds]
    train([one for one in learners if not one.done], settings, until, args.out)
    for first, last, found in curve([one.scores() for one in learners]):
        ends = f"({found.low:.4f} to {found.high:.4f})"
        print(f"rounds {first:4} to {last:4}: {found.value:.4f} {ends}")
    return 0 if all(one.done for one in learners) else 1


if __name__ == "__main__":
    raise SystemExit(main())
