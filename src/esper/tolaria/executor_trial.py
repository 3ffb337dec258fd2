"""Which executor is faster here: a few train batches under each, in turn, before the run.

A timing may come out differently the next time, so this is for the profile `fast`; under `exact`
the rule decides (vmap where it works).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Final

import torch

from esper.kasmina.executors.choice import ExecutorChoice
from esper.kasmina.executors.loop import LoopExecutor
from esper.kasmina.executors.vmap import VmapExecutor
from esper.kasmina.population import Population

PAIRS: Final = 3
"""Timed batches under each executor, after one to warm up."""
BUDGET_SECONDS: Final = 5.0
"""No further pair is begun after this."""


def measure_executors(
    population: Population, train_batch: Callable[[], None], device: torch.device
) -> ExecutorChoice:
    """The faster of both on whole train batches, with the figures as its reason.

    `train_batch` trains one batch; the caller resets the population afterwards.
    """
    rivals = {
        "vmap": ExecutorChoice(VmapExecutor(), ""),
        "loop": ExecutorChoice(LoopExecutor(), ""),
    }
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    begun = perf_counter()
    for pair in range(PAIRS + 1):
        for name, rival in rivals.items():
            population.choice = rival
            spent = _timed(train_batch, device)
            if pair > 0 or spent > BUDGET_SECONDS / 4:  # the first pair warms up
                seconds[name].append(spent)
        if perf_counter() - begun > BUDGET_SECONDS and all(seconds.values()):
            break
    median = {name: statistics.median(values) for name, values in seconds.items()}
    best = min(median, key=lambda name: median[name])
    told = ", ".join(f"{name} {1000 * value:.1f} ms" for name, value in median.items())
    return ExecutorChoice(rivals[best].executor, f"measured: {told} a train batch")


def _timed(work: Callable[[], None], device: torch.device) -> float:
    start = perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # SYNC: before the run, to time a batch
    return perf_counter() - start
