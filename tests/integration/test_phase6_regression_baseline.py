"""A tiny run of the learner, and the run of a script that is the same on every machine.

The golden file is written anew, after a deliberate change of behaviour, by

    PYTHONPATH=src:tests python tests/integration/test_phase6_regression_baseline.py

and its difference belongs in the same commit. It holds whole numbers alone. Scores differ in last
bits between machines, and in a learner these grow: they are held by running the same thing twice.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine_support import CALM, Diary, small_engine, small_task
from esper.leyline import (
    ActionHead,
    LifecycleOp,
    PolicyDecision,
    Rollout,
    StepRecord,
    TelemetryConfig,
    TelemetryLevel,
)
from esper.leyline.masks import FIXED_MASK
from esper.leyline.telemetry import TelemetryEventType as Kind
from esper.nissa import MemorySink, TelemetryHub
from esper.simic.rewards.score import ScoreReward
from esper.simic.telemetry.listener import ListenerGroup, TelemetryListener
from esper.simic.training.vectorized import make_trainer
from esper.simic.training.vectorized_trainer import VectorizedPPOTrainer
from esper.tamiyo.baselines import StatelessPolicy
from esper.tamiyo.scripted import (
    FULL_ALPHA,
    build_actions,
    legal_members,
    nearest_allowed,
)
from esper.tasks.spec import OptimSettings
from esper.tolaria.env_factory import configure_slot_telemetry
from loop_support import ANYTHING_GOES, same_agents, tiny_config, untimed

GOLDEN = Path(__file__).parent / "golden" / "scripted_run.json"
LEVELS = [level for level in TelemetryLevel if level is not TelemetryLevel.OFF]
ROUNDS, MEMBERS, STEPS = 2, 4, 8
SPEC = small_task(
    episode_length=STEPS, classes=3, base_channels=8, train=600, validation=100,
    batch_size=32, batches_per_step=4, kernel_size=3,
)  # fmt: skip
"""Hosts that learn something in eight steps."""
ONCE_A_ROUND = (
    Kind.ROUND_COMPLETED, Kind.EPISODE_OUTCOME, Kind.PPO_UPDATED, Kind.ACTION_DISTRIBUTION,
    Kind.MASK_HIT_RATES, Kind.REWARD_SUMMARY, Kind.THROUGHPUT,
)  # fmt: skip


class Run:
    """The run, and the events of it at every level: three listeners hear the same rounds."""

    def __init__(self) -> None:
        sinks = {level: MemorySink() for level in LEVELS}
        hubs = {level: TelemetryHub([sink], level) for level, sink in sinks.items()}
        listeners = [
            TelemetryListener(
                hub, TelemetryConfig(level), "cpu", ROUNDS,
                batches_per_step=4, batch_size=32, optim=OptimSettings(),
                anomalies=ANYTHING_GOES,
            )
            for level, hub in hubs.items()
        ]  # fmt: skip
        self.trainer: VectorizedPPOTrainer = make_trainer(
            tiny_config(rounds=ROUNDS, seed=11), spec=SPEC, listeners=listeners
        )
        self.history = self.trainer.run()
        for hub in hubs.values():
            hub.close()
        self.events = {level: sink.events for level, sink in sinks.items()}

    def counts(self, level: TelemetryLevel) -> dict[str, int]:
        return dict(sorted(Counter(event.type.name for event in self.events[level]).items()))


@cache
def the_run() -> Run:
    return Run()


def test_hosts_learn_and_every_member_acts_at_every_step():
    for record in the_run().history:
        assert record.chosen_O.sum() == MEMBERS * STEPS
        assert record.metrics.epochs_run <= 4
    assert the_run().history[0].mean_score > 0.4, "guessing is right once in three"


@pytest.mark.parametrize("level", LEVELS)
def test_events_that_follow_from_the_design_come_as_often_as_it_says(level):
    found = Counter(event.type for event in the_run().events[level])
    for kind in ONCE_A_ROUND:
        assert found[kind] == (ROUNDS if kind.recorded_at(level) else 0), kind
    for kind in (Kind.STEP_COMPLETED, Kind.LAST_ACTION):
        assert found[kind] == (ROUNDS * STEPS if kind.recorded_at(level) else 0), kind
    if level >= TelemetryLevel.NORMAL:
        assert found[Kind.PHASE_PROFILE] == 2 * ROUNDS, "the rollout's and the update's"
    assert set(found) <= {kind for kind in Kind if kind.recorded_at(level)}


def test_the_same_seed_is_the_same_run_and_its_events():
    one, two = the_run(), Run()
    assert untimed(one.history) == untimed(two.history)
    assert same_agents(one.trainer.client.agent, two.trainer.client.agent)
    for level in LEVELS:
        reported, again = (
            [
                replace(event, wall_time=0.0)
                for event in run.events[level]
                if event.type not in (Kind.THROUGHPUT, Kind.PHASE_PROFILE, Kind.ROUND_COMPLETED)
            ]
            for run in (one, two)
        )
        assert reported == again


# ---- a scripted run, the same on every machine -------------------------------------------------


class Script(StatelessPolicy):
    """Each member's own plan: (operation, slot) by step; it waits where the masks forbid it.

    No FOSSILIZE: its gate asks whether a contribution is positive, which can hang on a last bit.
    """

    WAIT, GROW, ADVANCE = (LifecycleOp.WAIT, 0), LifecycleOp.GERMINATE, LifecycleOp.ADVANCE
    PRUNE = LifecycleOp.PRUNE
    PLANS = (
        [(GROW, 0), WAIT, WAIT, WAIT, (ADVANCE, 0), *[WAIT] * 7],
        [WAIT, (GROW, 1), WAIT, WAIT, WAIT, (ADVANCE, 1), WAIT, WAIT, *[(PRUNE, 1)] * 4],
        [WAIT] * 12,
        [(GROW, 2), (GROW, 0), (PRUNE, 2), (ADVANCE, 1), *[(ADVANCE, 0)] * 3, *[(GROW, 2)] * 5],
    )

    def act(self, obs, masks, policy_state):
        """The planned actions: a conv_heavy that ramps to alpha 1, else the first choice."""
        op_E, slot_E = np.array([plan[obs.step] for plan in self.PLANS]).T
        heads = {head: nearest_allowed(masks, head, 0) for head in FIXED_MASK}
        heads[ActionHead.ALPHA_TARGET] = FULL_ALPHA
        heads[ActionHead.BLUEPRINT] = obs.slots.blueprints.index("conv_heavy")
        planned = build_actions(op_E, slot_E, heads)
        allowed_E = legal_members(masks, planned)
        actions = build_actions(np.where(allowed_E, op_E, LifecycleOp.WAIT), slot_E, heads)
        return PolicyDecision.deterministic(actions), None


class Notes(Diary):
    """What a run did, in whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[dict[str, Any]] = []
        self.ends: list[dict[str, Any]] = []

    def on_step(self, record: StepRecord) -> None:
        """Keep actions, outcomes and slots."""
        outcome, slots = record.result.outcome, record.signals.slots
        self.steps.append(
            {
                "op": record.decision.actions.op.tolist(),
                "veto": outcome.veto.tolist(),
                "stage_after": outcome.stage_after.tolist(),
                "stage_ES": slots.stage_ES.tolist(),
                "rows": record.rows,
            }
        )

    def on_round_end(self, rollout: Rollout[Any]) -> None:
        """Keep what members have grown to."""
        end = rollout.outcome
        self.ends.append(
            {
                name: getattr(end, name).tolist()
                for name in ("added_params_E", "added_macs_E", "rollbacks_E", "blueprint_ES")
            }
        )


def scripted_run(executor: str) -> dict[str, Any]:
    """Two rounds by the script."""
    sinks = {level: MemorySink() for level in LEVELS}
    hubs = {level: TelemetryHub([sink], level) for level, sink in sinks.items()}
    notes = Notes()
    listeners = [
        TelemetryListener(
            hub, TelemetryConfig(level), "cpu", ROUNDS,
            batches_per_step=1, batch_size=16, optim=OptimSettings(),
                anomalies=ANYTHING_GOES,
        )
        for level, hub in hubs.items()
    ]  # fmt: skip
    engine = small_engine(
        small_task(batches_per_step=1), ListenerGroup([*listeners, notes]),
        members=MEMBERS, seed=11, executor=executor, governor=CALM,
    )  # fmt: skip
    configure_slot_telemetry(engine.slot_events, TelemetryConfig(TelemetryLevel.DEBUG))
    engine.train(Script(ScoreReward(SPEC.upkeep)), ROUNDS)
    for hub in hubs.values():
        hub.close()
    counts = {
        level.name: dict(sorted(Counter(event.type.name for event in sink.events).items()))
        for level, sink in sinks.items()
    }
    return {"steps": notes.steps, "ends": notes.ends, "events": counts}


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_a_scripted_run_is_the_golden_one_on_every_machine(executor):
    """Actions, vetoes, stages, sizes and events: nothing here hangs on a last bit."""
    found, golden = scripted_run(executor), json.loads(GOLDEN.read_text())
    assert found.keys() == golden.keys()
    for part, wanted in golden.items():
        assert found[part] == wanted, part


# ---- what a step consists of ------------------------------------------------------------------

ORDER = (
    "_observe_step", "checked_decision", "execute_actions", "reward_inputs", "checked_rewards",
    "_notify",
)  # fmt: skip
INSIDE = {
    "_observe_step": ("_train_pass", "_validate", "fetch_step", "_review", "_observe"),
    "_train_pass": ("begin_step", "run"),
    "run": ("process_train_batch",),
    "_validate": ("plan_coalitions", "run_control", "run_score"),
    "_review": ("record_step", "healthy_members", "_evaluate_gates", "review"),
    "checked_decision": ("act",),
    "checked_rewards": ("store",),
}
WAITS_FOR_DEVICE = ("cpu", "item", "tolist", "numpy", "nonzero", "__bool__")


class StepWatch:
    """Notes, through Python's profiler, what one step calls and where tensors come to the host."""

    def __init__(self) -> None:
        self.called: dict[str, list[str]] = {}
        """By caller, in order."""
        self.copies: list[tuple[str, str]] = []
        """(method of a tensor, function that called it)."""

    def __call__(self, frame, event, arg) -> None:
        if event == "call" and frame.f_back is not None:
            self.called.setdefault(frame.f_back.f_code.co_name, []).append(frame.f_code.co_name)
            return
        of_tensor = event == "c_call" and isinstance(getattr(arg, "__self__", None), torch.Tensor)
        if of_tensor and arg.__name__ in WAITS_FOR_DEVICE:
            self.copies.append((arg.__name__, frame.f_code.co_name))

    def in_order(self, caller: str, names: tuple[str, ...]) -> list[str]:
        """Which of `names` the caller called, each where it came first."""
        called = [name for name in self.called[caller] if name in names]
        return list(dict.fromkeys(called))


@pytest.fixture(scope="module", params=["vmap", "loop"])
def third_step(request) -> StepWatch:
    """Seeds are growing by then."""
    config = tiny_config(rounds=1, seed=11, executor=request.param)
    trainer = make_trainer(config, spec=SPEC)
    engine, client, watch = trainer.engine, trainer.client, StepWatch()
    engine.begin_episode(client)
    for _ in range(2):
        engine._step_env(client, cut=False)
        engine.step += 1
    sys.setprofile(watch)
    try:
        engine._step_env(client, cut=False)
    finally:
        sys.setprofile(None)
    return watch


def test_the_phases_of_a_step_come_in_the_order_of_the_design(third_step):
    assert third_step.in_order("_step_env", ORDER) == list(ORDER)
    for caller, names in INSIDE.items():
        assert third_step.in_order(caller, names) == list(names), caller


def test_a_step_copies_to_the_host_twice_and_asks_the_device_nothing_else(third_step):
    copies = [function for method, function in third_step.copies if method == "cpu"]
    assert copies == ["fetch", "_to_host"], "measurements, then decisions"
    others = {function for method, function in third_step.copies if method != "cpu"}
    assert others <= {"fetch", "_to_host"}, "of what was copied already"


def test_batches_are_outermost_and_members_inside(third_step):
    """Four batches a step: four calls, each for all four members."""
    assert third_step.called["run"].count("process_train_batch") == 4


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(scripted_run("vmap"), indent=1) + "\n")
