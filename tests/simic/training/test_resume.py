"""Killed and resumed runs are bit-identical; changed experiments raise by name."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.leyline.payloads import RunStatus
from esper.leyline.telemetry import TelemetryEventType
from esper.nissa import MemorySink
from esper.scripts.train.learner_config import read_train_ppo
from esper.simic.agent.schedule import Schedule
from esper.simic.training.config import TrainingConfig
from esper.simic.training.runs import resume
from esper.simic.training.runs.checkpoint_store import KEEP, CheckpointStore, verify
from esper.simic.training.runs.checkpoints import task_facts
from esper.simic.training.runs.folder import (
    Retention,
    RunFolder,
    SessionEnd,
    read_config,
    read_info,
    read_retention,
)
from esper.simic.training.runs.resume import (
    MAY_CHANGE,
    check_changes,
    check_task_facts,
)
from esper.simic.training.vectorized import train_ppo_vectorized
from esper.tasks.registry import get_task_spec
from loop_support import same_agents, tiny_task, untimed
from resume_support import SPEC, newest, resumed_run, same_runs, trained
from run_driver import EPISODE, small_run, small_trainer
from support import refused

# ---- the same bits ------------------------------------------------------------------------------


def test_2n_rounds_are_n_rounds_kill_9_and_n_rounds(tmp_path, server, four):
    job = server.start("train", tmp_path, 4)
    job.until("round", 2)
    job.send(signal.SIGKILL)
    assert job.wait() == -signal.SIGKILL
    assert 2 <= newest(job.folder).summary.round < 4
    rest = server.done("resume", job.folder)
    assert int(rest.until("from")) + len(rest.lines("round")) == 4
    assert same_runs(job.folder, four)
    ends = [session.end for session in read_info(job.folder).sessions]
    assert ends == [None, SessionEnd.FINISHED]


def test_n_rounds_and_n_more_are_2n(copied, four):
    resumed = resumed_run(copied, small_run(4))
    assert same_runs(copied, four)
    assert [record.round_index for record in resumed.trainer.history] == list(range(4))
    assert read_config(copied).rounds == 4


def killed_at_random(server, tmp_path: Path, rounds: int, kills: int, seed: int) -> None:
    job = server.done("kills", tmp_path, rounds, kills, seed)
    assert int(job.until("killed")) >= kills
    reference = trained(tmp_path / "reference", small_run(rounds))
    finished = [Path(line) for line in job.lines("finished")]
    assert finished
    for path in finished:
        assert same_runs(path, reference)


@pytest.mark.slow
def test_killed_at_thirty_random_moments_only_the_current_round_is_lost(server, tmp_path):
    killed_at_random(server, tmp_path, rounds=12, kills=30, seed=1)


def test_rollouts_shorter_than_an_episode_continue_at_its_end(tmp_path):
    """Stopped in the middle of the second episode: it resumes from the end of the first."""
    config = small_run(2, rollout_steps=1)

    def stop(trainer, record):
        if trainer.engine.round == 1 and trainer.engine.step == 2:
            raise RuntimeError("stopped")

    with (
        pytest.raises(RuntimeError, match="stopped"),
        RunFolder.create(tmp_path, "cut", config) as folder,
    ):
        train_ppo_vectorized(config, run_dir=folder, hooks=[stop], spec=SPEC)
    assert len(resumed_run(folder.path, run=False).trainer.history) == 3
    resumed = resumed_run(folder.path)
    whole = small_trainer(config)
    whole.run()
    assert same_agents(resumed.trainer.client.agent, whole.client.agent)
    assert untimed(resumed.trainer.history) == untimed(whole.history)


def test_a_run_that_is_done_stays_as_it_is(copied, two):
    resumed = resumed_run(copied)
    assert resumed.trainer.engine.round == 2
    assert len(resumed.trainer.history) == 2
    assert same_runs(copied, two)


# ---- damage -------------------------------------------------------------------------------------


def test_a_resumed_run_keeps_as_many_checkpoints_as_before(tmp_path):
    """Kept for a study of how it learnt: a resume that does not repeat the flag removes none."""
    config = small_run(5)
    with RunFolder.create(tmp_path, "x", config) as folder:
        train_ppo_vectorized(config, run_dir=folder, spec=SPEC, keep=6)
    resumed_run(folder.path, replace(config, rounds=6))
    names = [f"round-{number:06d}" for number in range(1, 7)]
    assert sorted(path.name for path in (folder.path / "checkpoints").iterdir()) == names
    asked = read_train_ppo(["--resume", str(folder.path)])
    assert (asked.keep, asked.checkpoint_every) == (6, 1)
    assert read_train_ppo(["--resume", str(folder.path), "--keep", "2"]).keep == 2


def test_a_run_kept_as_usual_says_nothing_about_it(two):
    assert not (two / "retention.json").exists()
    assert read_retention(two) == Retention(every=1, keep=KEEP)


def test_from_a_damaged_checkpoint_it_falls_back_and_says_so(copied, four):
    path = copied / "checkpoints" / "round-000002" / "history.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    resumed = resumed_run(copied, small_run(4))
    assert resumed.checkpoint.name == "round-000001"
    assert f"{path} is damaged" in resumed.notes[0]
    assert f"falling back to {resumed.checkpoint}" in resumed.notes[0]
    assert same_runs(copied, four)
    assert all(verify(path) for path in CheckpointStore(copied / "checkpoints").paths())


def test_where_no_checkpoint_is_whole_nothing_is_begun_anew_in_silence(copied):
    for path in (copied / "checkpoints").glob("*/state.json"):
        path.unlink()
    before = read_info(copied)
    line = refused(lambda: resumed_run(copied))
    assert "none of its 2 checkpoints is valid" in line
    assert "start a new run" in line
    assert read_info(copied) == before


# ---- what may change ----------------------------------------------------------------------------


def test_learning_rate_like_settings_may_change(copied):
    config = small_run(4)
    ppo = replace(config.ppo, learning_rate=Schedule(3e-5), epochs=2, target_kl=None, clip=0.1)
    config = replace(config, ppo=ppo)
    resumed = resumed_run(copied, config)
    later = resumed.trainer.history[2:]
    assert [r.metrics.learning_rate for r in later] == [3e-5, 3e-5]
    assert [r.metrics.epochs_run for r in later] == [2, 2]
    assert read_config(copied) == config == newest(copied).config
    (_, session) = read_info(copied).sessions
    assert session.changed == resumed.changed
    assert set(resumed.changed) == {
        "rounds: 2 -> 4",
        "ppo.clip: 0.2 -> 0.1",
        "ppo.epochs: 1 -> 2",
        "ppo.learning_rate.start: 0.001 -> 3e-05",
        "ppo.target_kl: 0.05 -> None",
    }
    assert session.from_round == 2


def changed(name: str, value) -> TrainingConfig:
    """The small run with another value of a setting."""
    config = small_run(2)
    group, _, field = name.rpartition(".")
    if not group:
        return replace(config, **{field: value})
    if group == "ppo.network":
        network = replace(config.ppo.network, **{field: value})
        return replace(config, ppo=replace(config.ppo, network=network))
    return replace(config, **{group: replace(getattr(config, group), **{field: value})})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task.name", "digits_impaired"),
        ("task.blueprints", ("norm",)),
        ("task.episode_length", 7),
        ("task.batch_size", 8),
        ("population.envs", 3),
        ("population.rollout_steps", 2),
        ("population.counterfactual_stride", 2),
        ("seed", 1),
        ("ppo.network.width", 32),
        ("ppo.gamma", 0.9),
        ("ppo.normalize_rewards", False),
        ("reward.rollback_penalty", 0.5),
    ],
)
def test_another_run_is_refused_by_name(two, name, value):
    before = (two / "run.json").read_bytes()
    line = refused(lambda: resumed_run(two, changed(name, value)))
    assert f"{name} is " in line
    assert "start a new run" in line
    assert (two / "run.json").read_bytes() == before, "no session was begun"


@pytest.mark.parametrize(("name", "value"), [("graphs", "off"), ("kernels", "torch")])
def test_how_it_is_computed_may_change(name, value):
    found = check_changes(small_run(2), changed(f"population.{name}", value))
    assert found == (f"population.{name}: auto -> {value}",)


def test_every_mismatch_is_named_at_once():
    before, now = small_run(2), changed("task.blueprints", ("norm",))
    now = replace(now, seed=4, rounds=9)
    line = refused(lambda: check_changes(before, now))
    assert "seed is 0 there and 4 here" in line
    assert "task.blueprints is [] there and ['norm'] here" in line
    assert "rounds" not in line


def test_a_task_that_is_no_longer_the_same_is_refused(copied):
    """The settings are the same, but what they name was changed since."""
    for spec, word in [
        (tiny_task(episode_length=EPISODE, n_blocks=2), "task.slots"),
        (tiny_task(episode_length=EPISODE, base_channels=3), "task.host_factory.base_channels"),
        (replace(SPEC, blueprints=SPEC.blueprints[::-1]), "task.blueprints"),
        (replace(SPEC, optim=replace(SPEC.optim, host_lr=0.2)), "task.optim.host_lr"),
    ]:
        assert word in refused(lambda spec=spec: resumed_run(copied, spec=spec))
    words = replace(SPEC, description="put in other words")
    assert resumed_run(copied, run=False, spec=words).trainer.engine.round == 2


@pytest.mark.parametrize(("steps", "goes_on"), [(14, True), (9, False)])
def test_runs_of_earlier_versions_resume_where_they_meant_the_same(steps: int, goes_on: bool):
    facts = task_facts(SPEC)
    facts["upkeep"] |= {"life_steps": steps, "full_share": 1.0}
    if goes_on:
        check_task_facts(facts, SPEC, "the run")
    else:
        assert "life_steps is 9" in refused(lambda: check_task_facts(facts, SPEC, "the run"))


@pytest.mark.parametrize(
    ("task", "former"),
    [
        ("tinyshakespeare", {"width": 32, "heads": 4, "layers": 2}),
        ("cifar_resnet8_narrow", {"blocks_per_stage": 1, "norm": "group"}),
    ],
)
def test_hosts_of_earlier_versions_are_the_same(task: str, former: dict[str, object]):
    spec = get_task_spec(task)
    facts = task_facts(spec)
    facts["host_factory"] |= former
    check_task_facts(facts, spec, "the run")
    now = facts["host_factory"]
    name = next(key for key in now if key not in former and isinstance(now[key], int))
    facts["host_factory"] |= {name: 99}
    assert name in refused(lambda: check_task_facts(facts, spec, "the run"))


def test_fewer_rounds_than_are_done_are_refused(copied):
    assert "rounds=1" in refused(lambda: resumed_run(copied, small_run(1)))
    assert resumed_run(copied, small_run(2), run=False).trainer.engine.round == 2


def names_of(config: object, prefix: str = "") -> set[str]:
    from dataclasses import fields, is_dataclass

    found = set()
    for field in fields(config):
        value, name = getattr(config, field.name), f"{prefix}{field.name}"
        found.add(name)
        if is_dataclass(value):
            found |= names_of(value, f"{name}.")
    return found


def test_the_table_of_what_may_change_names_settings_that_exist():
    assert set(MAY_CHANGE) <= names_of(TrainingConfig())
    assert len(set(MAY_CHANGE)) == len(MAY_CHANGE)


@given(rounds=st.integers(1, 99), rate=st.floats(0, 1), seed=st.integers(0, 3))
@settings(max_examples=50)
def test_changes_are_found_and_only_those(rounds, rate, seed):
    before = small_run(5)
    now = replace(before, rounds=rounds, ppo=replace(before.ppo, learning_rate=Schedule(rate)))
    assert bool(check_changes(before, now)) == (now != before)
    if seed != before.seed:
        assert "seed" in refused(lambda: check_changes(before, replace(now, seed=seed)))


# ---- notes ---------------------------------------------------------------------------------------


def test_other_versions_are_told(copied, monkeypatch):
    other = [(name, "0.0" if name == "torch" else value) for name, value in resume.versions()]
    monkeypatch.setattr(resume, "versions", lambda: tuple(other))
    (note,) = resumed_run(copied, run=False).notes
    assert "is now 0.0" in note
    assert resumed_run(copied, run=False).line.startswith("resume: 2 of 2 rounds are done (")


def test_an_event_says_what_was_loaded(copied):
    sink = MemorySink()
    resumed = resumed_run(copied, sinks=[sink])
    started, event, finished = sink.events
    assert started.type is TelemetryEventType.RUN_STARTED
    assert event.type is TelemetryEventType.CHECKPOINT_LOADED
    assert finished.payload.status is RunStatus.COMPLETED
    assert (event.payload.path, event.payload.rounds_done) == (str(resumed.checkpoint), 2)


def test_more_rounds_move_the_end_of_a_schedule_over_the_run(tmp_path):
    """Two rounds, then two more: the last two are set as those of a run of four."""
    config = small_run(2)
    config = replace(config, ppo=replace(config.ppo, learning_rate=Schedule(1e-3, 2e-4, "run")))
    path = trained(tmp_path, config)
    resumed = resumed_run(path, replace(config, rounds=4))
    rates = [record.metrics.learning_rate for record in resumed.trainer.history]
    assert rates == pytest.approx([1e-3, 6e-4, 6e-4, 4e-4])
    assert resumed.trainer.client.agent.learning_rate == pytest.approx(2e-4)
    assert read_config(path).ppo.learning_rate == Schedule(1e-3, 2e-4, "run")
