"""Rounds of PPO with graphs: gone on from a checkpoint, the same bits; memory stays constant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cuda_support import NEEDS_CUDA, assert_same
from engine_support import histories
from esper.simic.training.config import TrainingConfig
from esper.simic.training.runs.folder import RunFolder
from esper.simic.training.runs.session import FolderSession
from esper.simic.training.vectorized import make_trainer
from esper.simic.training.vectorized_trainer import VectorizedPPOTrainer
from esper.tamiyo.frozen_heads import PLAIN_BLEND
from graph_support import rerun_cache
from loop_support import same_agents, tiny_task, untimed
from run_driver import small_run

pytestmark = pytest.mark.usefixtures("exact")

STEPS = 5
SPEC = tiny_task(episode_length=STEPS, batches_per_step=2)
WARM, ROUNDS = 30, 100

Prepare = Callable[[VectorizedPPOTrainer], None]


def eagerly(trainer: VectorizedPPOTrainer) -> None:
    assert not trainer.engine.graph_report().on


def with_rerun(trainer: VectorizedPPOTrainer) -> None:
    """Padded plans in fixed buffers, as graphs have them; replays compute the same work again."""
    trainer.engine.use_graphs(rerun_cache())


def with_graphs(trainer: VectorizedPPOTrainer) -> None:
    assert trainer.engine.graph_report().on
    assert trainer.client.agent.graphs is not None


def configured(rounds: int, **population: object) -> TrainingConfig:
    config = small_run(rounds, **population)
    return replace(config, task=replace(config.task, episode_length=STEPS, batches_per_step=2))


def resumed_run(path: Path, config: TrainingConfig, prepare: Prepare) -> VectorizedPPOTrainer:
    return _trained(RunFolder.open(path), config, prepare, resume=True)


def begun(root: Path, config: TrainingConfig, prepare: Prepare) -> tuple:
    folder = RunFolder.create(root, "run", config)
    trainer = _trained(folder, config, prepare)
    return folder.path, trainer


def _trained(
    folder: RunFolder, config: TrainingConfig, prepare: Prepare, resume: bool = False
) -> VectorizedPPOTrainer:
    with folder:
        session = FolderSession(folder, config, resume)
        stops = [session.interrupts]
        trainer = make_trainer(
            config, spec=SPEC, listeners=stops, hooks=[session.checkpoints, *stops]
        )
        session.begin(trainer)
        prepare(trainer)
        session.run(trainer)
    return trainer


@pytest.mark.parametrize(
    ("device", "precision", "graphs", "prepare"),
    [
        pytest.param("cpu", "fp32", "off", eagerly, id="cpu"),
        pytest.param("cpu", "fp32", "off", with_rerun, id="cpu, rerun"),
        pytest.param("cuda", "fp32", "on", with_graphs, id="cuda fp32", marks=NEEDS_CUDA),
        pytest.param("cuda", "bf16", "on", with_graphs, id="cuda bf16", marks=NEEDS_CUDA),
    ],
)
def test_2n_rounds_are_n_rounds_and_n_more_from_a_checkpoint(
    tmp_path, device, precision, graphs, prepare
):
    """The rest starts without a graph where the whole run replays: it must not show."""
    settings = {"device": device, "precision": precision, "graphs": graphs, "executor": "vmap"}
    _, whole = begun(tmp_path / "whole", configured(4, **settings), prepare)
    path, first = begun(tmp_path / "parts", configured(2, **settings), prepare)
    rest = resumed_run(path, configured(4, **settings), prepare)

    assert sum(int(record.chosen_OZ.sum()) for record in whole.history) > 0, "nothing ever grew"
    assert untimed(rest.history) == untimed(whole.history)
    assert untimed(rest.history[:2]) == untimed(first.history)
    assert same_agents(rest.client.agent, whole.client.agent)
    assert rest.engine.state_dict() == whole.engine.state_dict()
    assert_same(histories(rest.engine.episode), histories(whole.engine.episode))
    hosts = [trainer.engine.env.model.network.host.flat_EP.detach() for trainer in (rest, whole)]
    assert torch.equal(*hosts)
    for trainer in (rest, whole):
        report = trainer.engine.graph_report()
        assert report.on == (prepare is not eagerly), report.reason
        assert not report.on or report.replays > report.captures > 0
        if prepare is with_graphs:
            acting = trainer.client.agent.graphs
            assert acting.on, acting.problem
            assert acting.replays > 0


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_memory_stays_constant_over_a_hundred_rounds():
    """One seed in two slots: every shape has come, and was captured, when the warm-up ends."""
    spec = tiny_task(episode_length=3, batch_size=4, validation=10, train=20, n_blocks=2)
    spec = replace(spec, blueprints=("conv_light",))
    config = small_run(ROUNDS, device="cuda", frozen_heads=PLAIN_BLEND)
    task = replace(config.task, episode_length=3, batch_size=4, blueprints=spec.blueprints)
    allocated, reserved = [], []

    def look(trainer, record) -> None:
        allocated.append(torch.cuda.memory_allocated())
        reserved.append(torch.cuda.memory_reserved())

    trainer = make_trainer(replace(config, task=task), spec=spec, hooks=[look])
    trainer.run()
    assert len(allocated) == ROUNDS
    assert trainer.engine.graph_report().replays > 2 * ROUNDS
    assert max(allocated[WARM:]) <= max(allocated[:WARM]) + 2**18, "4 KiB a round"
    assert max(reserved[WARM:]) <= max(reserved[:WARM]) + 2**22, "what four MiB hold"
