"""Runs training in separate processes, to be killed, interrupted and resumed.

    python run_driver.py train ROOT ROUNDS [--every K] [--file-limit BYTES] [--step-seconds S]
    python run_driver.py resume FOLDER [ROUNDS]
    python run_driver.py kills ROOT ROUNDS KILLS SEED
    python run_driver.py serve

`train` and `resume` print the folder, then a line for each round that is done; exit status 0: done
or stopped, 2: refused. `kills` forks such processes and kills them at random moments. `serve` forks
one for each line it is sent, so that a test need not wait for torch to be imported
(`run_server.py`).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine_support import Diary
from esper.leyline import EsperError
from esper.simic.training.config import TrainingConfig
from esper.simic.training.runs.checkpoint_store import CheckpointStore, verify
from esper.simic.training.runs.folder import RunFolder
from esper.simic.training.runs.interrupts import Interrupted
from esper.simic.training.runs.resume import Resumed
from esper.simic.training.vectorized import make_trainer, train_ppo_vectorized
from esper.simic.training.vectorized_trainer import VectorizedPPOTrainer
from loop_support import tiny_config, tiny_task

EPISODE = 3
"""Steps: a round takes a few tenths of a second."""


def small_run(rounds: int, **population: Any) -> TrainingConfig:
    """Two members, and one pass over what they did."""
    config = tiny_config(rounds, envs=2, **population)
    task = replace(config.task, episode_length=EPISODE)
    return replace(config, task=task, ppo=replace(config.ppo, epochs=1))


def small_trainer(config: TrainingConfig, **settings: Any) -> VectorizedPPOTrainer:
    return make_trainer(config, spec=tiny_task(episode_length=EPISODE), **settings)


def say(line: str) -> None:
    print(line, flush=True)


def train(
    root: Path,
    rounds: int,
    every: int = 1,
    file_limit: int | None = None,
    step_seconds: float = 0.0,
) -> None:
    """A fresh run; `file_limit`: no file may grow beyond it from round 2 on."""
    config = small_run(rounds)
    with RunFolder.create(root, "driver", config) as folder:
        say(f"folder {folder.path}")
        hooks = [_report] if file_limit is None else [_Limit(file_limit), _report]
        slow = Diary(lambda record: _linger(step_seconds))
        train_ppo_vectorized(
            config,
            run_dir=folder,
            checkpoint_every=every,
            hooks=hooks,
            listeners=[slow],
            spec=tiny_task(episode_length=EPISODE),
        )


def resume(path: Path, rounds: int | None = None) -> None:
    with RunFolder.open(path) as folder:
        config = folder.config if rounds is None else replace(folder.config, rounds=rounds)
        train_ppo_vectorized(
            config,
            run_dir=folder,
            resume=True,
            hooks=[_report],
            on_begin=_say_where,
            spec=tiny_task(episode_length=EPISODE),
        )


def _say_where(resumed: Resumed) -> None:
    for note in resumed.notes:
        say(f"note {note}")
    say(f"from {resumed.trainer.engine.round}")


def _report(trainer, record) -> None:
    say(f"round {trainer.engine.round}")


def _linger(seconds: float) -> None:
    if seconds:
        say("step begun")
        time.sleep(seconds)


class _Limit:
    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, trainer, record) -> None:
        if trainer.engine.round == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, self.size))


# ---- killing ------------------------------------------------------------------------------------


def kills(root: Path, rounds: int, count: int, seed: int) -> None:
    """Kill runs `count` times at random moments; each goes on afterwards, until one is done.

    Prints the folder of every run that was finished. A round that was reported and is not in a
    whole checkpoint afterwards is an error.
    """
    chance = random.Random(seed)
    killed = 0
    while True:
        path: Path | None = None
        finished = False
        while not finished:
            limit = chance.uniform(0.0, 1.2) if killed < count else None
            reported, found, finished = _life(root, rounds, path, limit)
            killed += not finished
            path = path or found
            if path is not None:
                _require_kept(path, reported)
        say(f"finished {path}")
        if killed >= count:
            break
    say(f"killed {killed}")


def _life(
    root: Path, rounds: int, path: Path | None, limit: float | None
) -> tuple[int, Path | None, bool]:
    """One process; (rounds it reported, its folder, whether it finished) after `limit` seconds."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        os.dup2(writer, 1)
        sys.stdout = os.fdopen(1, "w")
        status = run(lambda: train(root, rounds) if path is None else resume(path))
        os._exit(status)
    os.close(writer)
    deadline = None if limit is None else time.monotonic() + limit
    told = _listen(reader, deadline)
    os.kill(child, signal.SIGKILL)
    told += _drain(reader)
    _, status = os.waitpid(child, 0)
    lines = told.decode().splitlines()
    if status not in (0, signal.SIGKILL):
        raise AssertionError(f"status {status}: {lines}")
    folders = [Path(line.removeprefix("folder ")) for line in lines if line.startswith("folder ")]
    rounds_told = [int(line.split()[1]) for line in lines if line.startswith("round ")]
    whole = told.endswith(b"\n")  # a torn last line was not reported
    last = rounds_told[-1 if whole else -2] if len(rounds_told) > (not whole) else 0
    return last, folders[0] if folders else None, status == 0


def _listen(reader: int, deadline: float | None) -> bytes:
    """What the child says, until the deadline or its end."""
    told = b""
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([reader], [], [], left)
        if not ready:
            return told
        part = os.read(reader, 65536)
        if not part:
            return told
        told += part


def _drain(reader: int) -> bytes:
    told = b""
    while part := os.read(reader, 65536):
        told += part
    os.close(reader)
    return told


def _require_kept(path: Path, reported: int) -> None:
    found = CheckpointStore(path / "checkpoints").newest_valid()
    if found.skipped:
        raise AssertionError(f"half a checkpoint: {found.skipped}")
    kept = 0 if found.path is None else verify(found.path).round
    if kept < reported:
        raise AssertionError(f"{path}: round {reported} was reported, {kept} is kept")


# ---- command line --------------------------------------------------------------------------------


def run(job: Callable[[], None]) -> int:
    try:
        job()
    except Interrupted as stop:
        say(f"stopped {stop}")
    except EsperError as error:
        print(error, file=sys.stderr, flush=True)
        return 2
    return 0


def serve(job: Callable[[dict[str, Any]], int]) -> None:
    """Fork a process for each {"output", "errors", ...}; tell how it ended for {"wait"}.

    `job`: what the process does with what it was asked; its exit status.
    """
    importlib.import_module("torch._dynamo")  # vmap would import it, in every process anew
    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            _, status = os.waitpid(asked["wait"], 0)
            say(json.dumps(os.waitstatus_to_exitcode(status)))
            continue
        child = os.fork()
        if child:
            say(json.dumps(child))
            continue
        for stream, name in ((1, "output"), (2, "errors")):
            os.dup2(os.open(asked[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os._exit(job(asked))


def main(argv: list[str] | None = None) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell ignored it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also under nohup
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=["train", "resume", "kills", "serve"])
    parser.add_argument("place", type=Path, nargs="?")
    parser.add_argument("numbers", type=int, nargs="*")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--file-limit", type=int)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    asked = parser.parse_args(argv)
    more = (asked.every, asked.file_limit, asked.step_seconds)
    jobs: dict[str, Callable[[], None]] = {
        "train": lambda: train(asked.place, *asked.numbers, *more),
        "resume": lambda: resume(asked.place, *asked.numbers),
        "kills": lambda: kills(asked.place, *asked.numbers),
        "serve": lambda: serve(lambda asked: main(asked["argv"])),
    }
    return run(jobs[asked.job])


if __name__ == "__main__":
    sys.exit(main())
