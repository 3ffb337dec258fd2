"""Agents on other hosts: more slots, reordered, new or fewer blueprints."""

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
from esper.simic.training.runner import run_ppo_updates
from esper.simic.training.vectorized import train_ppo_vectorized
from loop_support import same_agents, tiny_config, tiny_task
from ppo_support import OPS, F, G, S, agent, fill, masks_for, random_obs, shaken
from support import refused

KNOWN = ("norm", "conv")


def learnt() -> PPOAgent:
    """One update behind it, so that Adam has moments and the normalisers have seen something."""
    it = agent()
    rollout = it.make_buffer(4, 3, S)
    fill(it, rollout)
    run_ppo_updates(it, 1, rollout, it.obs_normalizer)
    return it


def table(it: PPOAgent) -> torch.Tensor:
    return it.network.blueprints.weight.detach()


def test_the_same_list_is_the_same_agent_and_a_copy_of_its_own():
    one = learnt()
    two = one.for_blueprints(KNOWN)
    assert same_agents(one, two)
    with torch.no_grad():
        two.network.blueprints.weight += 1
    assert not torch.equal(table(one), table(two))


def test_known_names_keep_what_was_learnt_of_them_wherever_they_stand():
    one = learnt()
    two = one.for_blueprints(("new", "conv", "norm"), allow_new=True)
    assert two.spec.blueprints == ("new", "conv", "norm")
    assert torch.equal(table(two)[[0, 2, 3]], table(one)[[0, 2, 1]])
    fresh = table(two)[1]
    assert fresh.abs().sum() > 0
    state_one, state_two = (it.optimizer.state[it.network.blueprints.weight] for it in (one, two))
    assert torch.equal(state_two["exp_avg_sq"][[0, 2, 3]], state_one["exp_avg_sq"][[0, 2, 1]])
    assert not state_two["exp_avg_sq"][1].any()
    assert torch.equal(state_two["step"], state_one["step"])


@given(seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_with_blueprints_in_another_order_it_chooses_the_same_ones(seed):
    """By name: what stands in the slots and what may be grown, both in the new order."""
    rng = np.random.default_rng(seed)
    one = shaken(agent())
    two = one.for_blueprints(KNOWN[::-1])
    obs = random_obs(rng, 4)
    swapped = np.where(obs.blueprint_ES < 0, obs.blueprint_ES, 1 - obs.blueprint_ES)
    masks = masks_for(rng.random((4, OPS, S)) < 0.7)
    acts = [
        it.act(seen, masks, it.initial_state(4), 0, 0, greedy=True).decision
        for it, seen in ((one, obs), (two, replace(obs, blueprint_ES=swapped)))
    ]
    a, b = (act.actions for act in acts)
    np.testing.assert_allclose(acts[0].value_E, acts[1].value_E, atol=1e-5)
    assert np.array_equal(a.op, b.op)
    assert np.array_equal(a.slot, b.slot)
    grows = a.op == LifecycleOp.GERMINATE
    assert np.array_equal(a.blueprint[grows], 1 - b.blueprint[grows])


def test_a_name_it_has_never_seen_is_refused_unless_allowed():
    said = refused(lambda: learnt().for_blueprints(("norm", "conv_light", "attention")))
    assert "blueprints conv_light, attention" in said
    assert "norm, conv only" in said
    assert "allow_new" in said
    twice = refused(lambda: learnt().for_blueprints(("norm", "norm")))
    assert "each may be named once" in twice


def test_it_goes_on_learning_where_it_has_come():
    it = learnt().for_blueprints(("conv", "x", "norm"), allow_new=True)
    rollout = it.make_buffer(4, 3, 5)
    rng = np.random.default_rng(0)
    before, state = table(it).clone(), it.initial_state(3)
    for step in range(4):
        masks = masks_for(np.ones((3, OPS, 5), dtype=bool), blueprints=3)
        act = it.act(random_obs(rng, 3, 5), masks, state, 1, step)
        rollout.record(act.trace)
        rollout.reward(rng.normal(size=3), np.full(3, step == 3))
        state = act.state
    rollout.finish(np.zeros(3))
    run_ppo_updates(it, 1, rollout, it.obs_normalizer)
    assert it.updates_done == 2
    assert not torch.equal(before, table(it))
    assert (it.spec.global_features, it.spec.slot_features) == (G, F)


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
def test_trained_with_three_slots_it_loads_and_acts_on_a_host_with_five(mode, trained):
    folder, it = trained
    loaded = PPOAgent.load(folder)
    assert same_agents(loaded, it)
    moved = loaded.for_blueprints(FIVE_SLOTS.blueprints, allow_new=True)
    before = {name: p.detach().clone() for name, p in moved.network.named_parameters()}
    diary = Diary()
    engine = small_engine(FIVE_SLOTS, diary, members=6)
    assert len(engine.env.model.slots) == 5
    rollout = engine.run_rollout(SimicClient(moved, ScoreReward(FIVE_SLOTS.upkeep), mode))
    assert rollout.steps == 6
    assert np.isfinite(rollout.outcome.score_E).all()
    outcomes = [record.result.outcome for record in diary.records]
    assert all(outcome.executed.all() for outcome in outcomes), "nothing it asked for was illegal"
    if mode is ActingMode.SAMPLE:
        reached = {int(s) for outcome in outcomes for s in outcome.target_slot if s >= 0}
        assert reached & {3, 4}, "slots it never had"
    after = dict(moved.network.named_parameters())
    assert all(torch.equal(before[name], after[name]) for name in before), "acting leaves no mark"


def test_the_same_names_need_no_adapting(trained):
    folder, _ = trained
    spec = replace(FIVE_SLOTS, blueprints=("depthwise", "conv_light"), episode_length=3)
    client = SimicClient(PPOAgent.load(folder), ScoreReward(spec.upkeep), ActingMode.GREEDY)
    rollout = small_engine(spec, members=2).run_rollout(client)
    assert np.isfinite(rollout.outcome.score_E).all()


def test_a_controller_of_other_blueprints_does_not_act_by_mistake(trained):
    """As many, and other names: indices would mean something else."""
    folder, _ = trained
    spec = replace(FIVE_SLOTS, blueprints=("conv_light", "depthwise"), episode_length=3)
    client = SimicClient(PPOAgent.load(folder), ScoreReward(spec.upkeep), ActingMode.GREEDY)
    said = refused(lambda: small_engine(spec, members=2).run_rollout(client))
    assert "depthwise, conv_light on hosts that offer conv_light, depthwise" in said
    assert "for_blueprints" in said
