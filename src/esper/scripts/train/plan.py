"""`--dry-run`: estimates the cost of a run from counts and a few timed steps; writes nothing.

Steps of the run itself, or parts of them (`plan_probe.py`), are timed without seeds and with seeds
in half the slots, split evenly between TRAINING, BLENDING and HOLDING. The actual cost depends on
what the policy grows.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Final

import torch

from esper.compare.baseline_process import has_second_process
from esper.compare.judging import BASELINES, SEARCH
from esper.karn.console import console_for_report
from esper.karn.display import say
from esper.plotting.durations import format_duration
from esper.scripts.train.config import Train
from esper.scripts.train.learner_config import TrainPPO
from esper.scripts.train.plan_probe import (
    Probe,
    full_sizes,
    probe_steps,
    reduced_data,
    reduced_spec,
    smallest_sizes,
    take_first,
)
from esper.simic.training.config import TrainingConfig
from esper.simic.training.runs.folder import read_config
from esper.simic.training.runs.resume import ResumePoint, check_task, find_resume_point
from esper.simic.training.runs.round_store import RoundStore
from esper.simic.training.vectorized import make_trainer
from esper.simic.training.vectorized_trainer import VectorizedPPOTrainer
from esper.tamiyo.grammar import parse
from esper.tamiyo.make_policy import spec_for
from esper.tasks.spec import TaskSpec
from esper.tasks.task_data import TaskData
from esper.tolaria.device_info import describe_device
from esper.tolaria.runtime import parse_device, synchronize_device

LONGER: Final = 4
"""Steps of the longer of two rollouts used to time updates; the shorter has one."""
CONTROLLERS: Final = 3
"""Episodes per member in the final evaluation of `train ppo` that need its controller."""
OTHERS: Final = len(BASELINES) + parse(SEARCH).topologies
"""Those that do not; a search has several members."""


@dataclass(frozen=True, slots=True)
class _Work:
    """Remaining work of a run."""

    rounds: int
    """Episodes per member."""
    steps: int
    """Population steps, including evaluation, scaled to the training population."""
    updates: int
    """PPO updates."""
    update_seconds: float
    """Seconds per update."""

    def seconds(self, step: float) -> float:
        """Total seconds if a step takes `step` seconds."""
        return self.steps * step + self.updates * self.update_seconds


def plan_learner(config: TrainPPO, spec: TaskSpec) -> None:
    """Print the plan of `train ppo` for all rounds, or the remaining ones of a resumed run."""
    training = config.training
    start = _start(config, spec)
    done = 0 if start is None else start.rounds_done
    data, settings = spec.load(config.data_dir), training.engine_config()
    device = parse_device(settings.device)
    probe = probe_steps(spec, data, settings, device)
    trainer = _small_trainer(training, spec, data, device)
    length = spec.episode_length
    rollout = training.population.rollout_steps or length
    rounds = training.rounds - done
    waited = length if training.reward.wait_baseline else 0
    steps = _steps(config, rounds * length + waited, length)
    updates = rounds * -(-length // rollout)
    work = _Work(rounds, steps, updates, _update_seconds(trainer, rollout))
    weights = sum(p.numel() for p in trainer.client.agent.network.parameters())
    lines = _lines(spec, data, probe, rounds, device, settings.profile)
    if start is not None:
        resume = f"resume: {done:,} of {training.rounds:,} rounds are done, {rounds:,} left"
        skipped = (f"{line}; the run would resume without it" for line in start.found.skipped)
        lines = [resume, *skipped, *start.changed, *lines]
    lines += [
        f"learner: {weights:,} parameters, {updates:,} update{'s' * (updates != 1)} "
        f"of {work.update_seconds:.2f} s",
        f"evaluation: {CONTROLLERS + OTHERS} policies, one episode of "
        f"{config.judged_members} members each",
        *_time_lines(probe, work),
    ]
    _show(f"plan: ppo on {spec.name}", lines, probe, device)


def _steps(config: TrainPPO, trained: int, length: int) -> int:
    """Population steps one after the other: training and evaluation."""
    training = config.training
    episode = length * config.judged_members / training.population.envs
    here, others = trained + CONTROLLERS * episode, OTHERS * episode
    return round(max(here, others) if has_second_process(training) else here + others)


def plan_baseline(config: Train, spec: TaskSpec) -> None:
    """Print the plan of `train` with a policy that does not learn."""
    spec = spec_for(config.parsed, spec)
    data, settings = spec.load(config.data_dir), config.engine_config()
    device = parse_device(settings.device)
    probe = probe_steps(spec, data, settings, device)
    done = 0 if config.resume is None else len(RoundStore(config.resume).read_all()[0])
    rounds = max(0, config.rounds - done)
    work = _Work(rounds, rounds * spec.episode_length, 0, 0.0)
    lines = _lines(spec, data, probe, rounds, device, settings.profile)
    if config.resume is not None:
        lines = [f"resume: {done:,} of {config.rounds:,} rounds are done, {rounds:,} left", *lines]
    lines += _time_lines(probe, work)
    _show(f"plan: {config.parsed.label} on {spec.name}", lines, probe, device)


def _start(config: TrainPPO, spec: TaskSpec) -> ResumePoint | None:
    """Resume point of a run, None for a new one; raises if it cannot be resumed."""
    if config.resume is None:
        return None
    start = find_resume_point(config.resume, read_config(config.resume), config.training)
    if start.checkpoint is not None:
        check_task(start.checkpoint, spec)
    return start


# ---- updates ------------------------------------------------------------------------------------


def _small_trainer(
    training: TrainingConfig, spec: TaskSpec, data: TaskData, device: torch.device
) -> VectorizedPPOTrainer:
    """The run's trainer with all members but minimal host work."""
    whole = full_sizes(spec, data, training.population.envs)
    sizes = replace(smallest_sizes(whole, device, samples=2), members=whole.members)
    reward = replace(training.reward, wait_baseline=False)  # measuring it takes an episode
    few = reduced_data(data, sizes)
    few = replace(few, train=take_first(few.train, sizes.batch_size))  # permutations take E x N
    return make_trainer(replace(training, reward=reward), spec=reduced_spec(spec, sizes), data=few)


def _update_seconds(trainer: VectorizedPPOTrainer, steps: int) -> float:
    """Seconds per update for rollouts of `steps` steps, extrapolated from two short ones."""
    short, longer = 1, min(LONGER, steps)
    engine, seconds = trainer.engine, {}
    lengths = (short, short, longer)  # the first warms up
    trainer.client.agent.run_updates = len(lengths)  # for schedules over the whole run
    for length in lengths:
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


# ---- output -------------------------------------------------------------------------------------


def _lines(
    spec: TaskSpec,
    data: TaskData,
    probe: Probe,
    rounds: int,
    device: torch.device,
    profile: str,
) -> list[str]:
    """Host, population, step and device."""
    facts, whole = probe.facts, probe.whole
    steps = rounds * spec.episode_length
    return [
        f"host: {facts.host_params:,} parameters, {facts.host_macs:,} MACs per sample; "
        f"{facts.slots} slots for {', '.join(facts.blueprints)}",
        f"population: {whole.members} members, {rounds:,} round{'s' * (rounds != 1)} of "
        f"{spec.episode_length} steps = {steps:,} steps, {steps * whole.members:,} member-steps",
        f"step: {whole.batches} batches of {whole.batch_size}, then "
        f"{whole.control} + {whole.score} validation samples; "
        f"{len(data.train):,} training samples",
        f"device: {describe_device(device)['device']}, {facts.precision}, profile {profile}, "
        f"executor {facts.executor} ({facts.reason})",
    ]


def _time_lines(probe: Probe, work: _Work) -> list[str]:
    bare, grown, envs = probe.bare.total, probe.grown.total, probe.whole.members
    return [
        probe.line(),
        f"time per step: {bare:.3f} s without seeds ({_rate(envs / bare)} member-steps/s), "
        f"{grown:.3f} s with seeds in half the slots ({_rate(envs / grown)} member-steps/s)",
        f"estimated time: {format_duration(work.seconds(bare))} without seeds, "
        f"{format_duration(work.seconds(grown))} with seeds in half the slots",
    ]


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _show(title: str, lines: list[str], probe: Probe, device: torch.device) -> None:
    console = console_for_report()
    used = _memory(device) / 2**20
    more = "" if probe.measured == probe.whole else "; the run may need more"
    peak = f"peak memory of this measurement: {used:,.0f} MiB{more}"
    for line in (title, *(f"  {line}" for line in (*lines, peak))):
        say(console, line)
    say(console, "  nothing was trained or written (--dry-run)")


def _memory(device: torch.device) -> int:
    """Peak memory in bytes: of the GPU, or of this process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
