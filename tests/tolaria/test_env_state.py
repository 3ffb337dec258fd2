"""What is known of members between steps: one struct of arrays, one member to read."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine_support import random_policy, small_engine, small_task
from esper.leyline import LifecycleOp, SeedStage
from esper.leyline.actions import NO_SLOT
from esper.tamiyo.baselines import WaitPolicy
from esper.tolaria import ParallelEnvState
from esper.tolaria.env_factory import create_env_state, reset_env_state
from support import refused


def fresh(members: int = 3) -> ParallelEnvState:
    return create_env_state(small_task(), members, 0, torch.device("cpu"))


def test_a_cuda_stream_without_a_cuda_device_is_an_error():
    state = fresh()
    with pytest.raises(ValueError, match="CUDA stream with device cpu"):
        ParallelEnvState(state.model, state.signal_tracker, state.governor, stream=object())


def test_counts_are_what_the_policy_chose():
    engine = small_engine(small_task(episode_length=10))
    engine.run_rollout(random_policy(1))
    env = engine.env
    assert (env.counts.sum(axis=1) == 10).all()
    assert (env.successes <= env.counts).all()
    assert np.array_equal(env.counts[:, 0], env.successes[:, 0]), "waiting always works"
    assert np.array_equal(
        env.successes[:, LifecycleOp.GERMINATE], env.model.lifecycle.births_ES.sum(1)
    )


def test_one_member_reads_like_the_arrays():
    engine = small_engine(small_task(episode_length=6))
    engine.run_rollout(random_policy(4))
    env = engine.env
    for index in range(env.members):
        view = env.env(index)
        assert view.env_idx == env.env_idx[index]
        assert view.device == env.device
        assert [int(stage) for stage in view.seed_stage] == env.seed_stage[index].tolist()
        assert view.active_slot == env.active_slot[index]
        assert view.epoch_reward == env.epoch_rewards[index]
        assert list(view.counts.values()) == env.counts[index].tolist()
        assert list(view.successes.values()) == env.successes[index].tolist()
    assert "valid are 0 to 3" in refused(lambda: env.env(4))
    assert "valid are 0 to 3" in refused(lambda: env.env(-1))


def test_the_active_slot_is_the_first_with_a_live_seed():
    state = fresh()
    assert (state.active_slot == NO_SLOT).all()
    state.model.germinate([1], "r0c2", "norm")
    state.model.germinate([1, 2], "r0c1", "norm")
    state.model.plant([0], "r0c0", "norm")
    assert state.active_slot.tolist() == [NO_SLOT, 1, 1], "a permanent seed is not live"
    assert state.seed_stage[0, 0] == SeedStage.FOSSILIZED


def test_accumulators_start_at_zero_and_are_zeroed():
    state = fresh()
    state.epoch_rewards += 1.0
    state.counts += 1
    state.successes += 1
    state.train.loss_E += 1.0
    state.val.merit_R += 2.0
    state.val.samples = 5
    reset_env_state(state, 3, WaitPolicy())
    assert state.model.round == 3
    for values in (state.epoch_rewards, state.counts, state.successes):
        assert (values == 0).all()
    assert (state.train_loss == 0).all()
    assert (state.val_correct == 0).all()
    assert (state.train_total == 0).all()
    assert state.val_total == 0
    state.init_accumulators()
    assert state.train_correct.shape == state.val_loss.shape == (3,)


def test_totals_of_a_step_are_those_of_its_batches():
    """Sums on the device against losses and predictions computed one by one."""
    spec = small_task(episode_length=1)
    engine = small_engine(spec, members=2)
    engine.run_rollout(WaitPolicy())
    env = engine.env
    assert (env.train_total == spec.batch_size * spec.batches_per_step).all()
    assert env.val_total == len(engine.validator.control)
    np.testing.assert_allclose(
        env.train_loss.numpy() / spec.batches_per_step, engine.episode.train_loss_TE[1]
    )
    np.testing.assert_allclose(env.val_loss.numpy() / env.val_total, engine.episode.loss_TE[1])
    np.testing.assert_allclose(
        env.val_correct.numpy() / env.val_total, engine.episode.accuracy_TE[1]
    )
    correct_E = env.train_correct.numpy()
    assert ((correct_E >= 0) & (correct_E <= env.train_total)).all()


class Remembers(WaitPolicy):
    """A policy with a state: how often each member was asked."""

    def initial_state(self, members):
        return np.zeros(members, dtype=np.int64)

    def reset_state(self, policy_state, reset_E):
        return np.where(reset_E, 0, policy_state)

    def act(self, obs, masks, policy_state):
        decision, _ = super().act(obs, masks, None)
        return decision, policy_state + 1


def test_the_policys_state_is_carried_and_reset():
    policy, state = Remembers(), fresh()
    state.reset_lstm_hidden(policy)
    state.lstm_hidden += 5
    state.reset_lstm_hidden(policy, np.array([False, True, False]))
    assert state.lstm_hidden.tolist() == [5, 0, 5]
    engine = small_engine(small_task(episode_length=6))
    assert engine.run_rollout(policy).final_state.tolist() == [6] * 4
    assert engine.run_rollout(policy).final_state.tolist() == [6] * 4, "a new episode, a new state"


def test_optimizers_are_the_populations():
    state = fresh()
    assert state.host_optimizer is state.model.trainer.host_optimizer
    assert state.seed_optimizer is state.model.trainer.seed_optimizer
    assert state.scaler is None
    half = create_env_state(small_task(), 3, 0, torch.device("cpu"), fp16=True)
    assert half.scaler.scale_E.tolist() == [65536.0] * 3
