"""Acting on a GPU by replay: the plain step's bits, across updates, and no wait but transfer 2."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch

from cuda_support import DEVICE, NEEDS_CUDA
from esper.leyline import LifecycleOp
from esper.simic.agent import PPOAgent, PPOConfig
from esper.simic.agent.agent import Act
from esper.simic.agent.schedule import Schedule
from esper.simic.training.runner import run_ppo_updates
from ppo_support import (
    OPS,
    SMALL,
    SPEC,
    K,
    S,
    fill,
    masks_for,
    random_masks,
    random_obs,
    same_bits,
    shaken,
    weights,
)
from sync_sites import watch_steps

pytestmark = [*NEEDS_CUDA, pytest.mark.usefixtures("exact")]
E, T = 8, 10
MIXES = (tuple(LifecycleOp), (LifecycleOp.WAIT, LifecycleOp.ADVANCE), (LifecycleOp.WAIT,))


def made(graphs: bool = True) -> PPOAgent:
    """Far from birth; with the graphs that an agent on a GPU has, or without."""
    config = PPOConfig(network=SMALL, exploration=Schedule(0.2, 0.0, 3))
    source = shaken(PPOAgent(SPEC, config, seed=1))
    it = PPOAgent(SPEC, config, seed=1, device=DEVICE)
    it.network.load_state_dict(source.network.state_dict())
    if not graphs:
        it.use_graphs(None)
    return it


def numbers(act: Act) -> dict[str, torch.Tensor]:
    """What an act handed out, as copies."""
    decision, trace, after = act.decision, act.trace, act.state
    found = {
        "choice": trace.choice_EA,
        "log_prob": trace.log_prob_EA,
        "hidden": after.hidden_ED,
        "cell": after.cell_ED,
        "global": trace.inputs.global_G,
        "slot": trace.inputs.slot_SF,
        "blueprint": trace.inputs.blueprint_S,
    }
    found |= {f.name: getattr(trace.inputs.masks, f.name) for f in fields(trace.inputs.masks)}
    copies = {name: tensor.clone() for name, tensor in found.items()}
    copies["value"] = torch.from_numpy(decision.value_E.copy())
    copies["confidence"] = torch.from_numpy(decision.head_confidence_EA.copy())
    return copies


def act_on(it: PPOAgent, steps: int, **how) -> list[Act]:
    """Legal operations, and with them the heads, change from step to step."""
    rng = np.random.default_rng(0)
    state, acts = it.initial_state(E), []
    for step in range(steps):
        slot_EOS = rng.random((E, OPS, S)) < 0.5
        slot_EOS[:, :, 0] = True
        masks = masks_for(slot_EOS, MIXES[step % len(MIXES)])
        acts.append(it.act(random_obs(rng, E), masks, state, 0, step, **how))
        state = it.reset_state(acts[-1].state, np.arange(E) == step % 7)
    return acts


@pytest.mark.parametrize("how", [{}, {"greedy": True}, {"learning": False}])
def test_replayed_acts_are_the_plain_ones(how):
    one, two = made(), made(graphs=False)
    pairs = zip(act_on(one, 15, **how), act_on(two, 15, **how), strict=True)
    for step, acts in enumerate(pairs):
        ours, theirs = map(numbers, acts)
        assert [n for n in ours if not torch.equal(ours[n], theirs[n])] == [], step
    assert one.graphs.on, one.graphs.problem
    assert one.graphs.captures == len(MIXES)
    assert one.graphs.replays == 15 - len(MIXES)
    assert two.graphs is None


def test_updates_in_between_are_followed():
    ends = []
    for graphs in (True, False):
        it = made(graphs)
        rollout, acts = it.make_buffer(T, E, S, K), []
        for round_index in range(3):
            acts += fill(it, rollout, round_index)
            run_ppo_updates(it, 1, rollout, it.obs_normalizer)
        ends.append(([numbers(act) for act in acts], weights(it)))
        assert not graphs or it.graphs.replays > 2 * T
    (left, ours), (right, theirs) = ends
    for step, (one, two) in enumerate(zip(left, right, strict=True)):
        assert [n for n in one if not torch.equal(one[n], two[n])] == [], step
    assert same_bits(ours, theirs)


def test_nothing_handed_out_is_written_to_again():
    it, rng = made(), np.random.default_rng(0)
    state, acts, kept = it.initial_state(E), [], []
    for step in range(12):
        acts.append(it.act(random_obs(rng, E), random_masks(rng, E), state, 0, step))
        kept.append(numbers(acts[-1]))
        state = acts[-1].state
    assert it.graphs.replays > 6
    for act, before in zip(acts, kept, strict=True):
        assert same_bits(numbers(act), before)


def test_only_transfer_2_is_waited_for():
    """The steps watched warm up, capture and replay."""
    warm = made()
    act_on(warm, 6)  # kernels and pinned memory are set up
    it, rng = made(), np.random.default_rng(0)
    rollout, state = it.make_buffer(T, E, S, K), it.initial_state(E)
    seen = [(random_obs(rng, E), random_masks(rng, E)) for _ in range(T)]

    def step() -> None:
        nonlocal state
        at = rollout.filled
        act = it.act(*seen[at], state, 0, at)
        rollout.record(act.trace)
        rollout.reward(np.zeros(E), np.zeros(E, dtype=bool))
        state = it.reset_state(act.state, np.arange(E) == at)

    waits = watch_steps(lambda: None, step, T)
    assert [w for w in waits if not w.allowed] == []
    assert [(w.count, w.most) for w in waits] == [(T, 1)]
    assert it.graphs.captures >= 1
    assert it.graphs.replays > T // 2


def test_memory_stays_constant_over_rounds():
    it = made()
    rollout, used = it.make_buffer(T, E, S, K), []
    for round_index in range(6):
        fill(it, rollout, round_index)
        run_ppo_updates(it, 1, rollout, it.obs_normalizer)
        used.append(torch.cuda.memory_reserved())
    assert used[-1] <= used[2] + 2**21
