"""Checkpoints: atomic, retention, and damage detected and skipped."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from esper.leyline import TelemetryConfig, TelemetryLevel
from esper.leyline.context import ContextSpec, Range
from esper.leyline.payloads import CheckpointReason
from esper.leyline.telemetry import TelemetryEventType
from esper.nissa import MemorySink, TelemetryHub
from esper.simic.agent import PPOAgent
from esper.simic.telemetry.listener import RunTally, TelemetryListener
from esper.simic.training.history import RoundRecord
from esper.simic.training.runs.checkpoint_store import (
    CheckpointStore,
    Summary,
    verify,
)
from esper.simic.training.runs.checkpoints import (
    CheckpointHook,
    best_round,
    capture,
    completed_rounds,
    find_checkpoint,
    read_checkpoint,
    run_tally,
)
from esper.simic.training.runs.folder import RunFolder
from esper.simic.training.vectorized import make_trainer, train_ppo_vectorized
from esper.storage import atomic, manifest
from esper.storage.sealed_json import seal
from esper.tasks.spec import OptimSettings
from loop_support import same_agents, tiny_config, tiny_task, untimed
from resume_support import DEADLY, die_at
from run_driver import EPISODE, small_run, small_trainer
from support import refused


def save(trainer, config, store):
    """Write a checkpoint between two rounds."""
    captured = capture(trainer, config)
    return store.write(captured.summary, captured.write_files)


def put(store: CheckpointStore, number: int, score: float = 0.0) -> Path:
    """A checkpoint with two files, which say what it is."""

    def write_files(folder: Path) -> None:
        (folder / "agent").mkdir()
        atomic.write_atomic(folder / "agent" / "tensors", bytes(range(100)))
        atomic.write_atomic(folder / "state.json", str(number).encode())

    return store.write(Summary(number, 99, score, number, score), write_files)


def rounds_in(store: CheckpointStore) -> list[int]:
    return [verify(path).round for path in store.paths()]


# ---- what stays ---------------------------------------------------------------------------------


def test_the_last_few_and_the_best_are_kept(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints", keep=3)
    scores = [0.1, 0.3, 0.9, 0.2, 0.9, 0.4, 0.5, 0.6]
    for number, score in enumerate(scores, start=1):
        path = put(store, number, score)
        assert verify(path).round == number
        last = list(range(max(1, number - 2), number + 1))
        best = 1 + max(range(number), key=lambda i: scores[i])
        assert rounds_in(store) == sorted({*last, best})
    assert store.best().path.name == "round-000003", "of equals the earliest"
    assert store.newest_valid().path.name == "round-000008"
    assert sorted(os.listdir(store.path)) == [path.name for path in store.paths()]


@given(
    scores=st.lists(st.floats(-1, 1) | st.just(math.nan), min_size=1, max_size=8),
    keep=st.integers(1, 4),
)
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_newest_and_best_are_there_whatever_the_scores(tmp_path, scores, keep):
    shutil.rmtree(tmp_path / "c", ignore_errors=True)
    store = CheckpointStore(tmp_path / "c", keep)
    for number, score in enumerate(scores, start=1):
        put(store, number, score)
    assert len(store.paths()) <= keep + 1
    assert verify(store.newest_valid().path).round == len(scores)
    best = verify(store.best().path).score
    ranked = [s for s in scores if not math.isnan(s)]
    assert best == max(ranked) if ranked else math.isnan(best)


def test_rounds_are_ordered_as_numbers(tmp_path):
    store = CheckpointStore(tmp_path, keep=9)
    for number in (999_999, 1_000_000, 3):
        put(store, number)
    assert rounds_in(store) == [3, 999_999, 1_000_000]


def test_keeping_none_is_refused(tmp_path):
    assert "keep=0" in refused(lambda: CheckpointStore(tmp_path, keep=0))
    config = tiny_config()
    assert "every=0" in refused(lambda: CheckpointHook(CheckpointStore(tmp_path), config, 0))


def test_a_round_that_is_done_again_takes_the_place_of_the_first(tmp_path):
    store = CheckpointStore(tmp_path)
    put(store, 1)
    (put(store, 2) / "state.json").write_text("x")
    assert store.newest_valid().path.name == "round-000001"
    put(store, 2, 0.5)
    assert verify(store.newest_valid().path) == Summary(2, 99, 0.5, 2, 0.5)
    assert (tmp_path / "aside-round-000002" / "state.json").read_text() == "x"
    put(store, 2, 0.25)
    assert verify(store.newest_valid().path) == Summary(2, 99, 0.25, 2, 0.25)
    assert len(os.listdir(tmp_path)) == 3, "the whole one was replaced"


def test_damaged_ones_make_way_and_are_not_counted(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    for number in (1, 2, 3):
        path = put(store, number, 1.0 / number)
    (path / "state.json").unlink()
    put(store, 4)
    assert rounds_in(store) == [1, 2, 4], "two whole ones and the best"
    assert (store.path / "aside-round-000003" / "agent" / "tensors").exists(), "not removed"


# ---- killed, full, unwritable -------------------------------------------------------------------


def test_killed_between_any_two_file_operations_a_whole_one_is_left(tmp_path):
    """Written, replaced and removed: every third moment at which the folder changes is tried."""
    before = CheckpointStore(tmp_path / "before", keep=1)
    put(before, 1, 0.9)
    put(before, 3)
    calls = 0
    while True:
        calls += 3
        shutil.copytree(before.path, tmp_path / str(calls))
        store = CheckpointStore(tmp_path / str(calls), keep=1)
        child = os.fork()
        if not child:
            die_at(calls, DEADLY)
            put(store, 3, 0.1)  # replaces
            put(store, 4)  # removes 3
            os._exit(0)
        _, status = os.waitpid(child, 0)
        found = store.newest_valid()
        assert found.skipped == (), "nothing half stands under a name"
        assert verify(found.path).round in (1, 3, 4)
        assert verify(store.best().path).round == 1
        put(store, 5)
        assert rounds_in(store) == [1, 5]
        assert sorted(os.listdir(store.path)) == ["round-000001", "round-000005"], "swept"
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
    assert calls > 20


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_write_that_fails_is_one_line_and_leaves_the_others(tmp_path, monkeypatch, code, call):
    store = CheckpointStore(tmp_path / "run" / "checkpoints")
    put(store, 1)
    put(store, 2)
    before = {p: p.read_bytes() for p in store.path.rglob("*") if p.is_file()}
    real, calls = atomic.write_atomic, []

    def failing(path, content):
        calls.append(path)
        if len(calls) == call:
            raise OSError(code, os.strerror(code))
        real(path, content)

    for module in (atomic, manifest):
        monkeypatch.setattr(module, "write_atomic", failing)
    line = refused(lambda: put(store, 3))
    assert "cannot save round 3" in line
    assert os.strerror(code) in line
    assert ("free some space" if code == errno.ENOSPC else "check its permissions") in line
    assert f"--resume {tmp_path / 'run'}" in line
    assert {p: p.read_bytes() for p in store.path.rglob("*") if p.is_file()} == before
    assert sorted(os.listdir(store.path)) == ["round-000001", "round-000002"]


def test_the_agent_that_cannot_be_written_is_told_in_the_same_words(tmp_path, monkeypatch):
    from esper.storage import saves as files

    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    trainer = small_trainer(small_run(1))
    trainer.run()
    monkeypatch.setattr(files, "write_atomic", full)
    store = CheckpointStore(tmp_path / "checkpoints")
    line = refused(lambda: save(trainer, small_run(1), store))
    assert f"cannot save round 1 to {store.path}: No space left on device; free some space" in line
    assert os.listdir(store.path) == []


def test_a_file_in_place_of_the_folder_is_told(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    assert "cannot save round 1" in refused(
        lambda: put(CheckpointStore(tmp_path / "checkpoints"), 1)
    )


def test_a_read_only_folder_is_told(users_folder):
    store = CheckpointStore(users_folder)
    put(store, 1)
    users_folder.chmod(0o500)
    try:
        assert "check its permissions" in refused(lambda: put(store, 2))
        assert rounds_in(store) == [1]
    finally:
        users_folder.chmod(0o700)


def test_a_bug_is_no_full_disk(tmp_path):
    def write_files(folder):
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        CheckpointStore(tmp_path).write(Summary(1, 1, 0.0, 1, 0.0), write_files)
    assert os.listdir(tmp_path) == []


# ---- damage -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Path:
    """The folder of a small run with three checkpoints, not to be changed."""
    config = small_run(3)
    with RunFolder.create(tmp_path_factory.mktemp("real"), "real", config) as folder:
        train_ppo_vectorized(config, run_dir=folder, spec=tiny_task(episode_length=EPISODE))
        return folder.path


@pytest.fixture
def spoilt(real, tmp_path) -> CheckpointStore:
    """Its checkpoints, to be spoilt."""
    shutil.rmtree(tmp_path / "c", ignore_errors=True)
    shutil.copytree(real / "checkpoints", tmp_path / "c")
    return CheckpointStore(tmp_path / "c")


FILES = ("checkpoint.json", "state.json", "history.jsonl", "agent/manifest.json", "agent/tensors")


def file_of(folder: Path, name: str) -> Path:
    (path,) = folder.glob(f"{name}*")
    return path


@pytest.mark.parametrize("name", FILES)
@given(share=st.floats(0, 1, exclude_max=True), flip=st.booleans())
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cut_or_flipped_anywhere_it_falls_back_to_the_one_before(spoilt, name, share, flip):
    """Any file of the newest checkpoint, at any byte."""
    path = file_of(spoilt.paths()[-1], name)
    whole = path.read_bytes()
    at = int(share * len(whole))
    flipped = whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]
    path.write_bytes(flipped if flip else whole[:at])
    found = spoilt.newest_valid()
    path.write_bytes(whole)
    assert found.path.name == "round-000002"
    (line,) = found.skipped
    assert str(path) in line
    assert "\n" not in line


@pytest.mark.parametrize("name", FILES)
def test_cut_by_its_last_byte_it_is_damaged(spoilt, name):
    path = file_of(spoilt.paths()[-1], name)
    path.write_bytes(path.read_bytes()[:-1])
    assert str(path) in refused(lambda: verify(spoilt.paths()[-1]))


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(spoilt, name):
    path = file_of(spoilt.paths()[-1], name)
    path.unlink()
    found = spoilt.newest_valid()
    assert found.path.name == "round-000002"
    assert str(path) in found.skipped[0]
    assert str(path) in refused(lambda: read_checkpoint(spoilt.paths()[-1]))


def test_the_best_one_damaged_gives_way_to_the_next(spoilt):
    best = spoilt.best().path
    file_of(best, "history.jsonl").write_bytes(b"")
    found = spoilt.best()
    assert found.path != best
    assert str(best) in found.skipped[0]
    (found.path / "checkpoint.json").write_text("{}")
    assert len(spoilt.best().skipped) == 2


def rewritten(path: Path, **changes) -> None:
    document = json.loads((path / "checkpoint.json").read_text())
    (path / "checkpoint.json").write_text(json.dumps(seal(document | changes)))


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "agent/../../x", ""])
def test_files_lie_in_the_checkpoint(spoilt, name):
    path = spoilt.paths()[-1]
    content = json.loads((path / "checkpoint.json").read_text())["content"]
    content["files"][0]["name"] = name
    rewritten(path, content=content)
    assert "is not a checkpoint file" in refused(lambda: verify(path))


def test_what_a_newer_esper_wrote_is_not_guessed_at(spoilt):
    path = spoilt.paths()[-1]
    rewritten(path, schema=2)
    assert "has schema" in refused(lambda: verify(path))
    rewritten(path, format="other")
    assert "not a manifest of an Esper checkpoint" in refused(lambda: verify(path))


# ---- what is in one -----------------------------------------------------------------------------


def test_everything_comes_back_bit_for_bit(tmp_path):
    config = small_run(2)
    trainer = small_trainer(config)
    trainer.run()
    checkpoint = read_checkpoint(save(trainer, config, CheckpointStore(tmp_path)))
    assert same_agents(checkpoint.load_agent(), trainer.client.agent)
    assert checkpoint.load_history() == trainer.history, "wall times included"
    assert checkpoint.engine == trainer.engine.state_dict()
    assert checkpoint.config == config
    assert same_agents(PPOAgent.load(checkpoint.path / "agent"), trainer.client.agent)
    scores = [record.mean_score for record in trainer.history]
    best = int(np.argmax(scores))
    assert checkpoint.summary == Summary(2, 2, scores[-1], best + 1, scores[best])


def test_numbers_that_are_not_finite_come_back(tmp_path):
    trainer = small_trainer(small_run(1))
    (record,) = trainer.run()
    odd = np.array([math.nan, -math.inf])
    metrics = replace(record.metrics, explained_variance=math.nan, grad_norm=math.inf)
    trainer.history[:] = [replace(record, return_E=odd, metrics=metrics)]
    checkpoint = read_checkpoint(save(trainer, small_run(1), CheckpointStore(tmp_path)))
    assert checkpoint.load_history() == trainer.history


def test_a_capture_does_not_change_while_the_run_goes_on(tmp_path):
    config = small_run(2)
    captures = []
    trainer = small_trainer(config, hooks=[lambda t, r: captures.append(capture(t, config))])
    trainer.run()
    store = CheckpointStore(tmp_path)
    late = read_checkpoint(store.write(captures[0].summary, captures[0].write_files))
    other = small_trainer(small_run(1))
    other.run()
    assert same_agents(late.load_agent(), other.client.agent)
    assert untimed(late.load_history()) == untimed(other.history)


def test_in_the_middle_of_an_episode_nothing_is_saved(tmp_path):
    config = small_run(2, rollout_steps=1)
    hook = CheckpointHook(CheckpointStore(tmp_path), config)
    seen = []

    def watch(trainer, record):
        hook(trainer, record)
        seen.append(rounds_in(hook.store))
        if trainer.engine.step:
            assert "within an episode" in refused(lambda: capture(trainer, config))

    trainer = small_trainer(config, hooks=[watch])
    trainer.run()
    assert seen == [[], [], [1], [1], [1], [1, 2]]
    assert len(read_checkpoint(hook.store.newest_valid().path).load_history()) == 6


def scored(*scores: float, parts: int = 1) -> list[RoundRecord]:
    """Rounds of two members that ended with these scores, each in so many rollouts."""
    trainer = small_trainer(small_run(1))
    (record,) = trainer.run()
    return [
        replace(
            record,
            round_index=i,
            episodes_done=2 * (i + (part == parts - 1)),
            score_E=np.full(2, score + 10 * (part < parts - 1)),
        )
        for i, score in enumerate(scores)
        for part in range(parts)
    ]


def test_the_best_round_is_that_of_a_whole_episode():
    history = scored(0.1, 0.4, 0.4, 0.2, parts=3)
    assert len(completed_rounds(history)) == 4
    assert best_round(history).round_index == 1
    assert best_round(history[:2]) is None
    assert best_round(scored(math.nan)) is None
    assert run_tally(history) == RunTally(4, 8, 0.4)
    assert math.isnan(run_tally([]).best_score)


def test_checkpoints_of_before_are_read(copied):
    """Their manifests do not say whether rounds varied, nor do those of runs where none did."""
    for path in CheckpointStore(copied / "checkpoints").paths():
        summary = json.loads((path / "checkpoint.json").read_text())["content"]["summary"]
        assert "varied" not in summary
    assert find_checkpoint(copied).summary.varied is False


def test_where_rounds_draw_budget_or_data_the_latest_is_the_best(tmp_path):
    """Their scores say how hard a draw was; a checkpoint of an early, easy round is no better."""
    scores = [0.1, 0.9, 0.2, 0.3, 0.25]
    history = scored(*scores)
    assert best_round(history, varied=True) is None
    config = small_run(len(scores))
    same = tiny_task(episode_length=EPISODE)
    drawn = replace(same, context=ContextSpec(label_noise=Range(0.0, 0.4)))
    for name, spec, kept, best in (("same", same, [2, 4, 5], 2), ("drawn", drawn, [4, 5], 5)):
        trainer = make_trainer(config, spec=spec)
        hook = CheckpointHook(CheckpointStore(tmp_path / name, keep=2), config, every=4)
        for done, record in enumerate(history, start=1):
            trainer.engine.round = done
            trainer.history.append(record)
            hook(trainer, record)
        assert rounds_in(hook.store) == kept
        found = hook.store.best().path
        assert found.name == f"round-{best:06d}"
        assert read_checkpoint(found).summary.best_round == (best if name == "same" else 0)


def test_so_it_is_in_runs_from_before_checkpoints_said_that_rounds_varied(copied):
    same = tiny_task(episode_length=EPISODE)
    drawn = replace(same, context=ContextSpec(label_noise=Range(0.0, 0.4)))
    for spec, wanted in ((same, 1), (drawn, 3)):
        shutil.rmtree(copied / "checkpoints")
        store, config = CheckpointStore(copied / "checkpoints"), small_run(1)
        trainer = make_trainer(config, spec=spec)
        trainer.run()
        taken = capture(trainer, config)
        for number, score in enumerate((0.9, 0.2, 0.3), start=1):
            store.write(Summary(number, 3, score, 1, 0.9), taken.write_files)
        assert find_checkpoint(copied).summary.round == wanted


# ---- when ---------------------------------------------------------------------------------------


def test_saved_every_k_rounds_at_the_best_score_and_at_the_end(tmp_path):
    """Scores are set, so that it is known which rounds are the best so far."""
    scores = [0.5, 0.2, 0.3, 0.1, 0.6, 0.4, 0.1, 0.2]
    history = scored(*scores)
    config = small_run(len(scores))
    sink = MemorySink()
    hub = TelemetryHub([sink], TelemetryLevel.NORMAL)
    reported = TelemetryConfig(level=TelemetryLevel.NORMAL)
    ear = TelemetryListener(
        hub, reported, "cpu", 8, batches_per_step=1, batch_size=16, optim=OptimSettings()
    )
    trainer = small_trainer(config, listeners=[ear])
    hook = CheckpointHook(CheckpointStore(tmp_path, keep=9), config, every=3)
    for done, record in enumerate(history, start=1):
        trainer.engine.round = done
        trainer.history.append(record)
        hook(trainer, record)
    hub.close()
    assert rounds_in(hook.store) == [1, 3, 5, 6, 8]
    events = [e for e in sink.events if e.type is TelemetryEventType.CHECKPOINT_SAVED]
    assert [(e.round_index, e.payload.reason) for e in events] == [
        (0, CheckpointReason.BEST),
        (2, CheckpointReason.PERIODIC),
        (4, CheckpointReason.BEST),
        (5, CheckpointReason.PERIODIC),
        (7, CheckpointReason.FINAL),
    ]
    for event, path in zip(events, hook.store.paths(), strict=True):
        files = [p for p in path.rglob("*") if p.is_file()]
        assert event.payload.path == str(path)
        assert event.payload.size_bytes == sum(p.stat().st_size for p in files)


def test_saving_changes_nothing(real):
    plain = small_trainer(small_run(3))
    plain.run()
    saved = read_checkpoint(CheckpointStore(real / "checkpoints").newest_valid().path)
    assert same_agents(saved.load_agent(), plain.client.agent)
    assert untimed(saved.load_history()) == untimed(plain.history)


# ---- asked for ----------------------------------------------------------------------------------


def test_a_checkpoint_or_the_best_of_a_run_can_be_asked_for(real, tmp_path):
    store = CheckpointStore(real / "checkpoints")
    assert find_checkpoint(real).path == store.best().path
    for path in store.paths():
        assert find_checkpoint(path).path == path
    assert "has no run.json" in refused(lambda: find_checkpoint(tmp_path))
    with RunFolder.create(tmp_path, "new", small_run(1)) as folder:
        assert "no valid checkpoint" in refused(lambda: find_checkpoint(folder.path))


def test_another_checkpoint_than_the_best_is_never_taken_in_silence(real, tmp_path, caplog):
    run = tmp_path / "run"
    shutil.copytree(real, run)
    best = CheckpointStore(run / "checkpoints").best().path
    (best / "history.jsonl").write_bytes(b"")
    taken = find_checkpoint(run)
    assert taken.path != best
    (line,) = caplog.messages
    assert best.name in line
    assert f"using {taken.path} instead" in line
