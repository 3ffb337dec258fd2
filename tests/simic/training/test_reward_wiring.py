"""The trainer's client uses the configured reward, for every mode."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine_support import Diary
from esper.leyline.rewards import RewardComponentsTelemetry
from esper.scripts.cli.trust import require_trust
from esper.scripts.train.learner_config import read_train_ppo
from esper.simic.rewards.config import RewardConfig
from esper.simic.rewards.factory import make_reward
from esper.simic.training import config as training_config
from esper.simic.training.baseline import measure_wait_baseline
from esper.simic.training.runs.folder import read_config
from esper.simic.training.vectorized import train_ppo_vectorized
from loop_support import tiny_config, tiny_task, tiny_trainer
from reward_support import EVERY
from support import refused

WAIT_BASELINE = RewardConfig(wait_baseline=True)


def paying(reward: RewardConfig, rounds: int = 1):
    return replace(tiny_config(rounds=rounds), reward=reward)


def test_there_is_one_config_of_rewards_and_its_default_is_the_score():
    assert training_config.RewardConfig is RewardConfig
    reward = training_config.TrainingConfig().reward
    assert (reward.mode, reward.family, reward.wait_baseline) == ("score", "contribution", False)


# ---- rewards of one's own --------------------------------------------------------------------

MINE = """
from esper.leyline.rewards import RewardComponentsTelemetry

def accuracy_alone(inputs, /):
    parts = {"accuracy": inputs.accuracy_E - inputs.accuracy_before_E}
    components = RewardComponentsTelemetry.of(parts, inputs.members)
    return components.total, components

other = accuracy_alone
number = 3
"""


def accuracy_alone(inputs, /):
    components = RewardComponentsTelemetry.of(
        {"accuracy": inputs.accuracy_E - inputs.accuracy_before_E}, inputs.members
    )
    return components.total, components


def reward_in(folder, name: str = "accuracy_alone") -> RewardConfig:
    return RewardConfig(own=f"{folder / 'mine.py'}:{name}")


def train(run, rounds: int, resume: bool = False, **changes):
    config = changes.pop("config", tiny_config(rounds=rounds, envs=2))
    return train_ppo_vectorized(config, run_dir=run, resume=resume, spec=tiny_task(), **changes)


def test_a_reward_that_is_passed_is_recorded_and_a_run_never_resumes_with_another(tmp_path):
    run = tmp_path / "run"
    train(run, 1, reward=accuracy_alone)
    assert read_config(run).reward.own == f"object:{__name__}.accuracy_alone"
    for changes in ({}, {"config": read_config(run)}, {"config": None}):
        assert "accuracy_alone" in refused(lambda c=changes: train(run, 2, resume=True, **c))
    other = make_reward(RewardConfig(), tiny_task().upkeep)
    assert "ScoreReward" in refused(lambda: train(run, 2, resume=True, reward=other))
    _, history = train(run, 2, resume=True, reward=accuracy_alone)
    assert len(history) == 2


def test_a_reward_in_a_file_is_recorded_and_resumes_and_no_other_one_of_the_file(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    own = f"{tmp_path / 'mine.py'}:accuracy_alone"
    config = replace(paying(RewardConfig(own=own)), population=tiny_config(envs=2).population)
    train(tmp_path / "run", 1, config=config)
    assert read_config(tmp_path / "run").reward.own == own
    train(tmp_path / "run", 2, resume=True, config=replace(config, rounds=2))
    other = replace(config, rounds=3, reward=reward_in(tmp_path, "other"))
    line = refused(lambda: train(tmp_path / "run", 3, resume=True, config=other))
    assert f"reward.own is '{own}' there and '{other.reward.own}' here: resume with" in line
    line = refused(lambda: train(tmp_path / "run", 2, resume=True, config=None))
    assert "to run its code" in line, "a folder may come from somebody else"
    (tmp_path / "mine.py").rename(tmp_path / "moved.py")
    moved = RewardConfig(own=f"{tmp_path / 'moved.py'}:accuracy_alone")
    train(tmp_path / "run", 3, resume=True, config=replace(config, rounds=3, reward=moved))
    (tmp_path / "mine.py").write_text(MINE + "# edited\n")
    line = refused(
        lambda: train(tmp_path / "run", 4, resume=True, config=replace(config, rounds=4))
    )
    assert "mine.py:accuracy_alone' has changed: put it back" in line


def test_a_reward_file_that_is_gone_is_named_with_its_copy_in_the_run(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    config = replace(tiny_config(rounds=1, envs=2), reward=reward_in(tmp_path))
    train(tmp_path / "run", 1, config=config)
    (tmp_path / "mine.py").unlink()
    longer = replace(config, rounds=2)
    line = refused(lambda: train(tmp_path / "run", 2, resume=True, config=longer))
    copy = reward_in(tmp_path / "run" / "source")
    assert f"reward file {tmp_path / 'mine.py'} is gone" in line
    assert f"--reward, or its copy, {copy.own}" in line
    _, history = train(tmp_path / "run", 2, resume=True, config=replace(longer, reward=copy))
    assert len(history) == 2


@pytest.mark.parametrize(
    ("own", "said"),
    [("mine.py:number", "int cannot be called"), ("score", "name a function in a file"),
     ("mine.py:acuracy_alone", "accuracy_alone")],
)  # fmt: skip
def test_a_reward_that_is_none_is_one_line(own, said, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    assert said in refused(lambda: make_reward(RewardConfig(own=own), tiny_task().upkeep))


def test_a_file_that_only_a_run_names_needs_consent(tmp_path):
    argv = ["--resume", "x"]
    line = refused(lambda: require_trust("their.py:pay", argv, tmp_path, False, "reward"))
    assert "--trust or --reward their.py:pay" in line
    require_trust("their.py:pay", ["--reward", "their.py:pay"], tmp_path, False, "reward")


def test_the_command_line_takes_a_reward_by_file_and_name(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    config = read_train_ppo(["--task", "synthetic", "--reward", "mine.py:accuracy_alone"])
    assert config.training.reward.own == f"{tmp_path / 'mine.py'}:accuracy_alone"


# ---- modes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "family"), EVERY)
def test_every_mode_and_family_trains_and_pays_by_its_own_rule(mode, family):
    """The episode's returns are those of a fresh reward of that name on the same steps."""
    config = paying(RewardConfig(mode=mode, family=family, rollback_penalty=0.3))
    diary = Diary()
    trainer = tiny_trainer(config, listeners=[diary])
    (record,) = trainer.run()
    alone = make_reward(config.reward, tiny_task().upkeep)
    expected = sum(alone(step.reward_inputs)[0] for step in diary.records)
    np.testing.assert_array_equal(record.return_E, expected)
    assert np.isfinite(expected).all()
    assert record.metrics.epochs_run >= 1


def test_what_a_learner_is_paid_adds_up_to_the_score_that_is_reported():
    """Return = last score - first score - upkeep - penalties, member by member, over a rollback."""
    diary = Diary()
    trainer = tiny_trainer(paying(RewardConfig(rollback_penalty=0.25)), listeners=[diary])

    def strike(record) -> None:
        if record.signals.step == 3:
            trainer.engine.env.model.network.host.flat_EP.detach()[1, 3] = float("nan")

    diary.watch = strike
    (record,) = trainer.run()
    upkeep_E = sum(step.rewards.part("upkeep") for step in diary.records)
    first_E = diary.records[0].reward_inputs.score_before_E
    assert record.rollbacks_E[1] >= 1
    assert (upkeep_E < 0).any()
    expected_E = record.score_E - first_E + upkeep_E - 0.25 * record.rollbacks_E
    np.testing.assert_allclose(record.return_E, expected_E, atol=1e-12)


def test_the_curve_of_waiting_is_taken_off_and_changes_nothing_else():
    """The first round, before anything is learnt, is the same; only its pay is lower by the way
    of the curve."""
    (plain,) = tiny_trainer(paying(RewardConfig())).run()
    trainer = tiny_trainer(paying(WAIT_BASELINE))
    (less,) = trainer.run()
    curve = trainer.client.reward.baseline_curve
    assert len(curve) == tiny_task().episode_length + 1
    np.testing.assert_array_equal(less.score_E, plain.score_E)
    np.testing.assert_array_equal(less.chosen_OZ, plain.chosen_OZ)
    np.testing.assert_allclose(less.return_E, plain.return_E - (curve[-1] - curve[0]), atol=1e-12)


def test_the_curve_is_of_hosts_the_controller_never_meets_and_the_same_each_time():
    config = tiny_config()
    curves = [measure_wait_baseline(tiny_task(), config.engine_config()) for _ in range(2)]
    assert curves[0] == curves[1]
    assert curves[0] != measure_wait_baseline(tiny_task(), tiny_config(seed=1).engine_config())
    cut = tiny_config(rollout_steps=3).engine_config()
    assert measure_wait_baseline(tiny_task(), cut) == curves[0], (
        "rollouts may be short, episodes are not"
    )
    diary = Diary()
    tiny_trainer(tiny_config(rounds=1), listeners=[diary]).run()
    fresh = diary.records[0].reward_inputs.score_before_E.mean()
    assert fresh != curves[0][0]


@pytest.mark.parametrize("other", [{"mode": "shaped"}, {"family": "loss"}])
def test_the_curve_is_refused_where_no_score_is_paid(other):
    said = refused(lambda: RewardConfig(wait_baseline=True, **other))
    assert "wait_baseline" in said
    assert next(iter(other.values())) in said
