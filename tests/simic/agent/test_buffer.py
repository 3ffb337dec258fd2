"""The rollout buffer: allocated once; incomplete rollouts raise."""

import numpy as np
import pytest

from esper.leyline import EsperError
from ppo_support import K, S, agent, fill, random_masks, random_obs

E, T = 4, 5
NONE = np.zeros(E, dtype=bool)


def recorded(it, rollout, step=0):
    rng = np.random.default_rng(step)
    act = it.act(random_obs(rng, E), random_masks(rng, E), it.initial_state(E), 0, step)
    rollout.record(act.trace)
    return act


@pytest.fixture
def it():
    return agent()


@pytest.fixture
def rollout(it):
    return it.make_buffer(T, E, S, K)


def test_memory_is_allocated_once(it, rollout):
    before = {n: v.data_ptr() for n, v in vars(rollout).items() if hasattr(v, "data_ptr")}
    assert len(before) >= 12
    for round_index in range(2):
        fill(it, rollout, round_index)
        rollout.clear()
    assert before == {n: v.data_ptr() for n, v in vars(rollout).items() if hasattr(v, "data_ptr")}


def test_it_keeps_what_was_seen_and_chosen(it, rollout):
    acts = fill(it, rollout)
    for t, act in enumerate(acts):
        assert rollout.global_TEG[t].equal(act.trace.inputs.global_G)
        assert rollout.slot_TEOS[t].equal(act.trace.inputs.masks.slot_OS)
        assert rollout.choice_TEA[t].equal(act.trace.choice_EA)
        assert rollout.log_prob_TEA[t].equal(act.trace.log_prob_EA)
        assert rollout.value_TE[t].tolist() == act.decision.value_E.tolist()


def test_a_full_buffer_takes_no_more(it, rollout):
    fill(it, rollout)
    with pytest.raises(EsperError, match=f"holds {T} steps already"):
        recorded(it, rollout)


def test_other_sizes_are_refused(it):
    with pytest.raises(EsperError, match="members 4, slots 5"):
        recorded(it, it.make_buffer(T, E, 5, K))


def test_a_truncation_needs_the_value_beyond(it, rollout):
    recorded(it, rollout)
    with pytest.raises(EsperError, match="give bootstrap_E"):
        rollout.reward(np.zeros(E), NONE, ~NONE)


def test_a_reward_that_is_not_finite_is_named(it, rollout):
    recorded(it, rollout)
    with pytest.raises(EsperError, match="member 2 at rollout step 0: nan"):
        rollout.reward(np.array([0, 0, np.nan, 0]), NONE)


def test_a_rollout_that_runs_on_is_bootstrapped(it, rollout):
    recorded(it, rollout)
    rollout.reward(np.zeros(E), NONE)
    rollout.finish(np.arange(4.0))
    assert rollout.bootstrap_TE[0].tolist() == [0, 1, 2, 3]
    it.targets(rollout)


def test_finish_leaves_ended_members_alone(it, rollout):
    recorded(it, rollout)
    ended = np.array([True, False, False, False])
    cut = np.array([False, True, False, False])
    rollout.reward(np.zeros(E), ended, cut, np.full(E, 7.0))
    rollout.finish(np.full(E, 9.0))
    assert rollout.truncated_TE[0].tolist() == [False, True, True, True]
    assert rollout.bootstrap_TE[0, 1:].tolist() == [7.0, 9.0, 9.0]
