"""The trainer: order of rounds, notifications, and resuming."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine_support import Diary
from esper.leyline import TelemetryConfig, TelemetryLevel
from esper.leyline.telemetry import TelemetryEventType
from esper.nissa import MemorySink, TelemetryHub
from esper.simic.agent.schedule import Schedule
from esper.simic.telemetry.listener import TelemetryListener
from esper.simic.training.config import PopulationConfig
from esper.simic.training.vectorized import make_trainer
from esper.tasks.spec import OptimSettings
from graph_support import rerun_cache
from loop_support import small_client, tiny_config, tiny_task, tiny_trainer
from support import refused


def listener(sink: MemorySink, rounds: int = 2) -> tuple[TelemetryHub, TelemetryListener]:
    hub = TelemetryHub([sink], TelemetryLevel.NORMAL)
    config = TelemetryConfig(level=TelemetryLevel.NORMAL)
    return hub, TelemetryListener(
        hub, config, "cpu", rounds, batches_per_step=1, batch_size=16, optim=OptimSettings()
    )


def test_a_round_is_rollout_then_update_then_hooks_and_events_say_what_was_learnt():
    reported: list[str] = []

    class Ear(Diary):
        def on_round_start(self, round_index, members):
            reported.append(f"start {round_index}")

        def on_round_end(self, rollout):
            reported.append(
                f"end {rollout.round_index}, {trainer.client.agent.updates_done} updates"
            )

    def hook(of, record):
        assert of is trainer
        assert of.history[-1] is record
        reported.append(f"hook {record.round_index}, {of.client.agent.updates_done} updates")

    sink = MemorySink()
    hub, ear = listener(sink)
    config = tiny_config(rounds=2)
    config = replace(config, ppo=replace(config.ppo, learning_rate=Schedule(1e-3, 5e-4, 2)))
    trainer = tiny_trainer(config, hooks=[hook], listeners=[Ear(), ear])
    history = trainer.run()
    hub.close()
    assert reported == [
        "start 0", "end 0, 0 updates", "hook 0, 1 updates",
        "start 1", "end 1, 1 updates", "hook 1, 2 updates",
    ]  # fmt: skip
    assert history is trainer.history
    assert trainer.run() is history, "done is done"
    assert len(history) == 2
    updates = [e.payload for e in sink.events if e.type is TelemetryEventType.PPO_UPDATED]
    rounds = [e.payload for e in sink.events if e.type is TelemetryEventType.ROUND_COMPLETED]
    assert [update.metrics for update in updates] == [record.metrics for record in history]
    assert [r.learning_rate for r in rounds] == [1e-3, 7.5e-4]
    assert [r.metrics.learning_rate for r in history] == [1e-3, 7.5e-4]
    np.testing.assert_allclose([r.mean_score for r in rounds], [r.mean_score for r in history])


def test_rollouts_shorter_than_an_episode_are_each_learnt_from():
    trainer = tiny_trainer(tiny_config(rounds=2, rollout_steps=3))
    history = trainer.run()
    assert [(r.round_index, r.steps) for r in history] == [
        (0, 3), (0, 3), (0, 2), (1, 3), (1, 3), (1, 2),
    ]  # fmt: skip
    assert [r.episodes_done for r in history] == [0, 0, 4, 4, 4, 8]
    assert trainer.client.agent.updates_done == 6
    assert [r.chosen_O.sum() for r in history] == [12, 12, 8] * 2


def over_the_run(config, **changes):
    """The settings with schedules that are to end with the run."""
    lines = {
        "learning_rate": Schedule(1e-3, 1e-4, "run"),
        "entropy": Schedule(0.02, 0.0, "run"),
        "exploration": Schedule(0.3, 0.1, "run"),
    }
    ppo = replace(config.ppo, **lines, epochs=2)
    return replace(config, ppo=replace(ppo, **changes.pop("ppo", {})), **changes)


def now(trainer):
    agent = trainer.client.agent
    return (agent.learning_rate, agent.entropy_coef, agent.exploration)


@pytest.mark.parametrize(
    ("updates", "rollout_steps", "target_kl"),
    [(3, None, 1e-9), (2, 1, None)],
)
def test_schedules_over_the_run_end_with_its_last_update(updates, rollout_steps, target_kl):
    """However many updates a round has: more passes, cut rollouts, passes the KL limit left out."""
    config = tiny_config(rounds=2, rollout_steps=rollout_steps)
    config = over_the_run(config, ppo={"target_kl": target_kl}, updates_per_rollout=updates)
    seen, spec = [], tiny_task(episode_length=3)
    hooks = [lambda of, record: seen.append(now(of))]
    history = make_trainer(config, hooks=hooks, spec=spec).run()
    stopped = [record.metrics.early_stopped for record in history]
    assert any(stopped) == bool(target_kl)
    rollouts = 2 if rollout_steps is None else 6
    assert len(seen) == rollouts
    share = np.arange(1, rollouts + 1)[:, None] / rollouts
    start, end = np.array([1e-3, 0.02, 0.3]), np.array([1e-4, 0.0, 0.1])
    np.testing.assert_allclose(seen, start + (end - start) * share, rtol=1e-12, atol=1e-15)


def test_graphs_off_is_for_batches_and_acting():
    agent = small_client(tiny_task()).agent
    for mode, left in (("auto", True), ("on", True), ("off", False)):
        population = PopulationConfig(graphs=mode)
        agent.use_graphs(rerun_cache())
        population.configure_graphs(agent)
        assert (agent.graphs is not None) is left
        assert population.engine_config(seed=0).graphs == mode


def test_graphs_on_is_refused_where_there_are_none():
    config = tiny_config(rounds=1)
    population = replace(config.population, device="cpu", graphs="on")
    line = refused(lambda: tiny_trainer(replace(config, population=population)))
    assert "graphs 'on': graphs are for CUDA devices, this is cpu; use graphs 'auto'" in line
