"""Times the rounds of distributed PPO: what a rank computes, and what it waits for the others.

    python scripts/benchmark_ranks.py --envs 8
    torchrun --standalone --nproc-per-node 2 scripts/benchmark_ranks.py --envs 8

`envs` are the members of one rank. The first round is left out. Prints one line of JSON: medians
over rounds of the wall and CPU seconds of a rank (rollout, update), and member-steps per second of
all ranks.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import tyro

from esper.simic.distributed import join_world, world_size
from esper.simic.distributed.ranks import ALONE
from esper.simic.training.config import preset
from esper.simic.training.vectorized import make_trainer

if TYPE_CHECKING:
    from esper.simic.training.history import RoundRecord
    from esper.simic.training.vectorized_trainer import VectorizedPPOTrainer


@dataclass(frozen=True, slots=True)
class RankBench:
    """Time the rounds of distributed PPO."""

    preset: str = "digits_impaired"
    """Settings of the run."""
    envs: int = 8
    """Members of one rank."""
    rounds: int = 4
    """Rounds, of which the first is left out."""
    episode_length: int = 8
    """Steps of an episode."""
    device: str = "cpu"
    """Device of the ranks."""


def main(bench: RankBench) -> None:
    """Run one rank."""
    with contextlib.ExitStack() as stack:
        world = stack.enter_context(join_world()) if world_size() > 1 else None
        ranks = world or ALONE
        config = preset(bench.preset, bench.rounds)
        people = replace(
            config.population, envs=bench.envs * ranks.size, device=bench.device, executor="loop"
        )
        task = replace(config.task, episode_length=bench.episode_length)
        cpu = [time.process_time()]

        def note_cpu(trainer: VectorizedPPOTrainer, record: RoundRecord) -> None:
            cpu.append(time.process_time())

        config = replace(config, population=people, task=task)
        trainer = make_trainer(config, hooks=[note_cpu], world=world)
        began = time.perf_counter()
        history = trainer.run(1)
        first = time.perf_counter() - began
        began = time.perf_counter()
        history = trainer.run()
        wall = (time.perf_counter() - began) / (bench.rounds - 1)
        own = [
            statistics.median(record.rollout_seconds for record in history[1:]),
            statistics.median(record.update_seconds for record in history[1:]),
            statistics.median(np.diff(cpu[1:])),
        ]
        rollout, update, cpu_seconds = ranks.gather(np.array([own])).max(axis=0).tolist()
        if not ranks.rank:
            steps = bench.envs * ranks.size * bench.episode_length
            line = {
                "ranks": ranks.size, "envs": bench.envs, "first": first, "round": wall,
                "rollout": rollout, "update": update, "cpu": cpu_seconds, "rate": steps / wall,
            }  # fmt: skip
            print(json.dumps({k: round(v, 4) for k, v in line.items()}))


if __name__ == "__main__":
    main(tyro.cli(RankBench))
