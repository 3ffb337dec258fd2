"""`train_ppo_vectorized`: arguments, results and lazy imports."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest

import esper.simic
from esper.leyline import LifecycleOp, SeedStage
from esper.leyline.rewards import RewardComponentsTelemetry
from esper.simic import train_ppo_vectorized
from esper.simic.agent import PPOAgent
from esper.simic.agent.schedule import WHOLE_RUN
from esper.simic.training.config import (
    PRESETS,
    PopulationConfig,
    TaskConfig,
    TrainingConfig,
    digits_impaired,
    preset,
)
from esper.simic.training.history import RoundRecord
from esper.simic.training.vectorized import make_trainer
from loop_support import tiny_config, tiny_run, tiny_task
from support import refused


def test_an_agent_and_a_typed_record_of_each_round_come_back():
    agent, history = tiny_run(tiny_config(rounds=2))
    assert isinstance(agent, PPOAgent)
    assert agent.updates_done == 2
    assert all(isinstance(record, RoundRecord) for record in history)
    assert [record.round_index for record in history] == [0, 1]
    assert [record.episodes_done for record in history] == [4, 8]
    for record in history:
        assert record.steps == 8
        assert record.chosen_O.sum() == 4 * 8, "every action of every member is counted once"
        assert record.chosen_OZ[LifecycleOp.WAIT].sum() == 0
        germinated = record.chosen_OZ[LifecycleOp.GERMINATE]
        assert germinated.sum() == germinated[SeedStage.DORMANT] > 0
        assert np.isfinite(record.score_E).all()
        assert record.mean_score == record.score_E.mean()
        assert record.metrics.epochs_run >= 1
        assert record.rollout_seconds > 0 < record.update_seconds


def test_a_reward_of_ones_own_is_paid():
    def half(inputs):
        parts = RewardComponentsTelemetry.of({"half": np.full(inputs.members, 0.5)}, inputs.members)
        return parts.total, parts

    _, history = tiny_run(tiny_config(rounds=1), reward=half)
    assert history[0].return_E.tolist() == [4.0] * 4


def test_a_task_and_data_of_ones_own_replace_the_named_one():
    spec = tiny_task(episode_length=3)
    _, history = train_ppo_vectorized(tiny_config(rounds=1), spec=spec, data=spec.load())
    assert history[0].steps == 3


def test_what_the_config_says_reaches_engine_and_agent():
    config = tiny_config(seed=3, rollout_steps=4, executor="loop", envs=3)
    config = replace(config, updates_per_rollout=2)
    config = replace(config, task=replace(config.task, blueprints=("norm", "conv_light")))
    trainer = make_trainer(config)
    engine, client = trainer.engine, trainer.client
    assert engine.env.members == 3
    assert engine.config.rollout_steps == 4
    assert engine.config.seed == client.agent.seed == 3
    assert engine.env.model.blueprints == ("norm", "conv_light")
    assert engine.spec.batch_size == 16
    assert client.updates_per_rollout == 2
    assert engine.env.model.choice.executor.name == "loop"


def test_names_the_founding_documents_fixed_are_where_they_say():
    from esper.tolaria import ParallelEnvState

    assert esper.simic.ParallelEnvState is ParallelEnvState
    assert set(esper.simic.__all__) <= set(dir(esper.simic))
    for name in esper.simic.__all__:
        assert getattr(esper.simic, name) is not None
    with pytest.raises(AttributeError, match="train_pop"):
        _ = esper.simic.train_pop


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("esper.simic.training.config", ("torch", "esper.tasks.registry")),
        ("esper.simic.training.vectorized", ("torch", "esper.tasks.registry")),
    ],
)
def test_heavy_things_are_imported_only_when_used(module, unwanted):
    code = f"import sys, {module}; print([n for n in {unwanted!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_preset_names_a_task_that_exists_and_runs_over_its_rounds():
    for name in PRESETS:
        config = preset(name, 7)
        assert config.rounds == 7
        spec = config.task.spec()
        assert spec.name == config.task.name
        config.engine_config()
    assert digits_impaired(50).ppo.learning_rate.steps == WHOLE_RUN


def test_every_field_of_the_config_says_what_it_does():
    import ast
    import inspect

    from esper.simic.training import config as module

    tree = ast.parse(inspect.getsource(module))
    for node in [n for n in tree.body if isinstance(n, ast.ClassDef)]:
        assert is_dataclass(getattr(module, node.name))
        for item, after in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(item, ast.AnnAssign):
                said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                assert said, f"{node.name}.{ast.unparse(item.target)} has no sentence"


BAD = [
    (lambda: TrainingConfig(rounds=0), "rounds=0"),
    (lambda: TrainingConfig(updates_per_rollout=0), "updates_per_rollout=0"),
    (lambda: TaskConfig("digits_impared").spec(), "digits_impaired"),
    (lambda: TaskConfig(blueprints=("depthwize",)).spec(), "depthwise"),
    (lambda: TaskConfig(episode_length=0).spec(), "episode_length=0"),
    (lambda: preset("digits_impared", 3), "digits_impaired"),
    (lambda: TrainingConfig(population=PopulationConfig(envs=0)), "envs=0"),
]


@pytest.mark.parametrize(("make", "word"), BAD, ids=[word for _, word in BAD])
def test_what_cannot_work_is_refused_by_name(make, word):
    assert word in refused(make)


def test_configs_are_frozen_and_equal_by_value():
    assert tiny_config() == tiny_config()
    assert tiny_config() != tiny_config(seed=1)
    for field in fields(TrainingConfig):
        with pytest.raises(AttributeError):
            setattr(tiny_config(), field.name, None)
