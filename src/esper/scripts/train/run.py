"""Runs `esper train` with a policy that does not learn."""

from __future__ import annotations

from esper.leyline.telemetry import TelemetryConfig
from esper.scripts.train.config import Train
from esper.scripts.train.recording import event_files, show_progress
from esper.simic.rewards.score import ScoreReward
from esper.simic.telemetry.listener import ListenerGroup
from esper.simic.telemetry.run_telemetry import run_telemetry
from esper.tamiyo.make_policy import spec_for
from esper.tasks.spec import TaskSpec
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.round_results import (
    RunResult,
    StageRecorder,
    charge_for_length,
    make_run_result,
    run_round,
)


def run(config: Train, spec: TaskSpec) -> RunResult:
    """Train all rounds; returns the result."""
    parsed, recording = config.parsed, config.recording
    longer = spec_for(parsed, spec)
    policy = config.make_policy(longer, ScoreReward(spec.upkeep))
    engine = VectorizedEngine(longer, config.engine_config(), data=spec.load(config.data_dir))
    diary, folder = StageRecorder(), recording.telemetry_dir
    level = TelemetryConfig(level=recording.level)
    with (
        show_progress(recording),
        event_files(recording, folder) as hub,
        run_telemetry(hub, level, longer, engine.device, config.rounds) as telemetry,
    ):
        telemetry.run_started(engine, parsed.label)
        listeners = ListenerGroup([diary, *telemetry.listeners])
        rounds = [run_round(engine, policy, diary, listeners) for _ in range(config.rounds)]
    length = longer.episode_length / spec.episode_length
    rounds = [charge_for_length(done, length, spec.score) for done in rounds]
    events = f"{hub.report()} ({folder})" if folder else ""
    return make_run_result(engine, rounds, diary, events)
