"""What the decisions of a plan phase are paid, and what comes after it, on a tiny engine."""

from __future__ import annotations

import numpy as np
import pytest

from context_support import EMPTY, PlanDiary, Planner, planned_engine

FIRST = np.array([[0, EMPTY, EMPTY], [EMPTY, EMPTY, EMPTY]])
"""One member is planted in the first slot, the other not at all."""


def tiny(**config):
    return planned_engine(members=2, episode_length=2, batches_per_step=1, **config)


@pytest.fixture(scope="module")
def reported():
    """An episode: the engine, its diary, its rollout and the score of the hosts."""
    engine, diary = tiny(), PlanDiary()
    policy = Planner(FIRST)
    engine.begin_episode(policy)
    host_E = engine.episode.score_TE[0].copy()
    rollout = engine.run_rollout(policy, diary)
    return engine, diary, rollout, host_E


def test_the_last_decision_is_paid_for_all_that_was_planted(reported):
    engine, diary, _, host_E = reported
    paid_TE = np.stack([record.rewards.total for record in diary.plans])
    planted_E = engine.episode.score_TE[0] - host_E
    assert planted_E[0] < 0, "rent, before the seed has learnt anything"
    assert planted_E[1] == 0
    np.testing.assert_allclose(paid_TE, [[0, 0], [0, 0], planted_E], atol=1e-12)


def test_plan_and_steps_sum_to_the_change_from_the_host(reported):
    _, _, rollout, host_E = reported
    outcome = rollout.outcome
    np.testing.assert_allclose(outcome.episode_return_E, outcome.score_E - host_E, atol=1e-12)


def test_a_member_that_fails_goes_back_to_what_was_planted():
    engine = tiny()
    policy = Planner(FIRST)
    engine.begin_episode(policy)
    phase = engine.begin_plan()
    while not phase.done:
        phase.decide(policy)
    governor, episode = engine.env.governor, engine.episode
    assert governor.snapshot_score_E.tolist() == episode.score_TE[0].tolist()
    assert not engine.env.model.lifecycle.planning


def test_the_rest_of_a_truncated_episode_has_no_plan():
    engine = tiny(rollout_steps=1)
    planned = [engine.run_rollout(Planner(FIRST)).plan_decisions for _ in range(3)]
    assert planned == [3, 0, 3]
