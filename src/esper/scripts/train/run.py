"""Runs `esper train` with a policy that does not learn, in a run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from esper.compare.host_runs import draw_limits
from esper.scripts.train.config import Train
from esper.scripts.train.recording import (
    event_files,
    note_start,
    open_run_folder,
    show_progress,
)
from esper.simic.rewards.score import ScoreReward
from esper.simic.telemetry.listener import ListenerGroup
from esper.simic.telemetry.live import LiveProgress
from esper.simic.telemetry.run_telemetry import run_telemetry
from esper.simic.training.round_feed import result_figures, track_training
from esper.simic.training.runs.folder import RunFolder
from esper.simic.training.runs.kept_members import KeptMember
from esper.simic.training.runs.policy_file import RunPolicy
from esper.simic.training.runs.policy_session import PolicySession
from esper.storage.atomic import require_writable
from esper.storage.run_files import EVENTS
from esper.tasks.spec import TaskSpec
from esper.tasks.task_data import TaskData
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.round_results import (
    RoundResult,
    RunResult,
    StepTimer,
    charge_for_length,
    make_run_result,
    run_round,
)


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """A finished run."""

    folder: RunFolder
    result: RunResult
    members: tuple[KeptMember, ...]
    """The kept members, best first."""


@contextmanager
def run(config: Train, spec: TaskSpec, name: str) -> Iterator[Trained]:
    """Train all rounds; the run folder stays locked inside the block.

    `name`: of the run, unless the settings have one.
    """
    data, recording = spec.load(config.data_dir), config.recording
    if recording.telemetry_dir is not None:
        require_writable(recording.telemetry_dir / EVENTS, "--telemetry-dir")
    with open_run_folder(config, config.run_name or name, spec) as folder:
        yield _train(config, spec, data, folder)


def _train(config: Train, spec: TaskSpec, data: TaskData, folder: RunFolder) -> Trained:
    parsed, recording = config.parsed, config.recording
    longer = config.spec_for(spec)
    policy = config.make_policy(longer, ScoreReward(spec.upkeep))
    resume = config.resume is not None
    session = PolicySession(
        folder, config.training, RunPolicy.of(config.parsed), resume, config.keep_members
    )
    engine = VectorizedEngine(longer, config.training.engine_config(), data=data)
    whole = None  # contexts are drawn for all blueprints, as in a comparison
    if longer.blueprints != spec.blueprints:
        whole = draw_limits(spec, config.population, data)
    engine.context.limits = whole or engine.context.limits
    length = longer.episode_length / spec.episode_length
    timer, events = StepTimer(), recording.telemetry_dir or folder.path
    live = LiveProgress(config.rounds, "storing the round")
    with (
        live.written_to(folder.path),
        show_progress(recording),
        event_files(recording, events) as hub,
        run_telemetry(
            hub, recording.config, longer, engine.device, config.rounds, session.tally
        ) as telemetry,
    ):
        note_start(config, folder, session.begin(engine))
        telemetry.run_started(engine, parsed.label)
        listeners = ListenerGroup([timer, *telemetry.listeners, live, session.interrupts])

        def run_one() -> RoundResult:
            done = run_round(engine, policy, listeners)
            return charge_for_length(done, length, spec.score)

        rounds = _run_tracked(config, folder, session, engine, run_one)
    result = make_run_result(engine, rounds, timer, f"{hub.report()} ({events})")
    return Trained(folder, result, session.members.members)


def _run_tracked(
    config: Train,
    folder: RunFolder,
    session: PolicySession,
    engine: VectorizedEngine,
    run_one: Callable[[], RoundResult],
) -> list[RoundResult]:
    """Run the rounds that are left; trackers get those of earlier sessions, too, if missing."""
    names, done = config.recording.track, len(session.rounds)
    with track_training(names, folder, config.training, done) as tracking:
        for step, result in enumerate(session.rounds):
            tracking.log(step, result_figures(result))

        def on_round(result: RoundResult) -> None:
            tracking.log(len(session.rounds) - 1, result_figures(result))

        return session.run(engine, run_one, on_round)
