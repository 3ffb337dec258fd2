"""Helpers for tests of the PPO agent: masks, observations, agents, rollouts, small problems."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from esper.leyline import ActionMasks, LifecycleOp
from esper.leyline.actions import SLOT_OPS
from esper.leyline.arrays import Bools, Doubles
from esper.simic.agent import PPOAgent, PPOConfig, RolloutBuffer
from esper.simic.agent.agent import Act
from esper.tamiyo import NetworkConfig, Observation, PolicySpec
from esper.tamiyo.inputs import FIXED_CHOICES, FIXED_SIZES

G, F, D, S, K = 4, 3, 5, 3, 2
SPEC = PolicySpec(G, F, D)
EVERY_OP = PolicySpec(G, F, D, restarts=True)
OPS = len(LifecycleOp)
SMALL = NetworkConfig(width=16, attention_heads=2, embedding=4, op_prior=(0.0,) * OPS)
"""With an even prior, so that rollouts of noise hold every operation."""


def masks_for(
    slot_EOS: Bools, ops: Sequence[LifecycleOp] = tuple(LifecycleOp), blueprints: int = K
) -> ActionMasks:
    """These operations, wherever the slots allow them; everything else is open."""
    members, _, slots = slot_EOS.shape
    op_EO = np.zeros((members, OPS), dtype=bool)
    op_EO[:, list(ops)] = True
    op_EO &= slot_EOS.any(axis=2)
    for op in set(LifecycleOp) - SLOT_OPS:
        op_EO[:, op] = op in ops
    fixed = np.split(np.ones(FIXED_CHOICES, dtype=bool), np.cumsum(FIXED_SIZES)[:-1])
    return ActionMasks(op_EO, slot_EOS, np.ones((members, slots, blueprints), dtype=bool), *fixed)


def random_masks(rng: np.random.Generator, members: int, slots: int = S) -> ActionMasks:
    slot_EOS = rng.random((members, LifecycleOp.RESTART, slots)) < 0.5
    return masks_for(np.pad(slot_EOS, ((0, 0), (0, 1), (0, 0))))


def random_obs(rng: np.random.Generator, members: int, slots: int = S) -> Observation:
    return Observation(
        rng.normal(size=(members, G)).astype(np.float32),
        rng.normal(size=(members, slots, F)).astype(np.float32),
        rng.normal(size=(members, slots, K, D)).astype(np.float32),
        rng.integers(-1, K, size=(members, slots)),
    )


def agent(seed: int = 0, spec: PolicySpec = SPEC, **settings: object) -> PPOAgent:
    settings.setdefault("network", SMALL)
    return PPOAgent(spec, PPOConfig(**settings), seed)  # type: ignore[arg-type]


def shaken(it: PPOAgent, scale: float = 0.3) -> PPOAgent:
    """The agent with weights far from birth, so that its choices are far from uniform."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in it.network.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=generator)
    return it


def fill(
    it: PPOAgent,
    rollout: RolloutBuffer,
    round_index: int = 0,
    end_share: float = 0.15,
    seed: int = 3,
) -> list[Act]:
    """A rollout of noise with episodes that end and are cut all over it, states reset there."""
    rng = np.random.default_rng([seed, round_index])
    members, slots = rollout.members, rollout.slots
    state, acts = it.initial_state(members), []
    for step in range(rollout.steps):
        obs, masks = random_obs(rng, members, slots), random_masks(rng, members, slots)
        act = it.act(obs, masks, state, round_index, step)
        rollout.record(act.trace)
        terminal_E = rng.random(members) < end_share
        truncated_E = rng.random(members) < end_share
        rollout.reward(rng.normal(size=members), terminal_E, truncated_E, rng.normal(size=members))
        state = it.reset_state(act.state, terminal_E | truncated_E)
        acts.append(act)
    rollout.finish(rng.normal(size=members))
    return acts


def weights(it: PPOAgent) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in it.network.named_parameters()}


def same_bits(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


# ---- small problems -----------------------------------------------------------------------

Problem = Callable[[np.random.Generator, int], "Task"]


class Task:
    """One episode of E members: what they see at a step, and what their actions pay."""

    steps: int

    def see(self, step: int) -> tuple[Observation, ActionMasks]:
        raise NotImplementedError

    def pay(self, step: int, act: Act) -> Doubles:
        raise NotImplementedError


def play(
    it: PPOAgent,
    task: Task,
    members: int,
    round_index: int,
    rollout: RolloutBuffer | None = None,
) -> Doubles:
    """One episode; returns `[E]`. Greedy where nothing is recorded."""
    state, total_E = it.initial_state(members), np.zeros(members)
    for step in range(task.steps):
        act = it.act(*task.see(step), state, round_index, step, greedy=rollout is None)
        reward_E = task.pay(step, act)
        if rollout is not None:
            rollout.record(act.trace)
            rollout.reward(reward_E, np.full(members, step == task.steps - 1))
        state, total_E = act.state, total_E + reward_E
    return total_E
