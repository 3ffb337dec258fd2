"""Tasks with their own loss train and grow like any other; what does not fit is one line."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine_support import histories, random_policy, small_engine, small_task
from esper.leyline.context import ContextSpec, Range
from esper.tasks.registry import get_task_spec
from esper.tasks.spec import TaskSpec
from esper.tasks.task_data import OwnTargetData, TaskData, TaskPart
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.engine_config import EngineConfig
from support import refused

FILE = '''
"""A task file with its own loss."""
import numpy as np
from esper.kasmina import MLPHost
from esper.tasks.spec import TaskSpec
from esper.tasks.task_data import OwnTargetData, TaskPart

def part(seed, count):
    x = np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)
    hidden = np.stack([x[:, 0] * x[:, 1], x[:, 2] + x[:, 3]], axis=1)
    return TaskPart(x, {targets})

def load():
    train, control, score, test = (part(seed, n) for seed, n in enumerate((256, 64, 64, 64)))
    return OwnTargetData(train, control, score, test, mean=[0.0], std=[1.0])

SPEC = TaskSpec(
    name="mine", description="", load_data=load, host_factory=lambda: MLPHost(4, 2, width=8),
    topology="mlp", slots=("r0c0", "r0c1"), blueprints=("norm", "mlp"), num_classes=2,
    input_shape=(4,), batch_size=16, batches_per_step=8, episode_length=6, chance={chance},
    loss={loss!r},
)
'''


def task_file(folder: Path, targets: str, loss: str) -> TaskSpec:
    path = folder / "mine.py"
    path.write_text(FILE.format(targets=targets, loss=loss, chance=0.0))
    return get_task_spec(str(path))


def grown(spec: TaskSpec) -> VectorizedEngine:
    """An engine after one episode of random growth."""
    engine = VectorizedEngine(spec, EngineConfig(members=3, device="cpu"))
    engine.run_rollout(random_policy(0, spec))
    return engine


TASKS = {
    "regression": ("hidden", "mse"),
    "robust regression": ("hidden", "huber"),
    "multi-label": ("(hidden > 0).astype(np.int64)", "multilabel"),
    "multi-label by itself": ("(hidden > 0).astype(np.float32)", "auto"),
    "classes": ("(hidden[:, 0] > 0).astype(np.int64)", "cross_entropy"),
}


@pytest.mark.parametrize("kind", TASKS)
def test_a_task_file_with_its_own_loss_grows(tmp_path, kind):
    engine = grown(task_file(tmp_path, *TASKS[kind]))
    episode, life = engine.episode, engine.env.model.lifecycle
    assert (life.stage_ES > 0).any()  # something was grown
    losses_TE, accuracy_TE = episode.train_loss_TE, episode.score_accuracy_TE
    assert np.isfinite(losses_TE[1:]).all()
    assert losses_TE[-1].mean() < losses_TE[1].mean()
    assert ((accuracy_TE >= 0) & (accuracy_TE <= 1)).all()
    assert accuracy_TE[-1].mean() > accuracy_TE[0].mean()
    test_E = engine.test()
    assert ((test_E > 0) & (test_E <= 1)).all()


def test_score_is_explained_variance(tmp_path):
    engine = grown(task_file(tmp_path, "hidden", "mse"))
    data = engine.spec.load()
    variance = data.train.labels.var(axis=0).mean()
    loss_E, share_E = (
        h[-1] for h in (engine.episode.score_loss_TE, engine.episode.score_accuracy_TE)
    )
    assert share_E == pytest.approx(np.clip(1 - loss_E / variance, 0, 1), rel=1e-5)
    assert engine.context.chance.loss == pytest.approx(variance, rel=1e-5)


def test_cross_entropy_by_name_is_the_default():
    """Naming the default changes no bit."""
    runs = []
    for loss in (None, "cross_entropy"):
        spec = dataclasses.replace(small_task(episode_length=4), loss=loss)
        engine = small_engine(spec)
        engine.run_rollout(random_policy(0, spec))
        runs.append(histories(engine.episode))
    for name, value in runs[0].items():
        assert np.array_equal(value, runs[1][name], equal_nan=True), name


def own(output: Any, target: Any) -> Any:
    return (output - target).abs().sqrt()


def test_a_function_is_a_loss(tmp_path):
    spec = dataclasses.replace(task_file(tmp_path, "hidden", "mse"), loss=own, episode_length=3)
    engine = grown(spec)
    assert np.isfinite(engine.episode.train_loss_TE[1:]).all()


# ---- mistakes ---------------------------------------------------------------------------------


def data(labels: Any, kind: type[TaskData] = OwnTargetData) -> TaskData:
    part = TaskPart(np.zeros((8, 4), dtype=np.float32), labels)
    return kind(part, part, part, part, mean=[0.0], std=[1.0])  # type: ignore[arg-type]


FLOATS = np.linspace(0, 1, 8, dtype=np.float32)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (FLOATS.astype(np.float64), "train: targets of float64, give float32 or int64"),
        (FLOATS + np.float32(np.inf), "train: the target of sample 0 is not finite; leave it out"),
        (FLOATS[:5], "train: 8 inputs, 5 labels"),
    ],
)
def test_own_targets_that_will_not_do_are_one_line(labels, words):
    assert words in refused(lambda: data(labels))


def test_labels_of_plain_data_are_still_classes():
    assert "or OwnTargetData and a loss" in refused(lambda: data(FLOATS, TaskData))


@pytest.mark.parametrize(
    ("labels", "changes", "words"),
    [
        (FLOATS, {"loss": None}, "task mine: its data are OwnTargetData; give the task a loss"),
        (FLOATS, {}, "task mine: loss 'mse': outputs (2,) and targets of one number per sample"),
        (FLOATS, {"loss": "nse"}, "task mine: unknown loss 'nse': did you mean 'mse'? valid: auto"),
        (np.arange(8), {"loss": "cross_entropy"}, "task mine: train: label 2 of sample 2, the mod"),
    ],
)
def test_a_loss_that_does_not_fit_is_one_line(tmp_path, labels, changes, words):
    spec = dataclasses.replace(task_file(tmp_path, "hidden", "mse"), **changes)
    assert words in refused(lambda: spec.objective(data(labels)))


def test_a_host_with_other_outputs_is_one_line(tmp_path):
    spec = dataclasses.replace(task_file(tmp_path, "hidden[:, 0]", "mse"), num_classes=1)
    assert "the host gives outputs (2,) for a sample, num_classes=1 means (1,)" in refused(
        lambda: grown(spec)
    )


@pytest.mark.parametrize(
    ("context", "name"),
    [
        (ContextSpec(min_groups=2), "min_groups"),
        (ContextSpec(label_noise=Range(0.0, 0.2)), "label"),
    ],
)
def test_contexts_that_change_labels_need_classes(tmp_path, context, name):
    spec = dataclasses.replace(task_file(tmp_path, "hidden", "mse"), context=context)
    line = refused(lambda: grown(spec))
    assert f"context {name}" in line
    assert "task mine has loss 'mse', and only class labels can be changed this way" in line
