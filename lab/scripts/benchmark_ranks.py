"""Times the rounds of distributed PPO: what a rank computes, and what it waits for the others.

    python lab/scripts/benchmark_ranks.py --envs 8
    torchrun --standalone --nproc-per-node 2 lab/scripts/benchmark_ranks.py --envs 8
    torchrun ... lab/scripts/benchmark_ranks.py --slow-seconds 0.5 --cut-stragglers 0.5

`envs` are the members of one rank; `slow_seconds` makes a straggler of the last one. The first
round is left out. Prints one line of JSON: medians over rounds of the wall and CPU seconds of a
rank (rollout, update), member-steps per second of all ranks, steps taken and cut in a round, and
the messages of rank 0 in a round, with the bytes that it gives to each.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.distributed as dist
import tyro

from esper.simic.distributed import join_world, world_size
from esper.simic.distributed.ranks import SINGLE_PROCESS
from esper.simic.training.config import preset
from esper.simic.training.vectorized import make_trainer

if TYPE_CHECKING:
    from collections.abc import Callable

    from esper.leyline.payloads import SlotPayload
    from esper.leyline.records import Rollout, StepRecord
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
    slow_seconds: float = 0.0
    """Seconds that the last rank sleeps after each step."""
    cut_stragglers: float | None = None
    """Share of the ranks whose end cuts the others; default: none is cut."""


class Straggler:
    """Listener that sleeps after each step."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_step(self, record: StepRecord) -> None:
        """Sleep."""
        time.sleep(self.seconds)

    def on_round_start(self, round_index: int, members: int) -> None:
        """No-op."""

    def on_slot_events(self, round_index: int, step: int, payload: SlotPayload) -> None:
        """No-op."""

    def on_round_end(self, rollout: Rollout[object]) -> None:
        """No-op."""


class Messages:
    """Counts collectives, and the bytes of the tensor that this rank gives to each."""

    def __init__(self) -> None:
        self.count = self.bytes = 0
        for name, argument in (("all_reduce", 0), ("all_gather", 1), ("broadcast", 0)):
            setattr(dist, name, self._counted(getattr(dist, name), argument))

    def _counted(self, send: Callable[..., Any], argument: int) -> Callable[..., Any]:
        def count(*arguments: Any) -> Any:
            self.count += 1
            self.bytes += arguments[argument].nbytes
            return send(*arguments)

        return count


def main(bench: RankBench) -> None:
    """Run one rank."""
    messages = Messages()
    with contextlib.ExitStack() as stack:
        world = stack.enter_context(join_world()) if world_size() > 1 else None
        ranks = world or SINGLE_PROCESS
        config = preset(bench.preset, bench.rounds)
        people = replace(
            config.population, envs=bench.envs * ranks.size, device=bench.device, executor="loop"
        )
        task = replace(config.task, episode_length=bench.episode_length)
        cpu = [time.process_time()]

        def note_cpu(trainer: VectorizedPPOTrainer, record: RoundRecord) -> None:
            cpu.append(time.process_time())

        config = replace(config, population=people, task=task, cut_stragglers=bench.cut_stragglers)
        slow = bench.slow_seconds > 0 and ranks.rank == ranks.size - 1
        listeners = [Straggler(bench.slow_seconds)] if slow else []
        trainer = make_trainer(config, listeners=listeners, hooks=[note_cpu], world=world)
        began = time.perf_counter()
        history = trainer.run(1)
        first = time.perf_counter() - began
        messages.count = messages.bytes = 0
        began = time.perf_counter()
        history = trainer.run()
        wall = (time.perf_counter() - began) / (bench.rounds - 1)
        sent = [total / (bench.rounds - 1) for total in (messages.count, messages.bytes)]
        own = [
            statistics.median(record.rollout_seconds for record in history[1:]),
            statistics.median(record.update_seconds for record in history[1:]),
            statistics.median(np.diff(cpu[1:])),
        ]
        rollout, update, cpu_seconds = ranks.gather(np.array([own])).max(axis=0).tolist()
        if not ranks.rank:
            rounds = history[1:]
            steps = sum(int(record.steps_E.sum()) for record in rounds) / len(rounds)
            cut = sum(record.cut_steps for record in rounds) / len(rounds)
            line = {
                "ranks": ranks.size, "envs": bench.envs, "first": first, "round": wall,
                "rollout": rollout, "update": update, "cpu": cpu_seconds, "rate": steps / wall,
                "steps": steps, "cut_steps": cut, "messages": sent[0], "bytes": sent[1],
            }  # fmt: skip
            print(json.dumps({k: round(v, 4) for k, v in line.items()}))


if __name__ == "__main__":
    main(tyro.cli(RankBench))
