"""What does a step of a run take here? Timed on as much of it as a few seconds allow, then scaled.

A step of many large hosts may take minutes on a CPU. So the first probe is small; its time says how
much larger the next may be, until whole steps are timed or the time is up. Training is scaled by
samples, validation by samples and members; what is neither is taken as it is. A GPU computes small
work no faster than large: there a probe has all members and whole batches, only fewer of them.

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
from esper.tasks.spec import TaskData, TaskPart, TaskSpec
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.engine_config import EngineConfig
from esper.tolaria.stage_mix import half_of_slots_live, set_seed_stages
from esper.tolaria.timed_engine import StepTimings, TimedEngine

BUDGET_SECONDS: Final = 12.0
"""No larger probe is begun that would not end within this, by what the one before it took."""
TIMED_STEPS: Final = 2
"""Steps that are timed of each kind in each probe."""
WARM_STEPS: Final = {"cpu": 1, "cuda": 3}
"""Steps before those: on a GPU batches are computed, then captured, then replayed."""
FEWEST_MEMBERS: Final = 2
"""Between them two members have a seed in each slot once, where half of the slots are live."""
FEWEST_SAMPLES: Final = 8
"""In the smallest batch, and of each part of the validation data."""
WORTH_IT: Final = 2.0
"""A further probe is that much larger, or left."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is computed in a step."""

    members: int
    """E."""
    batch_size: int
    """Samples in a train batch of each member."""
    batches: int
    """Train batches."""
    control: int
    """Samples of val_control."""
    score: int
    """Samples of val_score."""

    @property
    def trained(self) -> int:
        """Samples trained on by all members together."""
        return self.members * self.batch_size * self.batches

    @property
    def validated(self) -> int:
        """Samples that all members together are validated on."""
        return self.members * (self.control + self.score)


@dataclass(frozen=True, slots=True)
class StepTime:
    """Where the seconds of a step go."""

    train: float
    validation: float
    rest: float
    """Python and transfers."""

    @property
    def total(self) -> float:
        """All of it."""
        return self.train + self.validation + self.rest

    def scaled(self, measured: Sizes, whole: Sizes) -> StepTime:
        """What it would be for a whole step, by what a part of it took."""
        return StepTime(
            self.train * whole.trained / measured.trained,
            self.validation * whole.validated / measured.validated,
            self.rest,
        )


@dataclass(frozen=True, slots=True)
class Facts:
    """What the engine of the largest probe says of itself."""

    host_params: int
    host_macs: int
    """Of one sample."""
    slots: int
    blueprints: tuple[str, ...]
    precision: str
    executor: str
    reason: str
    """Why that one runs; with other sizes `fast` may take another."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What was found; the engines themselves are gone."""

    facts: Facts
    measured: Sizes
    whole: Sizes
    bare: StepTime
    """A whole step of all members, hosts alone."""
    grown: StepTime
    """The same with seeds in half of the slots."""

    def line(self) -> str:
        """From what it was estimated."""
        if self.measured == self.whole:
            return f"measured on {TIMED_STEPS} whole steps of each kind"
        parts = (
            ("members", self.measured.members, self.whole.members),
            ("batches", self.measured.batches, self.whole.batches),
            ("samples a batch", self.measured.batch_size, self.whole.batch_size),
            (
                "validation samples",
                self.measured.control + self.measured.score,
                self.whole.control + self.whole.score,
            ),
        )
        told = ", ".join(f"{part:,} of {all_:,} {name}" for name, part, all_ in parts)
        return f"estimated from {told}, scaled to the whole"


def probe_steps(
    spec: TaskSpec,
    data: TaskData,
    config: EngineConfig,
    device: torch.device,
    budget: float = BUDGET_SECONDS,
) -> Probe:
    """Steps of hosts alone and of grown ones, on as much of the run as `budget` seconds allow."""
    whole = whole_sizes(spec, data, config.members)
    sizes, began = least_sizes(whole, device), perf_counter()
    while True:
        probe_began = perf_counter()
        facts, bare, grown = _probe(spec, data, config, sizes)
        now = perf_counter()
        room = (budget - (now - began)) / (now - probe_began)
        larger = larger_sizes(sizes, whole, room)
        if larger == sizes:
            return Probe(facts, sizes, whole, bare.scaled(sizes, whole), grown.scaled(sizes, whole))
        sizes = larger
        gc.collect()  # the engine is gone before a larger one comes


def _probe(
    spec: TaskSpec, data: TaskData, config: EngineConfig, sizes: Sizes
) -> tuple[Facts, StepTime, StepTime]:
    """The run's engine cut to these sizes: what it is, and its steps, hosts alone and grown."""
    cut = replace(config, members=sizes.members)
    engine = VectorizedEngine(cut_spec(spec, sizes), cut, data=cut_data(data, sizes))
    bare, grown = (_step_time(engine, prepare) for prepare in (_leave_bare, _grow_half))
    population, episode = engine.env.model, engine.episode
    choice = population.choice
    assert choice is not None  # the engine showed the population an input
    facts = Facts(
        host_params=episode.host_params,
        host_macs=episode.host_macs,
        slots=len(population.slots),
        blueprints=population.blueprints,
        precision=engine.precision,
        executor=choice.executor.name,
        reason=choice.reason,
    )
    return facts, bare, grown


# ---- how much -----------------------------------------------------------------------------------


def whole_sizes(spec: TaskSpec, data: TaskData, members: int) -> Sizes:
    """Those of the run."""
    parts = len(data.val_control), len(data.val_score)
    return Sizes(members, spec.batch_size, spec.batches_per_step, *parts)


def least_sizes(whole: Sizes, device: torch.device, samples: int = FEWEST_SAMPLES) -> Sizes:
    """Those of the first probe: a batch and parts of the validation data of so few `samples`."""
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
    """At most `factor` times as much, and not more than the whole; the same where that is little.

    Larger batches first, then more members: there small work pays most for being small. More
    batches, which only repeat what was timed, come last.
    """
    if factor < WORTH_IT or sizes == whole:
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


def cut_spec(spec: TaskSpec, sizes: Sizes) -> TaskSpec:
    """The task with so much in a step."""
    return replace(spec, batch_size=sizes.batch_size, batches_per_step=sizes.batches)


def cut_data(data: TaskData, sizes: Sizes) -> TaskData:
    """The data with so many validation samples, the first ones."""
    return replace(
        data,
        val_control=first_of(data.val_control, sizes.control),
        val_score=first_of(data.val_score, sizes.score),
    )


def first_of(part: TaskPart, count: int) -> TaskPart:
    """So many of a part, the first ones."""
    return TaskPart(part.inputs[:count], part.labels[:count])


# ---- steps --------------------------------------------------------------------------------------


def _step_time(engine: VectorizedEngine, prepare: Callable[[VectorizedEngine], None]) -> StepTime:
    """The mean of a few steps, after some that warm up."""
    timed = TimedEngine(engine, WaitPolicy(ScoreReward(engine.spec.upkeep)), prepare)
    timed.time_steps(WARM_STEPS[engine.device.type])
    turn = timed.time_steps(TIMED_STEPS)
    engine.step = 0
    return mean_step(turn)


def mean_step(turn: StepTimings) -> StepTime:
    """A step of a turn, on average."""
    train, validation = (turn.device_seconds[name] for name in ("train", "validation"))
    rest = max(0.0, turn.seconds - train - validation)
    return StepTime(*(part / turn.steps for part in (train, validation, rest)))


def _leave_bare(engine: VectorizedEngine) -> None:
    """Hosts as they are born."""


def _grow_half(engine: VectorizedEngine) -> None:
    """Seeds in half of the slots, where the blueprint that fits most of them fits."""
    population = engine.env.model
    fits_SK = population.lifecycle.fits_SK
    kind = int(fits_SK.sum(axis=0).argmax())
    wanted_ES = half_of_slots_live(population.members, len(population.slots))
    placed_ES = np.where(fits_SK[:, kind], wanted_ES, np.int8(SeedStage.DORMANT))
    set_seed_stages(population, population.blueprints[kind], placed_ES)
