"""`train_ppo_vectorized` assembles a run: folder, resume, sinks and the command line agree."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from esper.leyline.codec import to_json
from esper.leyline.context import VARIED
from esper.leyline.payloads import AnomalyKind, RunStatus
from esper.leyline.telemetry import TelemetryConfig, TelemetryEventType, TelemetryLevel
from esper.nissa import MemorySink, TelemetryHub, get_hub
from esper.nissa.hub import use_hub
from esper.scripts import train
from esper.simic.training.runs.checkpoints import find_checkpoint
from esper.simic.training.runs.folder import SessionEnd, read_info
from esper.simic.training.vectorized import train_ppo_vectorized
from esper.tamiyo.baselines import WaitPolicy
from esper.tolaria.engine import VectorizedEngine
from loop_support import same_agents, tiny_config, untimed
from resume_support import SPEC
from run_driver import small_run
from support import refused

Kind = TelemetryEventType


@pytest.fixture(scope="module")
def plain():
    """Three rounds with nothing around them."""
    return train_ppo_vectorized(small_run(3), spec=SPEC)


def test_a_folder_sinks_and_a_resume_change_no_bit(tmp_path, plain):
    run, sink = tmp_path / "run", MemorySink()
    train_ppo_vectorized(small_run(1), run_dir=run, sinks=[sink], spec=SPEC)
    agent, history = train_ppo_vectorized(small_run(3), run_dir=run, resume=True, spec=SPEC)
    assert same_agents(agent, plain[0])
    assert untimed(history) == untimed(plain[1])
    assert same_agents(find_checkpoint(run / "checkpoints" / "round-000003").load_agent(), agent)
    assert [session.end for session in read_info(run).sessions] == [SessionEnd.FINISHED] * 2


def test_sinks_hear_the_run_from_its_start_to_its_end(tmp_path):
    sink = MemorySink()
    train_ppo_vectorized(small_run(2), run_dir=tmp_path / "run", sinks=[sink], spec=SPEC)
    kinds = [event.type for event in sink.events]
    assert (kinds[0], kinds[-1]) == (Kind.RUN_STARTED, Kind.RUN_FINISHED)
    assert kinds.count(Kind.ROUND_COMPLETED) == kinds.count(Kind.PPO_UPDATED) == 2
    assert Kind.CHECKPOINT_SAVED in kinds
    assert sink.events[-1].payload.status is RunStatus.COMPLETED


def test_the_hub_of_the_process_hears_a_run_until_another_takes_its_place():
    sink = MemorySink()
    with use_hub(TelemetryHub([sink], TelemetryLevel.NORMAL)) as hub:
        assert get_hub() is hub
        train_ppo_vectorized(small_run(1), spec=SPEC)
        hub.flush()
        heard = len(sink.events)
    train_ppo_vectorized(small_run(1), spec=SPEC)
    kinds = [event.type for event in sink.events]
    assert (kinds[0], kinds[-1]) == (Kind.RUN_STARTED, Kind.RUN_FINISHED)
    assert len(kinds) == heard


def test_levels_of_sinks_and_of_the_process_are_their_own():
    loud, soft = MemorySink(), MemorySink()
    with use_hub(TelemetryHub([loud], TelemetryLevel.DEBUG)):
        quiet = TelemetryConfig(level=TelemetryLevel.MINIMAL)
        train_ppo_vectorized(small_run(1), sinks=[soft], telemetry=quiet, spec=SPEC)
    assert {event.type for event in soft.events} < {event.type for event in loud.events}


def test_a_callers_hub_stays_open():
    sink = MemorySink()
    with TelemetryHub([sink], TelemetryLevel.NORMAL) as hub:
        for _ in range(2):
            train_ppo_vectorized(small_run(1), sinks=hub, spec=SPEC)
    starts = [event for event in sink.events if event.type is Kind.RUN_STARTED]
    assert len(starts) == 2


def test_events_carry_what_was_measured():
    sink = MemorySink()
    train_ppo_vectorized(small_run(1), sinks=[sink], spec=SPEC)
    by_kind = {event.type: event.payload for event in sink.events}
    assert 0.0 < by_kind[Kind.THROUGHPUT].device_share <= 1.0
    contexts = by_kind[Kind.ROUND_CONTEXTS]
    assert contexts.spent_E.tolist() == [pytest.approx(2 / 3)] * 2  # seen before the last of 3
    assert (contexts.budget, contexts.price_E.tolist()) == (1.0, [1.0, 1.0])
    assert 0.0 <= by_kind[Kind.ROUND_COMPLETED].mean_train_accuracy <= 1.0


def test_rounds_that_draw_their_contexts_have_nothing_that_is_not_finite_and_should_be():
    """Members stop, or can afford no batch of a step, and no round is the best."""
    sink = MemorySink()
    train_ppo_vectorized(small_run(3), sinks=[sink], spec=replace(SPEC, context=VARIED))
    found = [event.payload for event in sink.events if event.type is Kind.ANOMALY_DETECTED]
    assert [it.detail for it in found if it.kind is AnomalyKind.NON_FINITE] == []
    rounds = [event.payload for event in sink.events if event.type is Kind.ROUND_COMPLETED]
    assert any(math.isnan(it.mean_train_accuracy) for it in rounds), "or this tests nothing"


def test_the_train_accuracy_of_a_rollout_is_that_of_its_last_batches():
    """One batch a step: predictions of the members before its update, counted by hand."""
    config = tiny_config(rounds=1, envs=2).engine_config()
    spec = replace(SPEC, episode_length=1, batches_per_step=1)
    engine = VectorizedEngine(spec, config)
    engine.env.model.reset(0)
    engine.batches.reset(0)
    (x, target), *_ = engine.batches.step(0, engine.buffers)
    hosts = [engine.env.model.member(index).train() for index in range(2)]
    found = [host(x[index]).argmax(dim=-1) for index, host in enumerate(hosts)]
    expected = [(f == t).double().mean().item() for f, t in zip(found, target, strict=True)]
    rollout = VectorizedEngine(spec, config).run_rollout(WaitPolicy())
    np.testing.assert_allclose(rollout.train_accuracy_E, expected)


def test_the_command_trains_the_same_controller(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    config = tiny_config(rounds=1, envs=2)
    (tmp_path / "config.json").write_text(_as_json(config))
    argv = ["ppo", "--config", "config.json", "--evaluation-envs", "1", "--quiet"]
    assert train.main(argv) == 0, capsys.readouterr().err
    (run,) = Path("runs").iterdir()
    newest = sorted((run / "checkpoints").iterdir())[-1]
    agent, _ = train_ppo_vectorized(config)
    assert same_agents(find_checkpoint(newest).load_agent(), agent)


def _as_json(config) -> str:
    return json.dumps(to_json(config))


def test_what_is_refused_before_training_leaves_no_folder(tmp_path):
    config = small_run(1)
    wrong = replace(config, population=replace(config.population, device="cuda:99"))
    refused(lambda: train_ppo_vectorized(wrong, run_dir=tmp_path / "run", spec=SPEC))
    assert list(tmp_path.iterdir()) == []


def test_what_is_refused_while_it_is_assembled_leaves_no_folder_and_no_event(tmp_path):
    sink, run = MemorySink(), tmp_path / "runs" / "run"

    def broken():
        raise RuntimeError("no such host")

    spec = replace(SPEC, host_factory=broken)
    line = refused(lambda: train_ppo_vectorized(small_run(1), run_dir=run, sinks=[sink], spec=spec))
    assert "no such host" in line
    assert list(tmp_path.iterdir()) == []
    assert sink.events == []


def test_a_refused_resume_leaves_the_settings_of_the_session_before(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(_as_json(tiny_config(rounds=2, envs=2)))
    argv = ["ppo", "--config", "config.json", "--evaluation-envs", "1", "--quiet"]
    assert train.main(argv) == 0, capsys.readouterr().err
    (run,) = Path("runs").iterdir()
    before = {path: path.read_bytes() for path in run.glob("*.json")}
    assert train.main(["ppo", "--resume", str(run), "--rounds", "1", "--telemetry", "off"]) == 2
    assert {path: path.read_bytes() for path in run.glob("*.json")} == before


def test_misuse_is_named(tmp_path):
    run = tmp_path / "run"
    train_ppo_vectorized(small_run(1), run_dir=run, spec=SPEC)
    line = refused(lambda: train_ppo_vectorized(small_run(1), run_dir=run, spec=SPEC))
    assert f"{run} exists" in line
    assert "resume=True without run_dir" in refused(lambda: train_ppo_vectorized(resume=True))
    missing = tmp_path / "other"
    line = refused(lambda: train_ppo_vectorized(run_dir=missing, resume=True))
    assert f"{missing} does not exist" in line
