"""What would a run cost? Counted, and timed on a few real steps; nothing is kept or written.

The steps are those of the run itself, on its data and device: some on bare hosts, some with seeds
in half of the slots, a third of them each training, blending and on probation. Where between or
beyond the two a run lies depends on what its policy grows.

Shape letters: E members, S slots, K blueprints.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Final

import numpy as np
import torch

from esper.karn.display import clock_time
from esper.leyline.stages import SeedStage
from esper.scripts.hot_path_engine import TimedEngine
from esper.scripts.judging import BASELINES
from esper.scripts.machine import describe, wait_for
from esper.scripts.stage_mix import half_of_slots_live, spread_stages
from esper.scripts.train_config import Train
from esper.scripts.train_learner_config import TrainPPO
from esper.scripts.train_report import console_for_report
from esper.simic.rewards.score import ScoreReward
from esper.simic.training.vectorized import make_trainer
from esper.simic.training.vectorized_trainer import VectorizedPPOTrainer
from esper.tamiyo.baselines import WaitPolicy
from esper.tasks.spec import TaskData, TaskSpec
from esper.tolaria.engine import VectorizedEngine

TIMED_STEPS: Final = 3
"""Steps that are timed of each kind, after one that warms up."""
JUDGED: Final = len(BASELINES) + 2
"""Policies that are judged at the end of `train ppo`."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, as measured."""

    bare_step: float
    """A step of all members, hosts alone."""
    grown_step: float
    """A step of all members, seeds in half of the slots."""
    update: float
    """An update of the controller; 0 where nothing learns."""

    def run_seconds(self, steps: int, updates: int, grown: bool) -> float:
        """So many steps and updates."""
        step = self.grown_step if grown else self.bare_step
        return steps * step + updates * self.update


def plan_learner(config: TrainPPO, spec: TaskSpec) -> None:
    """The plan of `train ppo`."""
    training, data = config.training, spec.load(config.data_dir)
    trainer = make_trainer(training, spec=spec, data=data)
    envs, length = training.population.envs, spec.episode_length
    rollout = training.population.rollout_steps or length
    timing = replace(_steps_timed(trainer.engine), update=_update_seconds(trainer, rollout))
    updates = training.rounds * -(-length // rollout)
    weights = sum(p.numel() for p in trainer.client.agent.network.parameters())
    judged = round(JUDGED * length * config.judged_members / envs)
    lines = _lines(spec, data, trainer.engine, training.rounds)
    lines += [
        f"learner: {weights:,} parameters, {updates:,} update{'s' * (updates > 1)} "
        f"of {timing.update:.2f} s",
        f"judgement: {JUDGED} policies, an episode of {config.judged_members} members each",
        *_time_lines(timing, training.rounds * length + judged, updates, envs),
    ]
    _show(f"plan: ppo on {spec.name}", lines, trainer.engine)


def plan_unlearned(config: Train, spec: TaskSpec) -> None:
    """The plan of `train` with a policy that does not learn."""
    data = spec.load(config.data_dir)
    config.make_policy(spec, ScoreReward(spec.upkeep))  # what cannot be made is refused
    engine = VectorizedEngine(spec, config.engine_config(), data=data)
    lines = _lines(spec, data, engine, config.rounds)
    steps = config.rounds * spec.episode_length
    lines += _time_lines(_steps_timed(engine), steps, 0, config.population.envs)
    _show(f"plan: {config.policy} on {spec.name}", lines, engine)


def _steps_timed(engine: VectorizedEngine) -> Timing:
    """Steps of hosts alone, then of grown ones."""
    client = WaitPolicy(ScoreReward(engine.spec.upkeep))
    seconds = []
    for prepare in (_leave_bare, _grow_half):
        timed = TimedEngine(engine, client, prepare)
        timed.turn(1)
        seconds.append(timed.turn(TIMED_STEPS).seconds / TIMED_STEPS)
        engine.step = 0
    return Timing(seconds[0], seconds[1], 0.0)


def _leave_bare(engine: VectorizedEngine) -> None:
    """Hosts as they are born."""


def _grow_half(engine: VectorizedEngine) -> None:
    """Seeds in half of the slots, where the blueprint that fits most of them fits."""
    population = engine.env.model
    fits_SK = population.lifecycle.fits_SK
    kind = int(fits_SK.sum(axis=0).argmax())
    wanted_ES = half_of_slots_live(population.members, len(population.slots))
    placed_ES = np.where(fits_SK[:, kind], wanted_ES, np.int8(SeedStage.DORMANT))
    spread_stages(population, population.blueprints[kind], placed_ES)


def _update_seconds(trainer: VectorizedPPOTrainer, steps: int) -> float:
    """What the updates after a rollout of so many steps take, by those of two short ones."""
    short, longer = 1, min(1 + TIMED_STEPS, steps)
    engine, seconds = trainer.engine, {}
    for length in (short, short, longer):  # the first warms up
        engine.config = replace(engine.config, rollout_steps=length)
        rollout = engine.run_rollout(trainer.client)
        wait_for(engine.device)
        began = perf_counter()
        trainer.client.update(rollout)
        wait_for(engine.device)
        seconds[length] = perf_counter() - began
        engine.step = 0
    a_step = (seconds[longer] - seconds[short]) / max(1, longer - short)
    return seconds[short] + max(0.0, a_step) * (steps - short)


def _lines(spec: TaskSpec, data: TaskData, engine: VectorizedEngine, rounds: int) -> list[str]:
    """What is run."""
    book, env, choice = engine.book, engine.env, engine.env.model.choice
    assert choice is not None  # the engine showed the population an input
    steps = rounds * spec.episode_length
    slots, kinds = len(env.model.slots), ", ".join(env.model.blueprints)
    return [
        f"host: {book.host_params:,} parameters, {book.host_macs:,} MACs a sample; {slots} slots "
        f"for {kinds}",
        f"population: {env.members} members, {rounds:,} round{'s' * (rounds > 1)} of "
        f"{spec.episode_length} steps = {steps:,} steps, {steps * env.members:,} member-steps",
        f"a step: {spec.batches_per_step} batches of {spec.batch_size}, then "
        f"{len(engine.validator.control)} + {len(engine.validator.score)} validation samples; "
        f"{len(data.train):,} training samples",
        f"device: {describe(engine.device)['device']}, {engine.precision}, profile "
        f"{engine.config.profile}, executor {choice.executor.name} ({choice.reason})",
    ]


def _time_lines(timing: Timing, steps: int, updates: int, envs: int) -> list[str]:
    bare, grown = (timing.run_seconds(steps, updates, grown) for grown in (False, True))
    return [
        f"a step took {timing.bare_step:.3f} s on bare hosts ({envs / timing.bare_step:.0f} "
        f"member-steps/s), {timing.grown_step:.3f} s with seeds in half of the slots "
        f"({envs / timing.grown_step:.0f} member-steps/s)",
        f"estimated time: {clock_time(bare)} if nothing grows, {clock_time(grown)} with half of "
        f"the slots in use",
    ]


def _show(title: str, lines: list[str], engine: VectorizedEngine) -> None:
    console = console_for_report()
    peak = f"memory: {_memory(engine.device) / 2**20:,.0f} MiB at most while this was measured"
    for line in (title, *(f"  {line}" for line in (*lines, peak))):
        console.print(line, highlight=False, soft_wrap=True)
    console.print("  nothing was trained or written (--dry-run)", highlight=False)


def _memory(device: torch.device) -> int:
    """Most bytes in use so far: of the GPU, or of this process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
