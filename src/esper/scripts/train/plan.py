"""What would a run cost? Counted, and timed on real steps for a few seconds; nothing is written.

The steps are those of the run itself, on its data and device, or a part of them (`plan_probe.py`):
some on bare hosts, some with seeds in half of the slots, a third of them each training, blending
and on probation. Where between or beyond the two a run lies depends on what its policy grows.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Final

import torch

from esper.karn.display import format_duration, say
from esper.scripts.cli.console import console_for_report
from esper.scripts.compare.judging import BASELINES
from esper.scripts.train.config import Train
from esper.scripts.train.learner_config import TrainPPO
from esper.scripts.train.plan_probe import (
    Probe,
    cut_data,
    cut_spec,
    first_of,
    least_sizes,
    probe_steps,
    whole_sizes,
)
from esper.simic.training.config import TrainingConfig
from esper.simic.training.runs.folder import read_config
from esper.simic.training.runs.resume import Start, check_task, find_start
from esper.simic.training.vectorized import make_trainer
from esper.simic.training.vectorized_trainer import VectorizedPPOTrainer
from esper.tasks.spec import TaskData, TaskSpec
from esper.tolaria.device_info import describe_device
from esper.tolaria.runtime import parse_device, synchronize_device

LONGER: Final = 4
"""Steps of the longer of the two rollouts that updates are timed on; the shorter has one."""
JUDGED: Final = len(BASELINES) + 2
"""Policies that are judged at the end of `train ppo`."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a run has before it."""

    rounds: int
    """Episodes of each member."""
    steps: int
    """Of all members, those of other populations included."""
    updates: int
    """Of the controller."""
    update_seconds: float
    """One of them."""

    def seconds(self, step: float) -> float:
        """All of it, where a step takes so long."""
        return self.steps * step + self.updates * self.update_seconds


def plan_learner(config: TrainPPO, spec: TaskSpec) -> None:
    """The plan of `train ppo`: of all rounds, or of those that a run has still before it."""
    training = config.training
    start = _start(config, spec)
    done = 0 if start is None else start.done
    data, settings = spec.load(config.data_dir), training.engine_config()
    device = parse_device(settings.device)
    probe = probe_steps(spec, data, settings, device)
    trainer = _small_trainer(training, spec, data, device)
    length = spec.episode_length
    rollout = training.population.rollout_steps or length
    rounds = training.rounds - done
    judged = round(JUDGED * length * config.judged_members / training.population.envs)
    waited = length if training.reward.wait_baseline else 0
    steps = rounds * length + judged + waited
    updates = rounds * -(-length // rollout)
    work = Work(rounds, steps, updates, _update_seconds(trainer, rollout))
    weights = sum(p.numel() for p in trainer.client.agent.network.parameters())
    lines = _lines(spec, data, probe, rounds, device, settings.profile)
    if start is not None:
        told = f"resume: {done:,} of {training.rounds:,} rounds are done, {rounds:,} left"
        aside = (f"{line}; the run would go on without it" for line in start.found.skipped)
        lines = [told, *aside, *start.changed, *lines]
    lines += [
        f"learner: {weights:,} parameters, {updates:,} update{'s' * (updates != 1)} "
        f"of {work.update_seconds:.2f} s",
        f"judgement: {JUDGED} policies, an episode of {config.judged_members} members each",
        *_time_lines(probe, work),
    ]
    _show(f"plan: ppo on {spec.name}", lines, probe, device)


def plan_unlearned(config: Train, spec: TaskSpec) -> None:
    """The plan of `train` with a policy that does not learn."""
    spec = spec.lengthened(config.parsed.longer)
    data, settings = spec.load(config.data_dir), config.engine_config()
    device = parse_device(settings.device)
    probe = probe_steps(spec, data, settings, device)
    work = Work(config.rounds, config.rounds * spec.episode_length, 0, 0.0)
    lines = _lines(spec, data, probe, config.rounds, device, settings.profile)
    lines += _time_lines(probe, work)
    _show(f"plan: {config.parsed.label} on {spec.name}", lines, probe, device)


def _start(config: TrainPPO, spec: TaskSpec) -> Start | None:
    """From where a run would go on; None: it is new. What could not go on is refused."""
    if config.resume is None:
        return None
    start = find_start(config.resume, read_config(config.resume), config.training)
    if start.checkpoint is not None:
        check_task(start.checkpoint, spec)
    return start


# ---- the update ---------------------------------------------------------------------------------


def _small_trainer(
    training: TrainingConfig, spec: TaskSpec, data: TaskData, device: torch.device
) -> VectorizedPPOTrainer:
    """The run's trainer, all members, with as little as may be for them to compute."""
    whole = whole_sizes(spec, data, training.population.envs)
    sizes = replace(least_sizes(whole, device, samples=2), members=whole.members)
    paid = replace(training.reward, wait_baseline=False)  # it takes an episode to measure
    few = cut_data(data, sizes)
    few = replace(few, train=first_of(few.train, sizes.batch_size))  # orders take E x N
    return make_trainer(replace(training, reward=paid), spec=cut_spec(spec, sizes), data=few)


def _update_seconds(trainer: VectorizedPPOTrainer, steps: int) -> float:
    """What the updates after a rollout of so many steps take, by those of two short ones."""
    short, longer = 1, min(LONGER, steps)
    engine, seconds = trainer.engine, {}
    for length in (short, short, longer):  # the first warms up
        engine.config = replace(engine.config, rollout_steps=length)
        rollout = engine.run_rollout(trainer.client)
        synchronize_device(engine.device)
        began = perf_counter()
        trainer.client.update(rollout)
        synchronize_device(engine.device)
        seconds[length] = perf_counter() - began
        engine.step = 0
    a_step = (seconds[longer] - seconds[short]) / max(1, longer - short)
    return seconds[short] + max(0.0, a_step) * (steps - short)


# ---- words --------------------------------------------------------------------------------------


def _lines(
    spec: TaskSpec,
    data: TaskData,
    probe: Probe,
    rounds: int,
    device: torch.device,
    profile: str,
) -> list[str]:
    """What is run."""
    facts, whole = probe.facts, probe.whole
    steps = rounds * spec.episode_length
    return [
        f"host: {facts.host_params:,} parameters, {facts.host_macs:,} MACs a sample; "
        f"{facts.slots} slots for {', '.join(facts.blueprints)}",
        f"population: {whole.members} members, {rounds:,} round{'s' * (rounds != 1)} of "
        f"{spec.episode_length} steps = {steps:,} steps, {steps * whole.members:,} member-steps",
        f"a step: {whole.batches} batches of {whole.batch_size}, then "
        f"{whole.control} + {whole.score} validation samples; "
        f"{len(data.train):,} training samples",
        f"device: {describe_device(device)['device']}, {facts.precision}, profile {profile}, "
        f"executor {facts.executor} ({facts.reason})",
    ]


def _time_lines(probe: Probe, work: Work) -> list[str]:
    bare, grown, envs = probe.bare.total, probe.grown.total, probe.whole.members
    return [
        probe.line(),
        f"a step takes {bare:.3f} s on bare hosts ({_rate(envs / bare)} member-steps/s), "
        f"{grown:.3f} s with seeds in half of the slots ({_rate(envs / grown)} member-steps/s)",
        f"estimated time: {format_duration(work.seconds(bare))} if nothing grows, "
        f"{format_duration(work.seconds(grown))} with half of the slots in use",
    ]


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _show(title: str, lines: list[str], probe: Probe, device: torch.device) -> None:
    console = console_for_report()
    used = _memory(device) / 2**20
    more = "" if probe.measured == probe.whole else "; the run may take more"
    peak = f"memory: {used:,.0f} MiB at most while this was measured{more}"
    for line in (title, *(f"  {line}" for line in (*lines, peak))):
        say(console, line)
    say(console, "  nothing was trained or written (--dry-run)")


def _memory(device: torch.device) -> int:
    """Most bytes in use so far: of the GPU, or of this process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
