"""Times writing the input of a training batch, relative to training on it.

A batch is gathered, augmented and normalised into the training buffers on the training stream: its
share of the total is the most that a second stream and double buffering could save. Streamed
batches (`--data-placement stream`) are gathered by the host and copied while the previous batch
trains; the part that is not hidden shows up as time between two training batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esper.leyline.compute import DataPlacement
from esper.tasks.task_data import TaskData
from esper.tolaria.batch_ops import process_train_batch
from esper.tolaria.data import SharedBatchIterator
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.runtime import CUDATimer, synchronize_device


@dataclass(frozen=True, slots=True)
class WritingTime:
    """Times of one batch of all members, medians over steps; on a GPU measured by CUDA events."""

    placement: DataPlacement
    isolated_us: float
    """Writing batches back to back without training, including host work."""
    write_us: float
    """Writing a batch between two training batches: kernels, and waits for the host or a copy."""
    train_us: float
    """Training on the batch."""
    share: float
    """Share of writing in writing plus training."""


def writing_times(engine: VectorizedEngine, data: TaskData, steps: int) -> list[WritingTime]:
    """Time data on the device and, on a GPU, streamed data; the engine keeps training."""
    placements: tuple[DataPlacement, ...] = ("device", "stream")
    on_gpu = engine.device.type == "cuda"
    with engine.computing():
        return [
            _writing_time(engine, _placed(engine, data, placement), steps)
            for placement in (placements if on_gpu else placements[:1])
        ]


def _placed(
    engine: VectorizedEngine, data: TaskData, placement: DataPlacement
) -> SharedBatchIterator:
    """The engine's batches with another data placement."""
    spec, own = engine.spec, engine.batches
    return SharedBatchIterator(
        data.train.inputs,
        data.train.labels,
        own.members,
        spec.batch_size,
        spec.batches_per_step,
        own.seed,
        engine.device,
        data.mean.tolist() or (0.0,),
        data.std.tolist() or (1.0,),
        spec.augmentation,
        placement,
        own.dtype,
    )


def _writing_time(
    engine: VectorizedEngine, batches: SharedBatchIterator, steps: int
) -> WritingTime:
    timers = [CUDATimer(engine.device) for _ in range(steps + 1)]
    for step, timer in enumerate(timers):
        with timer.span("isolated"):
            for _ in batches.step(step, engine.buffers):
                pass
    synchronize_device(engine.device)
    for step, timer in enumerate(timers):
        made = batches.step(step, engine.buffers)
        for _ in range(batches.batches_per_step):
            with timer.span("write"):
                x, target = next(made)
            with timer.span("train"), engine.autocast():
                process_train_batch(
                    engine.env.model, x, target, engine.env.train, engine.env.scaler, engine.graphs
                )
    synchronize_device(engine.device)
    found = [timer.collect() for timer in timers[1:]]  # the first step warms up
    each = 1e6 / batches.batches_per_step
    isolated, write, train = (
        each * float(np.median([seconds[name] for seconds in found]))
        for name in ("isolated", "write", "train")
    )
    return WritingTime(batches.placement, isolated, write, train, write / (write + train))
