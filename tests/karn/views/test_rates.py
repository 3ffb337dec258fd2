"""The rates of a member that people see are those that its optimiser had, whatever happened."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from context_support import EMPTY, Planner
from engine_support import small_engine, small_task
from esper.karn import views
from esper.karn.report.growth_picture import growth_picture
from esper.karn.views.growth import RatePoint
from esper.karn.views.tables import EventTables
from esper.leyline import LifecycleOp
from esper.leyline.context import ContextSpec, Range
from esper.leyline.payloads import RunStarted
from esper.leyline.telemetry import TelemetryConfig, TelemetryEventType
from esper.nissa import ParquetSink, TelemetryHub
from esper.simic.telemetry.listener import TelemetryListener
from esper.tolaria.governor import GovernorConfig
from payload_support import build

STEPS, ROUNDS, MEMBERS = 8, 2, 3
RESTART, STOP = LifecycleOp.RESTART, LifecycleOp.STOP
TWICE = {1: [(RESTART, 1, 0)], 3: [(RESTART, 1, 0), (RESTART, 2, 0)]}
VARIED = ContextSpec(actions="grow+restart", learning_rate=Range(0.5, 2.0))
COMPUTE = ContextSpec(
    actions="full+restart", clock="compute", learning_rate=Range(0.5, 2.0), budget=Range(0.5, 2.0)
)


def recorded(
    folder: Path, context: ContextSpec, actions=None, schedule="cosine", poisoned: int | None = None
) -> np.ndarray:
    """The rates `[round, step, member, (host, seed)]` that optimisers had; events are written.

    `poisoned`: a step after which the weights of member 0 are not numbers.
    """
    plain = small_task(episode_length=STEPS)
    optim = replace(plain.optim, schedule=schedule, seed_lr=plain.optim.host_lr / 4)
    spec = replace(plain, context=context, optim=optim)
    hub = TelemetryHub.from_config([ParquetSink(folder)], TelemetryConfig())
    listener = TelemetryListener(hub, TelemetryConfig(), "cpu", ROUNDS, batches_per_step=2,
                                 batch_size=16, optim=optim)  # fmt: skip
    started = build(RunStarted, {"episode_length": STEPS, "members": MEMBERS})
    listener.run_started(started)
    governor = GovernorConfig(snapshot_steps=2, learnt_share=0.99)
    engine = small_engine(spec, listener, members=MEMBERS, governor=governor, profile="exact")
    train, used = engine.trainer.run, []

    def watched(step: int) -> None:
        train(step)
        trainer = engine.env.model.trainer
        used.append(np.stack([trainer.host_lr_E.tolist(), trainer.seed_lr_E.tolist()], axis=1))
        if step == poisoned:
            engine.env.model.network.host.flat_EP.data[0] = np.nan

    engine.trainer.run = watched
    nothing_ES = np.full((MEMBERS, len(spec.slots)), EMPTY)
    for _ in range(ROUNDS):
        engine.run_rollout(Planner(nothing_ES, actions or {}))
    hub.close()
    return np.array(used).reshape(ROUNDS, STEPS, MEMBERS, 2)


def count(folder: Path, kind: TelemetryEventType) -> int:
    return len(EventTables.of(folder).rows(kind))


@pytest.mark.parametrize(
    ("context", "schedule", "actions", "poisoned"),
    [
        (VARIED, "cosine", TWICE, None),
        (VARIED, "constant", TWICE, None),
        (COMPUTE, "cosine", TWICE, None),
        (VARIED, "cosine", TWICE, 5),
    ],
    ids=["contexts and restarts", "constant", "compute clock", "rollback"],
)
def test_rates_are_those_of_the_optimisers(tmp_path, context, schedule, actions, poisoned):
    used = recorded(tmp_path, context, actions, schedule, poisoned)
    assert count(tmp_path, TelemetryEventType.MEMBER_RESTARTED) == 3 * ROUNDS
    assert (count(tmp_path, TelemetryEventType.GOVERNOR_ROLLBACK) > 0) == (poisoned is not None)
    assert len({*used[:, 0, :, 0].ravel()}) == ROUNDS * MEMBERS, "each has a factor of its own"
    for at in range(ROUNDS):
        for member in range(MEMBERS):
            found = views.read_growth(tmp_path, at, member)
            assert [one.at for one in found.rates] == list(range(1, found.now + 1))
            rates = np.array([(one.host, one.seed) for one in found.rates])
            np.testing.assert_allclose(rates, used[at, : found.now, member], rtol=1e-6)
            assert found.now == STEPS
            assert not found.stopped


def test_the_report_draws_rates_of_host_and_seeds(ppo):
    every = (views.read_growth(ppo, at, member) for at in range(3) for member in range(2))
    found = next(one for one in every if one.seeds)
    apart = (RatePoint(1, 0.2, 0.05), RatePoint(2, 0.1, 0.025))
    without, drawn = (growth_picture(replace(found, rates=rates)) for rates in ((), apart))
    assert drawn.count("<polyline") == without.count("<polyline") + 2
    assert "dashed: of seeds" in drawn
    assert "dashed: of seeds" not in growth_picture(found), "they are the same there"


def test_a_member_that_stopped_is_said_to_have(tmp_path):
    recorded(tmp_path, COMPUTE, {2: [(STOP, 1, 0)]})
    assert [views.read_growth(tmp_path, 0, member).stopped for member in range(MEMBERS)] == [
        False, True, False,
    ]  # fmt: skip


def test_rates_are_there_while_a_round_is_under_way(ppo, tmp_path):
    run = shutil.copytree(ppo, tmp_path / "run")
    for name in ("EPISODE_OUTCOME", "ROUND_CONTEXTS"):
        shutil.rmtree(run / "events" / name)
    found = views.read_growth(run, 0, 0)
    assert len(found.rates) == found.now > 0


def test_older_runs_are_read_without_rates(ppo, tmp_path):
    run = shutil.copytree(ppo, tmp_path / "run")
    shutil.rmtree(run / "events" / "LEARNING_RATES")
    found, whole = views.read_growth(run, 0, 0), views.read_growth(ppo, 0, 0)
    assert whole.rates
    assert found == replace(whole, rates=())
