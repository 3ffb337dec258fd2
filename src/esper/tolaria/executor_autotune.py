"""Selection of the fastest executor and kernels by timing a few train batches.

Runs once, before the first step. Timings vary from run to run, so only profile `fast` uses it;
`exact` follows fixed rules (`setup.prepare_executor`). If the run replays CUDA graphs, their
replays are timed.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final

import torch

from esper.device.graphs import Recorder
from esper.kasmina.executors.base import Executor
from esper.kasmina.executors.choice import ExecutorChoice
from esper.kasmina.executors.loop import LoopExecutor
from esper.kasmina.executors.vmap import VmapExecutor
from esper.kasmina.population import Population
from esper.leyline.compute import KernelName

KERNEL_LABELS: Final[dict[KernelName, str]] = {
    "own": "vmap with our kernels",
    "fused": "vmap with our fused blocks",
    "torch": "vmap with torch's",
}
TIMED_BATCHES: Final = 3
"""Timed batches per candidate, after one warm-up batch."""
BUDGET_SECONDS: Final = 5.0
"""No further repeat starts after this; at least one is always timed."""


def autotune_executor(
    population: Population,
    train_batch: Callable[[], None],
    device: torch.device,
    kernels: Sequence[KernelName] = ("own",),
    recorder: Recorder | None = None,
) -> ExecutorChoice:
    """Return the fastest executor for train batches, with the timings as its reason.

    `train_batch` trains one batch; the caller resets the population afterwards. `kernels`:
    candidates for vmap. `recorder`: captures batches, if the run will replay them.
    """
    candidates: dict[str, Executor] = {
        "vmap" if len(kernels) == 1 else KERNEL_LABELS[name]: VmapExecutor(name) for name in kernels
    }
    candidates["loop"] = LoopExecutor(kernels[0] if len(kernels) == 1 else "own")
    runs = dict.fromkeys(candidates, train_batch)
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    start = perf_counter()
    for repeat in range(TIMED_BATCHES + 1):
        for name, candidate in candidates.items():
            population.choice = ExecutorChoice(candidate, "on trial")
            spent = _timed(runs[name], device)
            # Not loop: its graphs are valid for one plan, and seeds will change plans.
            if repeat == 0 and recorder is not None and candidate.name == "vmap":
                with contextlib.suppress(RuntimeError):  # cannot be captured: time eager runs
                    runs[name] = recorder.capture(train_batch).replay
            if repeat > 0:  # the first one compiles and tunes kernels
                seconds[name].append(spent)
        if repeat > 0 and perf_counter() - start > BUDGET_SECONDS:
            break
    median = {name: statistics.median(values) for name, values in seconds.items()}
    best = min(median, key=lambda name: median[name])
    timings = ", ".join(f"{name} {1000 * value:.1f} ms" for name, value in median.items())
    return ExecutorChoice(candidates[best], f"measured: {timings} a train batch")


def _timed(work: Callable[[], None], device: torch.device) -> float:
    start = perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # SYNC: times a batch, before the run
    return perf_counter() - start
