"""`--dry-run`: checks settings, task and data, and prints what a run would do; writes nothing."""

from __future__ import annotations

from dataclasses import replace

from esper.karn.display import say
from esper.karn.terminal import console_for_report
from esper.scripts.train.config import Train
from esper.scripts.train.learner_config import TrainPPO
from esper.simic.training.runs.folder import read_config
from esper.simic.training.runs.resume import ResumePoint, check_task_facts, find_resume_point
from esper.simic.training.runs.round_store import RoundStore
from esper.tasks.spec import TaskSpec
from esper.tasks.task_data import TaskData
from esper.tolaria.device_info import describe_device
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.engine_config import EngineConfig


def plan_learner(config: TrainPPO, spec: TaskSpec) -> None:
    """Print the plan of `train ppo` for all rounds, or the remaining ones of a resumed run."""
    training = config.training
    population, length = training.population, spec.episode_length
    start = _start(config, spec)
    done = 0 if start is None else start.rounds_done
    data = spec.load(config.data_dir)
    rounds = training.rounds - done
    lines = _lines(spec, data, training.engine_config(), rounds)
    if start is not None:
        skipped = (f"{line}; the run would resume without it" for line in start.found.skipped)
        lines = [_resumed(done, training.rounds), *skipped, *start.changed, *lines]
    updates = rounds * -(-length // (population.rollout_steps or length))
    lines.append(f"learner: {updates:,} update{'s' * (updates != 1)}")
    _show(f"plan: ppo on {spec.name}", lines)


def plan_baseline(config: Train, spec: TaskSpec) -> None:
    """Print the plan of `train` with a policy that does not learn."""
    spec = config.spec_for(spec)
    data = spec.load(config.data_dir)
    done = 0 if config.resume is None else len(RoundStore(config.resume).read_all()[0])
    rounds = max(0, config.rounds - done)
    lines = _lines(spec, data, config.training.engine_config(), rounds)
    if config.resume is not None:
        lines.insert(0, _resumed(done, config.rounds))
    _show(f"plan: {config.parsed.label} on {spec.name}", lines)


def _start(config: TrainPPO, spec: TaskSpec) -> ResumePoint | None:
    """Resume point of a run, None for a new one; raises if it cannot be resumed."""
    if config.resume is None:
        return None
    start = find_resume_point(config.resume, read_config(config.resume), config.training)
    if start.checkpoint is not None:
        check_task_facts(start.checkpoint.task, spec, str(start.checkpoint.path))
    return start


def _resumed(done: int, rounds: int) -> str:
    return f"resume: {done:,} of {rounds:,} rounds are done, {max(0, rounds - done):,} left"


def _lines(spec: TaskSpec, data: TaskData, config: EngineConfig, rounds: int) -> list[str]:
    """Host, population, step and device."""
    one = VectorizedEngine(spec, replace(config, members=1), data=data)  # checks the host
    book, members = one.episode, config.members
    steps = rounds * spec.episode_length
    return [
        f"host: {book.host_params:,} parameters, {book.host_macs:,} MACs per sample; "
        f"{len(spec.slots)} slots for {', '.join(spec.blueprints)}",
        f"population: {members} members, {rounds:,} round{'s' * (rounds != 1)} of "
        f"{spec.episode_length} steps = {steps:,} steps, {steps * members:,} member-steps",
        f"step: {spec.batches_per_step} batches of {spec.batch_size}, then {len(data.val_control)} "
        f"+ {len(data.val_score)} validation samples; {len(data.train):,} training samples",
        f"device: {describe_device(one.device)['device']}",
    ]


def _show(title: str, lines: list[str]) -> None:
    console = console_for_report()
    for line in (title, *(f"  {line}" for line in lines)):
        say(console, line)
    say(console, "  nothing was trained or written (--dry-run)")
