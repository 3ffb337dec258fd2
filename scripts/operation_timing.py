"""Times the single operations of a step on an engine with seeds.

Operations alternate, so that background load hits all of them; the device is synchronised before
and after each timing. Shape letters: E members, S slots, R rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from time import perf_counter
from typing import Any, Literal
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from esper.device.transfer import fetch
from esper.kasmina.executors.choice import ExecutorChoice, choose_executor
from esper.kasmina.executors.loop import LoopExecutor
from esper.kasmina.rows.rows import RowTable
from esper.kasmina.snapshot import finite_members
from esper.leyline.actions import ActionSpec
from esper.leyline.records import StepRecord
from esper.tamiyo.masks import build_masks
from esper.tasks.task_data import TaskData
from esper.tolaria.action_execution import execute_actions
from esper.tolaria.counterfactual_eval import attribute, plan_coalitions
from esper.tolaria.data import SharedBatchIterator
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.measurements import fetch_rows, transfer_tensors
from esper.tolaria.observation import StepMetrics
from esper.tolaria.runtime import autocast, synchronize_device

Parts = tuple[float, ...]
Operation = Callable[[], Parts]
"""Runs once and returns the seconds of each part, synchronising after each."""
DATA: tuple[Literal["none", "crop_flip"], ...] = ("none", "crop_flip")


@dataclass(frozen=True, slots=True)
class OperationTime:
    """One operation, or one part of it."""

    name: str
    median_us: float
    lower_us: float
    """First quartile."""
    upper_us: float
    """Third quartile."""
    per: str
    """Unit of work that the time is per."""
    turns: int


@dataclass(frozen=True, slots=True)
class Timed:
    """An operation and the names of its parts."""

    operation: Operation
    names: tuple[str, ...]
    per: str


def take_turns(operations: Sequence[Timed], rounds: int, repeats: int) -> list[OperationTime]:
    """Time all operations in turn, `rounds` times; a turn is the mean of `repeats` calls."""
    seconds: list[list[list[float]]] = [[] for _ in operations]
    for _ in range(rounds + 1):
        for place, timed in enumerate(operations):
            mean = np.mean([timed.operation() for _ in range(repeats)], axis=0)
            seconds[place].append(mean.tolist())
    found = []
    for timed, turns in zip(operations, seconds, strict=True):
        lower, median, upper = 1e6 * np.percentile(turns[1:], [25, 50, 75], axis=0)  # warm-up out
        for part, name in enumerate(timed.names):
            quartiles = float(median[part]), float(lower[part]), float(upper[part])
            found.append(OperationTime(name, *quartiles, timed.per, rounds))
    return found


def all_operations(engine: VectorizedEngine, data: TaskData, record: StepRecord) -> list[Timed]:
    """All operations to time; `record`: a step of the engine."""
    return [
        *_data_operations(engine, data),
        *_train_operations(engine),
        *_validation_operations(engine),
        *_host_operations(engine, record),
        *_transfers(engine),
    ]


def _whole(work: Callable[[], object], device: torch.device, share: int = 1) -> Operation:
    """Time the call, divided by `share`."""

    def operation() -> Parts:
        synchronize_device(device)
        began = perf_counter()
        work()
        synchronize_device(device)
        return ((perf_counter() - began) / share,)

    return operation


# ---- data and training --------------------------------------------------------------------


def _data_operations(engine: VectorizedEngine, data: TaskData) -> Iterator[Timed]:
    """Gather and normalise a batch, and augment images; includes the permutation."""
    spec = engine.spec
    for augmentation in DATA if data.kind == "images" else DATA[:1]:
        batches = SharedBatchIterator(
            data.train.inputs,
            data.train.labels,
            engine.env.members,
            spec.batch_size,
            spec.batches_per_step,
            device=engine.device,
            mean=data.mean.tolist() or (0.0,),
            std=data.std.tolist() or (1.0,),
            augmentation=augmentation,
        )
        name = "batch: gather, normalise"
        name += "" if augmentation == "none" else ", crop and flip"
        yield Timed(_each_step(batches, engine.device), (name,), "batch of all members")


def _each_step(batches: SharedBatchIterator, device: torch.device) -> Operation:
    steps = count()

    def one_step() -> None:
        for _ in batches.step(next(steps)):
            pass

    return _whole(one_step, device, batches.batches_per_step)


def _train_operations(engine: VectorizedEngine) -> Iterator[Timed]:
    """`train_batch` under both executors, split into forward, backward and update."""
    x, target = next(engine.batches.step(0))
    parts = ("forward", "loss and backward", "clip and update")
    for executor, choice in executor_choices(engine, x).items():
        names = tuple(f"train batch, {executor}: {part}" for part in parts)
        operation = _train_batch(engine, choice, x, target)
        yield Timed(operation, names, "batch of all members")


def executor_choices(engine: VectorizedEngine, x: Tensor) -> dict[str, ExecutorChoice]:
    """Both executors, or only loop if the host cannot be vmapped."""
    population = engine.env.model
    best = choose_executor("auto", population.network, population.lifecycle, x)
    loop = ExecutorChoice(LoopExecutor(), "for comparison")
    return {best.executor.name: best, "loop": loop}


def _train_batch(
    engine: VectorizedEngine, choice: ExecutorChoice, x: Tensor, target: Tensor
) -> Operation:
    population, trainer = engine.env.model, engine.env.model.trainer

    def operation() -> Parts:
        stamps: list[float] = []

        def stamped(work: Callable[..., Any]) -> Callable[..., Any]:
            def call(*given: Any) -> Any:
                stamps.append(_now(engine.device))
                return work(*given)

            return call

        with (
            _chosen(engine, choice),
            mock.patch.object(population, "loss", stamped(population.loss)),
            mock.patch.object(trainer, "step", stamped(trainer.step)),
            autocast(engine.device, engine.precision),
        ):
            stamps.append(_now(engine.device))
            population.train_batch(x, target, engine.env.scaler)
            stamps.append(_now(engine.device))
        return tuple(np.diff(stamps).tolist())

    return operation


@contextmanager
def _chosen(engine: VectorizedEngine, choice: ExecutorChoice) -> Iterator[None]:
    population = engine.env.model
    own, population.choice = population.choice, choice
    yield
    population.choice = own


def _now(device: torch.device) -> float:
    synchronize_device(device)
    return perf_counter()


# ---- validation and the host's side -------------------------------------------------------


def _validation_operations(engine: VectorizedEngine) -> Iterator[Timed]:
    population, validator = engine.env.model, engine.validator
    plan = plan_coalitions(population, engine.config.counterfactuals, 0, 0, 0)

    def run(table: RowTable | None) -> Callable[[], None]:
        def work() -> None:
            with autocast(engine.device, engine.precision):
                validator.run_control(population, table)

        return work

    tables: dict[str, RowTable | None] = {
        f"{population.members} main rows": None,
        f"all {plan.table.rows} rows, fused": plan.table,
    }
    for name, table in tables.items():
        yield Timed(_whole(run(table), engine.device), (f"validation, {name}",), "val_control")


def _host_operations(engine: VectorizedEngine, record: StepRecord) -> Iterator[Timed]:
    """Host work between the transfers, for all members at once."""
    population, life = engine.env.model, engine.env.model.lifecycle
    config = engine.config.counterfactuals
    plan = plan_coalitions(population, config, 0, 0, 0)
    (rows,) = fetch_rows(engine.env.val)
    metrics = _metrics(engine, record)
    nobody_E = np.zeros(population.members, dtype=np.bool_)
    wait = ActionSpec.wait(population.members)
    totals = (rows.merit_sum_R, rows.gain_sum_R, rows.gain_square_sum_R, rows.samples)
    work: Mapping[str, Callable[[], object]] = {
        "plan_coalitions": lambda: plan_coalitions(population, config, 0, 0, 0),
        "attribute": lambda: attribute(plan, *totals),
        "slot_reports": population.slot_reports,
        "legal_ops and build_masks": lambda: build_masks(life.legal_ops(), life.fits_ESK(), {}),
        "observe": lambda: engine.observer.observe(0, metrics),
        "execute_actions, everyone waits": lambda: execute_actions(
            population, wait, record.signals, nobody_E
        ),
    }
    for name, one in work.items():
        yield Timed(_whole(one, engine.device), (name,), "step")


def _metrics(engine: VectorizedEngine, record: StepRecord) -> StepMetrics:
    seen = record.signals
    tracked = engine.env.signal_tracker.update(
        seen.train_loss_E, seen.val_loss_E, seen.val_accuracy_E
    )
    return StepMetrics(
        seen.train_loss_E.astype(np.float64),
        seen.val_loss_E.astype(np.float64),
        seen.val_accuracy_E.astype(np.float64),
        tracked,
        seen.train_accuracy_E.astype(np.float64),
        seen.activation_grad_ES,
    )


def _transfers(engine: VectorizedEngine) -> Iterator[Timed]:
    """One packed copy against one copy per tensor."""
    env = engine.env
    scored = engine.validator.run_score(env.model)
    parts = transfer_tensors(env.train, env.val, scored, finite_members(env.model))
    work: Mapping[str, Callable[[], object]] = {
        "one stacked": lambda: fetch(parts),
        f"one for each of {len(parts)} tensors": lambda: [
            fetch({name: part}) for name, part in parts.items()
        ],
    }
    for name, one in work.items():
        yield Timed(_whole(one, engine.device), (f"transfer, {name}",), "step")


# ---- inside a train batch -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeavyOp:
    """One torch operation of a training batch; on a GPU one kernel."""

    name: str
    calls: int
    """Calls per batch."""
    self_us: float
    """Self time per batch."""
    share: float
    """Share of all operations."""


def heaviest_ops(engine: VectorizedEngine, batches: int, top: int) -> list[HeavyOp]:
    """The most expensive torch operations of a training batch under the engine's executor."""
    from torch.profiler import ProfilerActivity, profile

    on_gpu = engine.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    x, target = next(engine.batches.step(0))
    with profile(activities=activities) as profiler, autocast(engine.device, engine.precision):
        for _ in range(batches):
            engine.env.model.train_batch(x, target, engine.env.scaler)
        synchronize_device(engine.device)
    field = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    # On a GPU only kernels: the operation that launches one repeats its time.
    events = [e for e in profiler.key_averages() if _on_device(e) == on_gpu]
    found = [(e.key, e.count, float(getattr(e, field))) for e in events]
    total = sum(spent for _, _, spent in found) or 1.0
    found.sort(key=lambda one: -one[2])
    return [
        HeavyOp(name, round(calls / batches), spent / batches, spent / total)
        for name, calls, spent in found[:top]
    ]


def _on_device(event: Any) -> bool:
    """Whether a profiler entry is a kernel."""
    return bool(event.device_type.name != "CPU")
