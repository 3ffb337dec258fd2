"""How much of a round is the learner's: acting and updating, beside training the hosts.

    python scripts/benchmark_ppo_share.py                    digits_impaired, E=16, 5 rounds
    python scripts/benchmark_ppo_share.py --device cuda --rounds 10

The real trainer runs, telemetry off. One round warms up and is not counted. `act` is what the
client does inside a step (features, network, the transfer of decisions, reward and store), `update`
what it does behind the rollout; the rest is the hosts'.
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
"""The most of a round that may be the learner's, on digits_impaired at E=16."""


@dataclass(frozen=True, slots=True)
class BenchmarkShare:
    """Time the learner inside the loop."""

    task: str = "digits_impaired"
    """What is trained on."""
    envs: int = 16
    """E: members that train side by side."""
    rounds: int = 5
    """Timed rounds; one more warms up."""
    preset: str = ""
    """Settings of the learner, by name; those named like the task, else plain."""
    episode_length: int | None = None
    """Steps of an episode; the task's own where not given."""
    device: str = "auto"
    """cpu, cuda, cuda:<number>; auto takes a GPU where there is one."""
    threads: int = 1
    """CPU threads torch may use; on tensors this small a second one brings little."""
    out: Path = Path("out/benchmark_ppo_share.json")
    """All numbers."""

    def check(self) -> None:
        """Refuse what cannot be timed."""
        for name in ("envs", "rounds", "threads"):
            if getattr(self, name) < 1:
                raise EsperError(f"--{name} {getattr(self, name)}: must be 1 or more")


@dataclass(frozen=True, slots=True)
class RoundTime:
    """Where the seconds of one round went."""

    act: float
    update: float
    rest: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.act + self.update + self.rest

    @property
    def learner_share(self) -> float:
        """act and update over all."""
        return (self.act + self.update) / self.total


def main() -> int:
    """The command."""
    return run_command(BenchmarkShare, benchmark)


def benchmark(config: BenchmarkShare) -> None:
    """Time the rounds, print the shares, write the numbers."""
    config.check()
    from esper.storage.atomic import require_writable, write_atomic

    require_writable(config.out, "--out")
    import torch
    from rich.console import Console

    from esper.leyline.codec import to_json
    from esper.scripts.cli.report_files import json_bytes
    from esper.tolaria.machine import ask_for_exact_sums, describe

    ask_for_exact_sums()
    torch.set_num_threads(config.threads)
    trainer = make_timed_trainer(config)
    setting = describe(trainer.engine.device)
    print("; ".join(f"{name}: {value}" for name, value in setting.items()), flush=True)
    timed = [time_round(trainer) for _ in range(1 + config.rounds)][1:]
    console = Console() if sys.stdout.isatty() else Console(width=100)
    console.print(table_of(config, timed))
    shares = [spent.learner_share for spent in timed]
    said = "under" if max(shares) < LIMIT else "NOT always under"
    print(f"learner {statistics.median(shares):.1%} of a round, {said} {LIMIT:.0%} in every round")
    record = {
        "setting": setting,
        "config": {"task": config.task, "envs": config.envs, "rounds": config.rounds},
        "rounds": [to_json(spent) for spent in timed],
        "learner_share": shares,
    }
    write_atomic(config.out, json_bytes(record))
    print(f"numbers: {config.out}")


def make_timed_trainer(config: BenchmarkShare) -> VectorizedPPOTrainer:
    """The trainer as `train ppo` makes it, with a round to warm up."""
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
    """One round of the run."""
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
    """Seconds and shares: median, least, largest."""
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
