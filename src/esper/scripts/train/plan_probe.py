"""Times steps of a run for `--dry-run`, on a part of the work if a whole step takes too long.

A step of many large hosts may take minutes on a CPU, so the first probe is small; its time decides
the size of the next, until whole steps are timed or the budget is spent. Training time is scaled by
samples, validation by samples and members, the rest is not scaled. A GPU is not faster on smaller
batches: there a probe has all members and full batches, only fewer of them.

Shape letters: E members, S slots, K blueprints.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Final

import numpy as np
import torch

from esper.leyline.stages import SeedStage
from esper.simic.rewards.score import ScoreReward
from esper.tamiyo.baselines import WaitPolicy
from esper.tasks.spec import TaskSpec
from esper.tasks.task_data import TaskData, TaskPart
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.engine_config import EngineConfig
from esper.tolaria.stage_mix import half_of_slots_live, set_seed_stages
from esper.tolaria.timed_engine import StepTimings, TimedEngine

BUDGET_SECONDS: Final = 12.0
"""Time budget; no probe is started that is expected to exceed it."""
TIMED_STEPS: Final = 2
"""Timed steps of each kind per probe."""
WARM_STEPS: Final = {"cpu": 1, "cuda": 3}
"""Warm-up steps: on a GPU, batches are run eagerly, then captured, then replayed."""
FEWEST_MEMBERS: Final = 2
"""With half the slots occupied, two members together have a seed in each slot."""
FEWEST_SAMPLES: Final = 8
"""Samples in the smallest batch and in each part of the validation data."""
MIN_GROWTH: Final = 2.0
"""Minimum growth factor of the next probe."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amount of work in a step."""

    members: int
    """E."""
    batch_size: int
    """Samples per training batch and member."""
    batches: int
    """Training batches."""
    control: int
    """Samples of val_control."""
    score: int
    """Samples of val_score."""

    @property
    def trained(self) -> int:
        """Training samples of all members."""
        return self.members * self.batch_size * self.batches

    @property
    def validated(self) -> int:
        """Validation samples of all members."""
        return self.members * (self.control + self.score)


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds per part of a step."""

    train: float
    validation: float
    rest: float
    """Python and transfers."""

    @property
    def total(self) -> float:
        """Total seconds."""
        return self.train + self.validation + self.rest

    def scaled(self, measured: Sizes, whole: Sizes) -> StepTime:
        """Scale from the measured sizes to a whole step."""
        return StepTime(
            self.train * whole.trained / measured.trained,
            self.validation * whole.validated / measured.validated,
            self.rest,
        )


@dataclass(frozen=True, slots=True)
class _EngineInfo:
    """Properties of the largest probe's engine."""

    host_params: int
    host_macs: int
    """Per sample."""
    slots: int
    blueprints: tuple[str, ...]
    precision: str
    executor: str
    reason: str
    """Why this executor was chosen; `fast` may choose another for other sizes."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Result of `probe_steps`."""

    facts: _EngineInfo
    measured: Sizes
    whole: Sizes
    bare: StepTime
    """Whole step without seeds."""
    grown: StepTime
    """Whole step with seeds in half the slots."""

    def line(self) -> str:
        """One line on what was measured."""
        if self.measured == self.whole:
            return f"measured on {TIMED_STEPS} whole steps of each kind"
        parts = (
            ("members", self.measured.members, self.whole.members),
            ("batches", self.measured.batches, self.whole.batches),
            ("samples per batch", self.measured.batch_size, self.whole.batch_size),
            (
                "validation samples",
                self.measured.control + self.measured.score,
                self.whole.control + self.whole.score,
            ),
        )
        sizes = ", ".join(f"{part:,} of {all_:,} {name}" for name, part, all_ in parts)
        return f"estimated from {sizes}, scaled to a whole step"


def probe_steps(
    spec: TaskSpec,
    data: TaskData,
    config: EngineConfig,
    device: torch.device,
    budget: float = BUDGET_SECONDS,
) -> Probe:
    """Time steps with and without seeds, on as much of a step as `budget` seconds allow."""
    whole = full_sizes(spec, data, config.members)
    sizes, began = smallest_sizes(whole, device), perf_counter()
    while True:
        probe_began = perf_counter()
        facts, bare, grown = _probe(spec, data, config, sizes)
        now = perf_counter()
        room = (budget - (now - began)) / (now - probe_began)
        larger = larger_sizes(sizes, whole, room)
        if larger == sizes:
            return Probe(facts, sizes, whole, bare.scaled(sizes, whole), grown.scaled(sizes, whole))
        sizes = larger
        gc.collect()  # free the engine before a larger one is built


def _probe(
    spec: TaskSpec, data: TaskData, config: EngineConfig, sizes: Sizes
) -> tuple[_EngineInfo, StepTime, StepTime]:
    """Engine at these sizes: its properties, and step times without and with seeds."""
    cut = replace(config, members=sizes.members)
    engine = VectorizedEngine(reduced_spec(spec, sizes), cut, data=reduced_data(data, sizes))
    bare, grown = (_step_time(engine, prepare) for prepare in (_no_seeds, _grow_half))
    population, book = engine.env.model, engine.episode
    choice = population.choice
    assert choice is not None  # the engine showed the population an input
    facts = _EngineInfo(
        host_params=book.host_params,
        host_macs=book.host_macs,
        slots=len(population.slots),
        blueprints=population.blueprints,
        precision=engine.precision,
        executor=choice.executor.name,
        reason=choice.reason,
    )
    return facts, bare, grown


# ---- sizes --------------------------------------------------------------------------------------


def full_sizes(spec: TaskSpec, data: TaskData, members: int) -> Sizes:
    """Sizes of a whole step of the run."""
    parts = len(data.val_control), len(data.val_score)
    return Sizes(members, spec.batch_size, spec.batches_per_step, *parts)


def smallest_sizes(whole: Sizes, device: torch.device, samples: int = FEWEST_SAMPLES) -> Sizes:
    """Sizes of the first probe; `samples`: batch size and validation samples per part."""
    if device.type == "cuda":
        return replace(whole, batches=1)
    return Sizes(
        min(FEWEST_MEMBERS, whole.members),
        min(samples, whole.batch_size),
        1,
        min(samples, whole.control),
        min(samples, whole.score),
    )


def larger_sizes(sizes: Sizes, whole: Sizes, factor: float) -> Sizes:
    """Sizes for at most `factor` times the work, capped at `whole`; unchanged for small factors.

    Grows the batch size first, then members, because overhead depends on them most, then the
    number of batches.
    """
    if factor < MIN_GROWTH or sizes == whole:
        return sizes
    found: dict[str, int] = {}
    for name in ("batch_size", "members", "batches"):
        now, most = getattr(sizes, name), getattr(whole, name)
        found[name] = most if now * factor >= most else now * math.floor(factor)
        factor = max(1.0, factor * now / found[name])
    share = found["batch_size"] * found["batches"] / (whole.batch_size * whole.batches)
    return Sizes(
        **found,
        control=max(sizes.control, math.floor(whole.control * share)),
        score=max(sizes.score, math.floor(whole.score * share)),
    )


def reduced_spec(spec: TaskSpec, sizes: Sizes) -> TaskSpec:
    """The task with steps of these sizes."""
    return replace(spec, batch_size=sizes.batch_size, batches_per_step=sizes.batches)


def reduced_data(data: TaskData, sizes: Sizes) -> TaskData:
    """The data with fewer validation samples."""
    return replace(
        data,
        val_control=take_first(data.val_control, sizes.control),
        val_score=take_first(data.val_score, sizes.score),
    )


def take_first(part: TaskPart, count: int) -> TaskPart:
    """The first `count` samples."""
    return TaskPart(part.inputs[:count], part.labels[:count])


# ---- steps --------------------------------------------------------------------------------------


def _step_time(engine: VectorizedEngine, prepare: Callable[[VectorizedEngine], None]) -> StepTime:
    """Mean time of a few steps after warm-up."""
    timed = TimedEngine(engine, WaitPolicy(ScoreReward(engine.spec.upkeep)), prepare)
    timed.time_steps(WARM_STEPS[engine.device.type])
    turn = timed.time_steps(TIMED_STEPS)
    engine.step = 0
    return mean_step(turn)


def mean_step(turn: StepTimings) -> StepTime:
    """Mean step time."""
    train, validation = (turn.device_seconds[name] for name in ("train", "validation"))
    rest = max(0.0, turn.seconds - train - validation)
    return StepTime(*(part / turn.steps for part in (train, validation, rest)))


def _no_seeds(engine: VectorizedEngine) -> None:
    """No-op: hosts without seeds."""


def _grow_half(engine: VectorizedEngine) -> None:
    """Put seeds in half the slots, of the blueprint that fits most slots."""
    population = engine.env.model
    fits_SK = population.lifecycle.fits_SK
    kind = int(fits_SK.sum(axis=0).argmax())
    wanted_ES = half_of_slots_live(population.members, len(population.slots))
    placed_ES = np.where(fits_SK[:, kind], wanted_ES, np.int8(SeedStage.DORMANT))
    set_seed_stages(population, population.blueprints[kind], placed_ES)
