"""Play many contenders of the duel at a time on one machine: lanes of a GPU, and pairs of cores.

    python lab/scripts/duel_lanes.py --data data --out out/duel --seeds 205 206 207 --until 540

A lane of the GPU is an equal share of it (by MPS), all lanes share the first cores; a CPU lane has
two cores of its own. Every contender of a pair has a lane of the same kind, so a figure is one of a
share of the machine, equal for all. What `pairs.jsonl` has already is not played again, and nothing
is started that would not end `--until` so many seconds after the start: calls that follow each
other finish the table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

SCRIPTS: Final = Path(__file__).resolve().parents[2] / "scripts"
PROBLEMS: Final = ("cifar", "fashion", "shakespeare", "table", "mnist1d", "digits")
"""The slowest first."""
START_SECONDS: Final = 15.0
"""That a contender takes at most besides its own seconds: start, and scores on test."""


@dataclass(frozen=True, slots=True)
class Play:
    """One contender on one problem with one seed."""

    problem: str
    contender: str
    seed: int
    device: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Lane:
    """A share of the machine."""

    name: str
    device: str
    cores: tuple[int, ...]
    share: int = 100
    """Per cent of the GPU."""


def lanes(cores: Sequence[int], gpu: int, cpu: int) -> list[Lane]:
    """`gpu` lanes that share the first cores, one each at least, and `cpu` pairs of the others."""
    shared = tuple(cores[: len(cores) - 2 * cpu])
    if (gpu and len(shared) < gpu) or len(cores) < 2 * cpu:
        raise SystemExit(f"{gpu} lanes of the GPU and {cpu} pairs of cores need "
                         f"{gpu + 2 * cpu} cores; this machine has {len(cores)}")  # fmt: skip
    own = cores[len(shared) :]
    made = [Lane(f"gpu-{n}", "cuda", shared, 100 // gpu) for n in range(gpu)]
    return made + [Lane(f"cpu-{n}", "cpu", tuple(own[2 * n : 2 * n + 2])) for n in range(cpu)]


def wanted(args: argparse.Namespace, device: str, seconds: float) -> list[Play]:
    """What is still to be played on a device, pair by pair."""
    path = args.out / "pairs.jsonl"
    rows = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    done = {Play(*(row[k] for k in Play.__slots__)) for row in rows}
    every = product(args.seeds, args.problems, args.contenders)
    plays = [Play(name, contender, seed, device, seconds) for seed, name, contender in every]
    return [play for play in plays if play not in done]


def command(play: Play, lane: Lane, args: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """The command of a contender, and its environment."""
    words = ["taskset", "--cpu-list", ",".join(map(str, lane.cores)), sys.executable,
             str(SCRIPTS / "duel.py"), "--problems", play.problem, "--contenders", play.contender,
             "--seeds", str(play.seed), "--seconds", f"{play.seconds:g}", "--device", play.device,
             "--data", str(args.data), "--out", str(args.out)]  # fmt: skip
    more = {"OMP_NUM_THREADS": "1"}
    if play.device == "cuda":
        more["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(lane.share)
    return words, os.environ | more


def work(lane: Lane, plays: Iterator[Play], lock: threading.Lock, args: argparse.Namespace) -> None:
    """Play what is left in a lane, as long as there is time."""
    began = args.began
    with (args.out / f"{lane.name}.log").open("a") as log:
        while True:
            with lock:
                play = next(plays, None)
            if play is None or time.monotonic() - began + play.seconds + START_SECONDS > args.until:
                return
            words, environment = command(play, lane, args)
            code = subprocess.run(words, env=environment, stdout=log, stderr=log).returncode
            said = "" if code == 0 else f", exit status {code}: see {log.name}"
            print(f"{time.monotonic() - began:6.0f} s {lane.name} {play.problem} {play.contender} "
                  f"{play.seed}{said}", flush=True)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--contenders", nargs="+", default=["grow", "optuna"])
    parser.add_argument("--gpu-lanes", type=int, default=4)
    parser.add_argument("--gpu-seconds", type=float, default=60.0)
    parser.add_argument("--cpu-lanes", type=int, default=6)
    parser.add_argument("--cpu-seconds", type=float, default=120.0)
    parser.add_argument("--until", type=float, default=540.0)
    args = parser.parse_args(argv)
    args.began = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    made = lanes(sorted(os.sched_getaffinity(0)), args.gpu_lanes, args.cpu_lanes)
    if args.gpu_lanes:
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=False)  # it may be running
    threads = []
    for device, seconds in (("cuda", args.gpu_seconds), ("cpu", args.cpu_seconds)):
        plays, lock = iter(wanted(args, device, seconds)), threading.Lock()
        threads += [threading.Thread(target=work, args=(lane, plays, lock, args))
                    for lane in made if lane.device == device]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
