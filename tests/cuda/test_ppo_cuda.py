"""The learner on a GPU: one copy back per act, the CPU's numbers, ratios of 1."""

import warnings

import numpy as np
import pytest
import torch

from cuda_support import NEEDS_CUDA, sync_mode
from esper.simic.agent import PPOAgent, PPOConfig
from esper.simic.agent.update import evaluate
from esper.simic.training.runner import run_ppo_updates
from ppo_support import (
    SMALL,
    SPEC,
    K,
    S,
    fill,
    random_masks,
    random_obs,
    same_bits,
    shaken,
    weights,
)

pytestmark = NEEDS_CUDA
E, T = 8, 12


def made(device: str = "cuda") -> PPOAgent:
    return PPOAgent(SPEC, PPOConfig(network=SMALL), seed=1, device=device)


def test_the_device_is_waited_for_once_per_act():
    it, rng = made(), np.random.default_rng(0)
    rollout, state = it.make_buffer(T, E, S, K), it.initial_state(E)
    waits = []
    for step in range(3):
        obs, masks = random_obs(rng, E), random_masks(rng, E)
        with sync_mode("warn"), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            act = it.act(obs, masks, state, 0, step)
            rollout.record(act.trace)
            rollout.reward(np.zeros(E), np.zeros(E, dtype=bool))
            state = it.reset_state(act.state, np.arange(E) == step)
        waits.append(sum("synchroniz" in str(w.message) for w in caught))
    assert waits[1:] == [1, 1], waits


def test_it_decides_as_on_the_cpu():
    rng = np.random.default_rng(0)
    obs, masks = random_obs(rng, E), random_masks(rng, E)
    decisions = []
    for device in ("cpu", "cuda"):
        it = made(device)
        decisions.append(it.act(obs, masks, it.initial_state(E), 0, 0).decision)
    one, two = decisions
    assert one.actions == two.actions
    assert two.head_confidence_EA == pytest.approx(one.head_confidence_EA, abs=1e-4)
    assert two.value_E == pytest.approx(one.value_E, abs=1e-4)


def test_the_update_sees_the_log_probabilities_of_the_rollout():
    it = shaken_on_cuda()
    rollout = it.make_buffer(T, E, S, K)
    fill(it, rollout)
    with torch.no_grad():
        output = evaluate(it.network, rollout.minibatch(torch.arange(E, device="cuda")), False)
    assert (output.choices.log_prob_A - rollout.log_prob_TEA).abs().max() < 1e-4


def shaken_on_cuda() -> PPOAgent:
    it, source = made(), shaken(made("cpu"))
    it.network.load_state_dict(source.network.state_dict())
    return it


@pytest.mark.parametrize("use_amp", [False, True])
def test_it_learns(use_amp):
    it = made()
    rollout = it.make_buffer(T, E, S, K)
    for round_index in range(2):
        fill(it, rollout, round_index)
        metrics = run_ppo_updates(it, 1, rollout, it.obs_normalizer, use_amp)
    assert np.isfinite(metrics.policy_loss)


def test_save_load_continue_is_bit_identical(tmp_path):
    def train(it, first, rounds):
        rollout = it.make_buffer(T, E, S, K)
        for round_index in range(first, first + rounds):
            fill(it, rollout, round_index)
            run_ppo_updates(it, 1, rollout, it.obs_normalizer)
        return weights(it)

    straight = train(made(), 0, 4)
    it = made()
    train(it, 0, 2)
    it.save(tmp_path)
    assert same_bits(straight, train(PPOAgent.load(tmp_path, device="cuda"), 2, 2))
