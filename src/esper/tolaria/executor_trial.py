"""Which executor is faster here, with whose kernels: a few train batches under each, in turn.

It happens before a run. A timing may come out differently the next time, so this is for the
profile `fast`; under `exact` the rule decides (vmap where it works, our own kernels where they
run). Where a run replays captured batches, captured batches are what is timed.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final

import torch

from esper.device.graphs import Recorder
from esper.kasmina.executors.base import Executor, KernelName
from esper.kasmina.executors.choice import ExecutorChoice
from esper.kasmina.executors.loop import LoopExecutor
from esper.kasmina.executors.vmap import VmapExecutor
from esper.kasmina.population import Population

WHOSE: Final[dict[KernelName, str]] = {
    "own": "vmap with our kernels",
    "torch": "vmap with torch's",
}
PAIRS: Final = 3
"""Timed batches under each rival, after one to warm up."""
BUDGET_SECONDS: Final = 5.0
"""No further turn is begun after this, but for the first that counts."""


def measure_executors(
    population: Population,
    train_batch: Callable[[], None],
    device: torch.device,
    kernels: Sequence[KernelName] = ("own",),
    recorder: Recorder | None = None,
) -> ExecutorChoice:
    """The fastest on whole train batches, with the figures as its reason.

    `train_batch` trains one batch; the caller resets the population afterwards. `kernels`:
    those to choose from. `recorder`: what captures batches, where the run will replay them.
    """
    rivals: dict[str, Executor] = {
        "vmap" if len(kernels) == 1 else WHOSE[name]: VmapExecutor(name) for name in kernels
    }
    rivals["loop"] = LoopExecutor(kernels[0])
    works = dict.fromkeys(rivals, train_batch)
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    begun = perf_counter()
    for turn in range(PAIRS + 1):
        for name, rival in rivals.items():
            population.choice = ExecutorChoice(rival, "on trial")
            spent = _timed(works[name], device)
            if turn == 0 and recorder is not None and rival.name == "vmap":
                with contextlib.suppress(RuntimeError):  # cannot be captured: timed as it is told
                    works[name] = recorder.capture(train_batch).replay
            if turn > 0:  # the first one warms up: kernels are built and tuned
                seconds[name].append(spent)
        if turn > 0 and perf_counter() - begun > BUDGET_SECONDS:
            break
    median = {name: statistics.median(values) for name, values in seconds.items()}
    best = min(median, key=lambda name: median[name])
    told = ", ".join(f"{name} {1000 * value:.1f} ms" for name, value in median.items())
    return ExecutorChoice(rivals[best], f"measured: {told} a train batch")


def _timed(work: Callable[[], None], device: torch.device) -> float:
    start = perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # SYNC: before the run, to time a batch
    return perf_counter() - start
