"""Measures the share of a training round that acting and updating take.

    python lab/scripts/benchmark_ppo_share.py                    digits_impaired, E=16, 5 rounds
    python lab/scripts/benchmark_ppo_share.py --device cuda --rounds 10

Runs the real trainer without telemetry. The first round warms up and is not counted. `act` is the
client's work in a step (features, network, transfer of decisions, reward and store), `update` its
work after the rollout; the rest is training of the hosts.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from esper.leyline.errors import EsperError
from esper.scripts.cli.command import run_command

if TYPE_CHECKING:
    from rich.table import Table

    from esper.simic.training.vectorized_trainer import VectorizedPPOTrainer

LIMIT: Final = 0.15
"""Maximum share of acting and updating, on digits_impaired at E=16."""


@dataclass(frozen=True, slots=True)
class BenchmarkShare:
    """Time acting and updating inside the training loop."""

    task: str = "digits_impaired"
    """The task."""
    envs: int = 16
    """E: members trained in parallel."""
    rounds: int = 5
    """Timed rounds, after one for warm-up."""
    preset: str = ""
    """Preset; default: the one named like the task, else plain."""
    episode_length: int | None = None
    """Steps per episode; default: the task's."""
    device: str = "auto"
    """cpu, cuda, cuda:<number>; auto takes a GPU if there is one."""
    threads: int = 1
    """torch CPU threads; more than one helps little on small tensors."""
    out: Path = Path("out/benchmark_ppo_share.json")
    """All numbers."""

    def check(self) -> None:
        """Check the settings."""
        for name in ("envs", "rounds", "threads"):
            if getattr(self, name) < 1:
                raise EsperError(f"--{name} {getattr(self, name)}: must be 1 or more")


@dataclass(frozen=True, slots=True)
class RoundTime:
    """Seconds per part of a round."""

    act: float
    update: float
    rest: float

    @property
    def total(self) -> float:
        """Total seconds."""
        return self.act + self.update + self.rest

    @property
    def learner_share(self) -> float:
        """Share of act and update."""
        return (self.act + self.update) / self.total


def main() -> int:
    """Entry point of the command."""
    return run_command(BenchmarkShare, benchmark)


def benchmark(config: BenchmarkShare) -> None:
    """Time the rounds, print the shares, write the numbers."""
    config.check()
    from esper.storage.atomic import require_writable, write_atomic

    require_writable(config.out, "--out")
    import torch
    from rich.console import Console

    from esper.leyline.codec import to_json
    from esper.storage.sealed_json import json_bytes
    from esper.tolaria.device_info import describe_device
    from esper.tolaria.runtime import set_deterministic_cublas

    set_deterministic_cublas()
    torch.set_num_threads(config.threads)
    trainer = make_timed_trainer(config)
    setting = describe_device(trainer.engine.device)
    print("; ".join(f"{name}: {value}" for name, value in setting.items()), flush=True)
    timed = [time_round(trainer) for _ in range(1 + config.rounds)][1:]
    console = Console() if sys.stdout.isatty() else Console(width=100)
    console.print(table_of(config, timed))
    shares = [spent.learner_share for spent in timed]
    status = "under" if max(shares) < LIMIT else "NOT always under"
    print(
        f"learner {statistics.median(shares):.1%} of a round, {status} {LIMIT:.0%} in every round"
    )
    record = {
        "setting": setting,
        "config": {"task": config.task, "envs": config.envs, "rounds": config.rounds},
        "rounds": [to_json(spent) for spent in timed],
        "learner_share": shares,
    }
    write_atomic(config.out, json_bytes(record))
    print(f"numbers: {config.out}")


def make_timed_trainer(config: BenchmarkShare) -> VectorizedPPOTrainer:
    """The trainer of `train ppo`, with one extra round for warm-up."""
    from esper.simic.training.config import PRESETS, TaskConfig, preset
    from esper.simic.training.vectorized import make_trainer

    name = config.preset or (config.task if config.task in PRESETS else "plain")
    base = preset(name, 1 + config.rounds)
    task = base.task if base.task.name == config.task else TaskConfig(config.task)
    if config.episode_length is not None:
        task = replace(task, episode_length=config.episode_length)
    population = replace(base.population, envs=config.envs, device=config.device)
    return make_trainer(replace(base, task=task, population=population))


def time_round(trainer: VectorizedPPOTrainer) -> RoundTime:
    """Time one round."""
    from time import perf_counter

    from esper.leyline.payloads import StepPhase

    engine, learner = trainer.engine, (StepPhase.ACT, StepPhase.STORE)
    before = sum(engine.phase_seconds[phase] for phase in learner)
    start = perf_counter()
    trainer.run(until=engine.round + 1)
    total = perf_counter() - start
    act = sum(engine.phase_seconds[phase] for phase in learner) - before
    update = trainer.history[-1].update_seconds
    return RoundTime(act, update, total - act - update)


def table_of(config: BenchmarkShare, timed: list[RoundTime]) -> Table:
    """Median, minimum and maximum of seconds and shares."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    title = f"{config.task}, E={config.envs}, n={len(timed)} rounds: median (least to largest)"
    table = Table(title=title, box=SIMPLE_HEAD)
    for column in ("part", "seconds", "share of the round"):
        table.add_column(column, justify="left" if column == "part" else "right")
    parts = {
        "act": [spent.act for spent in timed],
        "update": [spent.update for spent in timed],
        "act + update": [spent.act + spent.update for spent in timed],
        "rest: hosts": [spent.rest for spent in timed],
        "round": [spent.total for spent in timed],
    }
    for name, seconds in parts.items():
        shares = [part / spent.total for part, spent in zip(seconds, timed, strict=True)]
        table.add_row(name, _spread(seconds, "{:.3f}"), _spread(shares, "{:.1%}"))
    return table


def _spread(values: list[float], form: str) -> str:
    ends = (statistics.median(values), min(values), max(values))
    middle, low, high = (form.format(value) for value in ends)
    return f"{middle} ({low} to {high})"


if __name__ == "__main__":
    sys.exit(main())
