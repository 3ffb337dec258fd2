"""Agents on other hosts: more slots, reordered, new or fewer blueprints, without conversion."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_support import Diary, small_engine
from esper.leyline import LifecycleOp
from esper.simic.agent import PPOAgent
from esper.simic.client import ActingMode, SimicClient
from esper.simic.rewards.score import ScoreReward
from esper.simic.training.vectorized import train_ppo_vectorized
from loop_support import same_agents, tiny_config, tiny_task
from ppo_support import OPS, S, agent, masks_for, random_obs, shaken, weights


@given(seed=st.integers(0, 1000))
@settings(max_examples=20)
def test_with_blueprints_in_another_order_it_chooses_the_same_ones(seed):
    """What the slots hold and what may be grown, both in the new order."""
    rng = np.random.default_rng(seed)
    it, obs = shaken(agent()), random_obs(rng, 4)
    swapped = replace(
        obs,
        candidate_ESKD=obs.candidate_ESKD[:, :, ::-1].copy(),
        blueprint_ES=np.where(obs.blueprint_ES < 0, obs.blueprint_ES, 1 - obs.blueprint_ES),
    )
    masks = masks_for(rng.random((4, OPS, S)) < 0.7)
    acts = [
        it.act(seen, masks, it.initial_state(4), 0, 0, greedy=True).decision
        for seen in (obs, swapped)
    ]
    a, b = (act.actions for act in acts)
    np.testing.assert_allclose(acts[0].value_E, acts[1].value_E, atol=1e-5)
    assert np.array_equal(a.op, b.op)
    assert np.array_equal(a.slot, b.slot)
    grows = (a.op == LifecycleOp.GERMINATE) | (a.op == LifecycleOp.PLANT)
    assert np.array_equal(a.blueprint[grows], 1 - b.blueprint[grows])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Trained on hosts with three slots and two blueprints, and saved."""
    spec = replace(tiny_task(), blueprints=("depthwise", "conv_light"))
    it, _ = train_ppo_vectorized(tiny_config(rounds=2), spec=spec)
    folder = tmp_path_factory.mktemp("agent")
    it.save(folder)
    return folder, it


FIVE_SLOTS = replace(
    tiny_task(n_blocks=5, size=32, train=120, episode_length=6),
    blueprints=("conv_light", "norm", "depthwise"),
)


@pytest.mark.parametrize("mode", [ActingMode.SAMPLE, ActingMode.GREEDY])
def test_trained_with_three_slots_it_acts_on_a_host_with_five_and_other_blueprints(mode, trained):
    folder, it = trained
    loaded = PPOAgent.load(folder)
    assert same_agents(loaded, it)
    before, diary = weights(loaded), Diary()
    engine = small_engine(FIVE_SLOTS, diary, members=6)
    assert len(engine.env.model.slots) == 5
    rollout = engine.run_rollout(SimicClient(loaded, ScoreReward(FIVE_SLOTS.upkeep), mode))
    assert rollout.steps == 6
    assert np.isfinite(rollout.outcome.score_E).all()
    outcomes = [record.result.outcome for record in diary.records]
    assert all(outcome.executed.all() for outcome in outcomes), "nothing it asked for was illegal"
    if mode is ActingMode.SAMPLE:
        reached = {int(s) for outcome in outcomes for s in outcome.target_slot if s >= 0}
        assert reached & {3, 4}, "slots it never had"
    after = weights(loaded)
    assert all(torch.equal(before[name], after[name]) for name in before), "acting leaves no mark"


def test_it_goes_on_learning_where_it_has_come(trained):
    folder, _ = trained
    it = PPOAgent.load(folder)
    before = weights(it)
    client = SimicClient(it, ScoreReward(FIVE_SLOTS.upkeep))
    client.update(small_engine(FIVE_SLOTS, members=3).run_rollout(client))
    assert it.updates_done == 3
    assert not torch.equal(before["encode_candidate.0.weight"],
                           weights(it)["encode_candidate.0.weight"])  # fmt: skip
