"""Replay: the recorded actions, WAIT where they are not legal, and a calendar is exposed by it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from engine_support import small_engine, small_task
from esper.leyline import LifecycleOp, PolicyDecision
from esper.leyline.context import PLANNED
from esper.leyline.records import PlanRecord, StepRecord
from esper.tamiyo import FixedSchedule, RandomPolicy, ScheduleConfig, ScheduleEntry, WaitPolicy
from esper.tamiyo.baselines import StatelessPolicy
from esper.tamiyo.replay import ActionRecorder, ReplayPolicy
from esper.tamiyo.scripted import build_actions, first_applicable, legal_slots
from payload_support import build
from support import make_population, refused
from tamiyo_support import Drive, carry_out, masks_of, observe

TASK = replace(small_task(episode_length=8), context=PLANNED)


def recorded(policy: Any, **config: Any):
    engine, recorder = small_engine(TASK, **config), ActionRecorder()
    rollout = engine.run_rollout(policy, recorder)
    return rollout, recorder.recording


def test_on_the_same_hosts_a_replay_is_the_run_itself_plan_included():
    rollout, recording = recorded(RandomPolicy(3))
    assert len(recording.plan) == len(TASK.slots)
    assert any((actions.op == LifecycleOp.PLANT).any() for actions in recording.plan)
    again, _ = recorded(ReplayPolicy(recording))
    assert again.outcome.score_E.tolist() == rollout.outcome.score_E.tolist()
    assert again.outcome.blueprint_ES.tolist() == rollout.outcome.blueprint_ES.tolist()


def test_what_is_not_legal_becomes_wait():
    """Every member repeats a run in which other gates opened: still, no action is refused."""
    _, recording = recorded(RandomPolicy(3))
    seen: list[StepRecord] = []
    plans: list[PlanRecord] = []

    class Watch(ActionRecorder):
        def on_step(self, record: StepRecord) -> None:
            seen.append(record)

        def on_plan(self, record: PlanRecord) -> None:
            plans.append(record)

    others = {"member_ids": (1, 2, 3, 0), "context_ids": (0, 1, 2, 3)}
    small_engine(TASK, **others).run_rollout(ReplayPolicy(recording), Watch())
    wanted = np.stack([actions.op for actions in recording.steps])
    given = np.stack([record.decision.actions.op for record in seen])
    legal = np.stack([record.masks.op_EO for record in seen])
    assert (given[wanted != given] == LifecycleOp.WAIT).all()
    assert np.take_along_axis(legal, given[..., None], axis=2).all()
    for record, actions in zip(plans, recording.plan, strict=True):
        assert record.decision.actions.op.tolist() == actions.op.tolist(), "as on fresh hosts"


def test_a_run_with_other_slots_blueprints_members_or_steps_is_refused_in_one_line():
    _, recording = recorded(WaitPolicy())
    shorter = replace(TASK, slots=TASK.slots[:1])
    engine = small_engine(shorter)
    line = refused(lambda: engine.run_rollout(ReplayPolicy(recording)))
    assert "recorded with slots r0c0, r0c1, r0c2, this host has r0c0" in line
    fewer = small_engine(replace(TASK, blueprints=TASK.blueprints[:2]))
    assert "recorded with blueprints" in refused(lambda: fewer.run_rollout(ReplayPolicy(recording)))
    longer = small_engine(replace(TASK, episode_length=9))
    assert "recorded 8 steps" in refused(lambda: longer.run_rollout(ReplayPolicy(recording)))
    two = small_engine(TASK, members=2)
    assert "recorded 4 members" in refused(lambda: two.run_rollout(ReplayPolicy(recording)))


# ---- a calendar is exposed ---------------------------------------------------------------------

STEPS, HOSTS = 24, 64


@dataclass
class Curves:
    """A surrogate: learning curves that depend on something nobody sees.

    Half of the hosts are short of capacity: their curve saturates early and low, and a seed lifts
    it. The others learn steadily, and a seed only costs.
    """

    short_E: np.ndarray

    def accuracy(self, step: int) -> np.ndarray:
        """Accuracy before growth."""
        saturated = 0.4 * (1 - np.exp(-(step + 1) / 2))
        return np.where(self.short_E, saturated, 0.02 * (step + 1))

    def run(self, policy: Any, listener: ActionRecorder | None = None) -> np.ndarray:
        """One episode; returns the score of every host."""
        population = make_population(HOSTS)
        drive = Drive(policy, population)
        grown_at_E = np.full(HOSTS, np.inf)
        for step in range(STEPS):
            population.lifecycle.begin_step()
            population.lifecycle.end_step(drive.signals(population))
            slope_E = (self.accuracy(step) - self.accuracy(step - 1)).astype(np.float32)
            obs = observe(population, step, val_accuracy_slope_E=slope_E, episode_length=STEPS)
            masks = masks_of(population)
            decision, drive.state = policy.act(obs, masks, drive.state)
            if listener is not None:
                facts = {"signals": obs, "masks": masks, "decision": decision}
                listener.on_step(build(StepRecord, facts, E=HOSTS, S=3))
            carry_out(population, decision.actions)
            grows_E = decision.actions.op == LifecycleOp.GERMINATE
            grown_at_E = np.where(grows_E, np.minimum(grown_at_E, step), grown_at_E)
        share_E = np.clip((STEPS - grown_at_E) / STEPS, 0, 1)
        gain_E = np.where(self.short_E, 0.3 * share_E, -0.2 * (share_E > 0))
        return self.accuracy(STEPS - 1) + gain_E


class CurveReader(StatelessPolicy):
    """Germinates where the curve has flattened after a few steps."""

    def act(self, obs, masks, policy_state):
        flat_E = (obs.step >= 6) & (obs.val_accuracy_slope_E < 0.01)
        empty_E = (obs.slots.blueprint_ES < 0).all(axis=1)
        may_ES = legal_slots(masks, LifecycleOp.GERMINATE) & (flat_E & empty_E)[:, None]
        op_E, slot_E = first_applicable([(LifecycleOp.GERMINATE, may_ES)])
        return PolicyDecision.deterministic(build_actions(op_E, slot_E, {})), None


def own_and_replayed(policy: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scores of a policy, and of its actions on the neighbours, replayed."""
    short_E = np.random.default_rng(0).random(HOSTS) < 0.5
    recorder = ActionRecorder()
    recorder.on_round_start(0, HOSTS)
    Curves(np.roll(short_E, -1)).run(policy, recorder)
    here = Curves(short_E)
    return here.run(policy), here.run(ReplayPolicy(recorder.recording))


def test_a_reader_of_the_curve_beats_its_own_replay():
    own, replayed = own_and_replayed(CurveReader())
    assert own.mean() - replayed.mean() > 0.05
    error = (own - replayed).std() / np.sqrt(HOSTS)
    assert own.mean() - replayed.mean() > 3 * error


@pytest.mark.parametrize("start", [0, 6, 12])
def test_a_fixed_schedule_does_not_beat_its_own_replay(start):
    schedule = FixedSchedule(ScheduleConfig((ScheduleEntry(start, "r0c0", "norm"),)))
    own, replayed = own_and_replayed(schedule)
    assert own.tolist() == replayed.tolist()
