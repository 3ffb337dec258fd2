"""Throughput with contexts and the compute clock, relative to the fixed context.

    python lab/scripts/benchmark_contexts.py                                     two CPU cores
    python lab/scripts/benchmark_contexts.py --device cuda --task cifar_baseline --data synthetic \
        --envs 64

Two engines of one process alternate rounds: the task as it is, and with contexts. Random growth in
both. Counted are batches run per second of whole steps, masked members included: a batch of E
members is E batches, however many of them train on it.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import numpy as np

from esper.leyline.compute import ComputeSettings
from esper.leyline.context import NAMED_CONTEXTS, ContextSpec
from esper.leyline.statistics import mean_estimate
from esper.scripts.cli.command import run_command
from esper.simic.agent.config import NO_PREFIX
from esper.simic.training.config import TaskConfig
from esper.tamiyo.baselines import RandomPolicy
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.engine_config import EngineConfig


@dataclass(frozen=True)
class BenchmarkContexts(ComputeSettings):
    """Compare the throughput of contexts with that of the fixed context."""

    task: Annotated[TaskConfig, NO_PREFIX] = field(default_factory=TaskConfig)
    """The task; --contexts is what the fixed one is compared with (default: varied)."""
    envs: int = 8
    """E: members."""
    pairs: int = 4
    """Rounds of each, alternating."""
    seed: int = 0
    """Of everything drawn."""
    out: Path = Path("out/benchmark_contexts.json")
    """All numbers."""


@dataclass(slots=True)
class Measured:
    """One engine and what its rounds took."""

    engine: VectorizedEngine
    batches: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def run(self, seed: int) -> None:
        """Time one round."""
        trainer = self.engine.trainer
        before, start = trainer.batches_run, time.perf_counter()
        self.engine.run_rollout(RandomPolicy(seed))
        self.seconds.append(time.perf_counter() - start)
        self.batches.append((trainer.batches_run - before) * self.engine.env.members)

    @property
    def rates(self) -> np.ndarray:
        """Batches per second of each round."""
        return np.asarray(np.array(self.batches) / np.array(self.seconds))


def benchmark(config: BenchmarkContexts) -> int:
    """Alternate rounds of both engines and print the ratio."""
    contexts: ContextSpec = config.task.contexts or NAMED_CONTEXTS["varied"]
    spec = replace(config.task, contexts=None).spec()
    settings = EngineConfig(members=config.envs, seed=config.seed, **config.compute())
    data = spec.load()
    pair = [
        Measured(VectorizedEngine(replace(spec, context=context), settings, data=data))
        for context in (NAMED_CONTEXTS["fixed"], contexts)
    ]
    for index in range(config.pairs + 1):
        for measured in pair if index % 2 else reversed(pair):
            measured.run(index)
            rate = measured.rates[-1]
            print(f"round {index}  {measured.engine.spec.context.clock:8} {rate:10.1f} batches/s")
    fixed, varied = (measured.rates[1:] for measured in pair)  # the first round warms up
    ratio = mean_estimate(varied / fixed)
    print(
        f"contexts / fixed, batches per second: {ratio.value:.3f} "
        f"({ratio.low:.3f} to {ratio.high:.3f}), {config.pairs} pairs"
    )
    config.out.parent.mkdir(parents=True, exist_ok=True)
    numbers = {
        "task": spec.name,
        "device": str(pair[0].engine.device),
        "envs": config.envs,
        "fixed_batches_per_second": fixed.tolist(),
        "contexts_batches_per_second": varied.tolist(),
        "ratio": [ratio.value, ratio.low, ratio.high],
    }
    config.out.write_text(json.dumps(numbers, indent=1) + "\n")
    return 0


def main() -> int:
    """Run the command line."""
    return run_command(BenchmarkContexts, benchmark)


if __name__ == "__main__":
    raise SystemExit(main())
