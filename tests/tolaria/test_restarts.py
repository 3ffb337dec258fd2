"""RESTART in the engine: schedule, masks, clock, score, rollbacks, replay, records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from context_support import EMPTY, PlanDiary, Planner, member_tensors
from engine_support import CALM, histories, random_policy, small_engine, small_task
from esper.leyline import LifecycleOp, SeedStage
from esper.leyline.context import ContextSpec
from esper.leyline.payloads import PruneCause, SeedPruned
from esper.simic.rewards.score import score_after_step
from esper.tamiyo.baselines import RestartPolicy, WaitPolicy
from esper.tamiyo.replay import ActionRecorder, ReplayPolicy
from esper.tolaria.engine import VectorizedEngine

RESTARTS = ContextSpec(actions="grow+restart")
COMPUTE = ContextSpec(actions="full+restart", clock="compute")
RESTART, STEPS = LifecycleOp.RESTART, 8
NOTHING = np.full((3, 3), EMPTY)


def engine_of(context: ContextSpec = RESTARTS, **config: Any) -> VectorizedEngine:
    """Three small members under a cosine schedule."""
    plain = small_task(episode_length=STEPS)
    optim = replace(plain.optim, schedule="cosine", seed_lr=plain.optim.host_lr / 4)
    spec = replace(plain, context=context, optim=optim)
    settings = {"members": 3, "governor": CALM, "profile": "exact"}
    return small_engine(spec, **(settings | config))


def run(
    engine: VectorizedEngine,
    actions: Mapping[int, Sequence[tuple[LifecycleOp, int, int]]],
    topology: np.ndarray = NOTHING,
) -> tuple[Planner, PlanDiary]:
    client, diary = Planner(topology, actions), PlanDiary()
    engine.run_rollout(client, diary)
    return client, diary


ONCE = {2: [(RESTART, 1, 0)]}


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_neighbour_that_restarts_changes_no_bit(executor):
    still, moved = engine_of(executor=executor), engine_of(executor=executor)
    run(still, {})
    run(moved, ONCE)
    assert moved.outcome().restarts_E.tolist() == [0, 1, 0]
    for member in (0, 2):
        one, two = member_tensors(still, member), member_tensors(moved, member)
        assert all(torch.equal(one[name], two[name]) for name in one)
    for name, values in histories(still.episode).items():
        assert np.array_equal(values[:, [0, 2]], histories(moved.episode)[name][:, [0, 2]], True)
    assert not torch.equal(member_tensors(still, 1)["host"], member_tensors(moved, 1)["host"])


def test_the_schedule_of_a_restarted_member_covers_what_is_left(monkeypatch):
    engine, rates = engine_of(), []
    original = engine.trainer.run

    def watched(step: int) -> None:
        original(step)
        trainer = engine.env.model.trainer
        rates.append((trainer.host_lr_E.tolist(), trainer.seed_lr_E.tolist()))

    monkeypatch.setattr(engine.trainer, "run", watched)
    run(engine, ONCE)
    optim = engine.spec.optim
    for step, (host_E, seed_E) in enumerate(rates):
        began = 3 if step > 2 else 0
        expected = [optim.rates_at(step - b, STEPS - b) for b in (0, began, 0)]
        assert host_E == np.float32([host for host, _ in expected]).tolist()
        assert seed_E == np.float32([seed for _, seed in expected]).tolist()


@pytest.mark.parametrize(
    ("share", "last"), [(0.25, 5), (0.5, 3), (0.0, 6), (1.0, -1)], ids=lambda value: str(value)
)
@pytest.mark.parametrize("context", [RESTARTS, COMPUTE], ids=["steps", "compute"])
def test_it_is_masked_from_the_step_on_at_which_too_little_is_left(context, share, last):
    """`last`: the last step with at least that share of the compute left after it. The very last
    step of an episode allows nothing but WAIT."""
    client, _ = run(engine_of(replace(context, min_restart_left=share)), {})
    steps = [(obs, masks) for obs, masks in client.seen if not obs.planning]
    legal = [bool(masks.op_EO[:, RESTART].all()) for _, masks in steps]
    assert legal == [step <= last for step in range(STEPS)]
    assert not any(m.op_EO[:, RESTART].any() for obs, m in client.seen if obs.planning)


def test_nobody_restarts_after_a_stop():
    client, _ = run(engine_of(COMPUTE), {1: [(LifecycleOp.STOP, 0, 0)]})
    masks = [masks for obs, masks in client.seen if not obs.planning][2]
    assert masks.op_EO[:, RESTART].tolist() == [False, True, True]


def test_compute_that_was_spent_stays_spent():
    planted = np.array([[2, 2, EMPTY]] * 3)
    still, moved = engine_of(COMPUTE), engine_of(COMPUTE)
    run(still, {}, planted)
    run(moved, ONCE, planted)
    one, two = still.context.clock, moved.context.clock
    assert np.array_equal(one.spent_E[[0, 2]], two.spent_E[[0, 2]])
    assert np.allclose(two.share_E, 1.0, atol=0.1)
    assert two.trained_E[1] > one.trained_E[1]  # the bare host trains more batches of the rest
    assert moved.outcome().added_params_E[1] == 0


@pytest.mark.parametrize("context", [RESTARTS, COMPUTE], ids=["steps", "compute"])
def test_rewards_sum_to_the_score_through_restarts(context):
    engine = engine_of(context, members=6)
    policy = random_policy(3, engine.spec)
    rewards: list[np.ndarray] = []
    client = replace_reward(policy, rewards)
    rollout = engine.run_rollout(client)
    assert rollout.outcome.restarts_E.sum() > 2
    gained_E = engine.episode.score_TE[-1] - client.first_E
    np.testing.assert_allclose(np.sum(rewards, axis=0), gained_E, atol=1e-12)
    assert np.array_equal(rollout.outcome.score_E, engine.episode.score_TE[-1])


def replace_reward(policy: Any, rewards: list[np.ndarray]) -> Any:
    """The policy, paid the score without upkeep; what it was paid is kept."""
    paid = policy.reward

    def reward(inputs: Any) -> Any:
        if not hasattr(policy, "first_E"):
            policy.first_E = inputs.score_before_E.copy()
        total_E, components = paid(inputs)
        rewards.append(components.part("score"))
        return total_E, components

    policy.reward = reward
    return policy


def test_a_first_step_that_fails_leads_back_to_before_the_restart():
    """The fresh member has no score yet; the step after its first good one is snapshotted."""
    engine = engine_of()
    host_EP = engine.env.model.network.host.flat_EP

    class Poison(PlanDiary):
        def on_step(self, record: Any) -> None:
            super().on_step(record)
            if record.signals.step == 2:
                engine.env.model.network.host.flat_EP.detach()[1] = torch.nan

    client, diary = Planner(NOTHING, ONCE), Poison()
    rollout = engine.run_rollout(client, diary)
    verdicts = [record.governor for record in diary.records]
    assert [int(v.rolled_back_E[1]) for v in verdicts] == [0, 0, 0, 1, 0, 0, 0, 0]
    assert verdicts[3].snapshot_step_E[1] <= 2
    assert torch.isfinite(host_EP).all()
    score_T = engine.episode.score_TE[:, 1]
    assert rollout.outcome.score_E[1] == score_T[-1]
    paid = [r.reward_inputs for r in diary.records]
    gains = [score_after_step(inputs)[1] - inputs.score_before_E[1] for inputs in paid]
    assert sum(gains) == pytest.approx(score_T[-1] - score_T[0], abs=1e-12)


def test_the_next_good_step_after_a_restart_is_snapshotted():
    _, diary = run(engine_of(), ONCE)
    snapshot_T = [int(record.governor.snapshot_step_E[1]) for record in diary.records]
    assert snapshot_T[2:5] == [-1, 3, 3]
    others_T = [int(record.governor.snapshot_step_E[0]) for record in diary.records]
    assert others_T[:6] == [-1, -1, -1, -1, 4, 4]


def test_the_curve_begins_anew_and_the_context_says_since_when():
    client, _ = run(engine_of(), {2: [(RESTART, 1, 0)], 4: [(RESTART, 1, 0)]})
    seen = [obs for obs, _ in client.seen]
    assert [obs.context.restarts_E.tolist() for obs in seen[2:6]] == [
        [0, 0, 0], [0, 1, 0], [0, 1, 0], [0, 2, 0],
    ]  # fmt: skip
    assert [obs.context.began_E.tolist() for obs in seen[2:6:3]] == [[0, 0, 0], [0, 5, 0]]
    known = np.isfinite(seen[3].val_loss_history_EL).sum(axis=1)
    assert known.tolist() == [4, 1, 4]


@pytest.mark.parametrize("context", [RESTARTS, COMPUTE], ids=["steps", "compute"])
def test_executors_agree_through_restarts(context):
    runs = []
    for executor in ("loop", "vmap"):
        engine = engine_of(context, executor=executor)
        engine.run_rollout(random_policy(2, engine.spec))
        runs.append(engine)
    assert runs[0].outcome().restarts_E.any()
    for name, values in histories(runs[0].episode).items():
        other = histories(runs[1].episode)[name]
        np.testing.assert_allclose(values, other, rtol=1e-3, atol=1e-4, err_msg=name)


def test_a_recording_with_restarts_is_replayed():
    first, second = engine_of(COMPUTE), engine_of(COMPUTE)
    recorder = ActionRecorder()
    recorded = first.run_rollout(random_policy(2, first.spec), recorder)
    replayed = second.run_rollout(ReplayPolicy(recorder.recording))
    assert recorded.outcome.restarts_E.sum() > 0
    assert np.array_equal(recorded.outcome.restarts_E, replayed.outcome.restarts_E)
    assert np.array_equal(recorded.outcome.score_E, replayed.outcome.score_E)


def test_seeds_that_a_restart_removes_are_told_with_their_cause():
    planted = np.array([[EMPTY] * 3, [2, EMPTY, 0], [2, 2, 2]])
    _, diary = run(engine_of(COMPUTE), ONCE, planted)
    (gone,) = [payload for payload in diary.slot_events if isinstance(payload, SeedPruned)]
    assert gone.member_N.tolist() == [1, 1]
    assert gone.slot_N.tolist() == [0, 2]
    assert gone.cause_N.tolist() == [PruneCause.RESTART] * 2
    assert gone.stage_before_N.tolist() == [SeedStage.PLANTED] * 2


@pytest.mark.parametrize("context", [RESTARTS, COMPUTE], ids=["steps", "compute"])
def test_the_rule_restarts_what_is_below_its_threshold(context):
    engine = engine_of(context)
    engine.run_rollout(WaitPolicy())
    control_E = engine.episode.accuracy_TE[2]
    below = float(np.sort(control_E)[1])  # the worst is below, the second is not
    engine = engine_of(context)
    engine.run_rollout(RestartPolicy(2, below))
    assert (control_E < below).sum() == 1
    assert engine.outcome().restarts_E.tolist() == (control_E < below).tolist()


def test_the_rule_counts_steps_from_where_a_member_began_and_restarts():
    recorder = ActionRecorder()
    engine_of().run_rollout(RestartPolicy(2, 1.1, times=2), recorder)
    restarts_TE = np.stack([actions.op == RESTART for actions in recorder.recording.steps])
    assert np.flatnonzero(restarts_TE.all(axis=1)).tolist() == [1, 3]
    assert restarts_TE.sum() == 2 * 3


def test_the_rule_waits_where_too_little_is_left():
    engine = engine_of(replace(RESTARTS, min_restart_left=0.9))
    engine.run_rollout(RestartPolicy(2, 1.1, times=9))
    assert not engine.outcome().restarts_E.any()
