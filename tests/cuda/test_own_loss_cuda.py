"""Tasks with their own loss on a GPU: graphs replay what eager computes, and nothing waits."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from cuda_support import (
    DEVICE,
    NEEDS_CUDA,
    SHORT,
    assert_close,
    assert_same,
    engine_on_gpu,
    watched_episode,
)
from engine_support import histories, random_policy
from esper.device.graphs import CudaRecorder, GraphCache
from esper.tasks.objectives import make_objective
from esper.tasks.spec import TaskSpec
from esper.tasks.task_data import PARTS, OwnTargetData, TaskData, TaskPart
from graph_support import Rerun

pytestmark = [*NEEDS_CUDA, pytest.mark.usefixtures("exact")]


def number_data() -> TaskData:
    """The images of the task; targets are means of their stripes, one for each output."""
    data, parts = SHORT.load(), []
    for name in PARTS:
        images = getattr(data, name).inputs
        stripes = np.array_split(images.reshape(len(images), -1), SHORT.num_classes, axis=1)
        means = np.stack([stripe.mean(axis=1) for stripe in stripes], axis=1)
        parts.append(TaskPart(images, (means / 64).astype(np.float32)))
    return OwnTargetData(*parts, mean=data.mean, std=data.std)


def own(output: Any, target: Any) -> Any:
    """One number per output: how a function sums by itself is not in Esper's hands."""
    return torch.nn.functional.smooth_l1_loss(output, target, reduction="none")


def task(loss: Any) -> TaskSpec:
    return dataclasses.replace(SHORT, load_data=number_data, loss=loss, chance=0.0)


@pytest.mark.parametrize("loss", ["mse", "huber", own])
def test_replays_of_own_losses_are_the_work_bit_for_bit(loss):
    """The fake runs the same padded plans, without a graph."""
    runs = []
    for recorder in (CudaRecorder(DEVICE), Rerun()):
        engine = engine_on_gpu(task(loss), executor="vmap")
        engine.use_graphs(GraphCache(recorder))
        engine.run_rollout(random_policy(0))
        assert engine.graph_report().replays > 0
        runs.append(histories(engine.episode))
    assert_same(*runs)
    assert np.isfinite(runs[0]["train_loss_TE"][1:]).all()


@pytest.mark.parametrize("loss", ["mse", "huber", own])
def test_own_losses_agree_with_those_without_graphs(loss):
    """Up to rounding: padding changes the number of rows, by which torch chooses its kernels."""
    runs = []
    for graphs in ("on", "off"):
        engine = engine_on_gpu(task(loss), executor="vmap", graphs=graphs)
        engine.run_rollout(random_policy(0))
        names = ("train_loss_TE", "loss_TE", "score_loss_TE")
        runs.append({name: getattr(engine.episode, name) for name in names})
    assert_close(*runs, rtol=5e-3)


def test_own_losses_do_not_wait():
    assert watched_episode(engine_on_gpu(task("mse")), random_policy(0)) > 0


def test_class_weights_are_captured():
    """They are copied to the device before, because a capture cannot copy from the host."""
    targets = torch.arange(24) % 4
    made = make_objective(targets=targets, output_shape=(4,), class_weights=[1.0, 2.0, 3.0, 4.0])
    x = torch.randn(2, 24, 4, device=DEVICE)
    y = targets.to(DEVICE).expand(2, 24)
    expected = made.loss(x, y), made.merit(x, y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = made.loss(x, y), made.merit(x, y)
    graph.replay()
    for one, two in zip(captured, expected, strict=True):
        torch.testing.assert_close(one, two)
