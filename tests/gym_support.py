"""Small Gymnasium environments for tests, and clients that repeat their actions in an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_support import small_task
from esper.gym.flat_env import FlatVectorEnv, flat
from esper.gym.vector_env import EsperVectorEnv
from esper.leyline import PLANNED, ContextSpec, Range
from esper.leyline.actions import ActionSpec, LifecycleOp
from esper.leyline.masks import FIXED_MASK, ActionMasks
from esper.leyline.records import PolicyDecision
from esper.simic.rewards.score import ScoreReward
from esper.tamiyo.actions import parse_sampled_action
from esper.tamiyo.baselines import StatelessPolicy
from esper.tasks.spec import TaskSpec

DRAWN = replace(PLANNED, price=Range(0.1, 4.0), learning_rate=Range(0.3, 3.0), capped=0.5)
"""Contexts with a plan phase in which members differ, but not in their compute."""


def tiny_task(contexts: ContextSpec | None = None, **changes: Any) -> TaskSpec:
    """Three slots, a few steps of one small batch."""
    small = {"episode_length": 4, "batches_per_step": 1, "train": 64, "validation": 40}
    plain = small_task(**(small | changes))
    return plain if contexts is None else replace(plain, context=contexts)


def tiny_env(
    members: int = 3, contexts: ContextSpec | None = None, length: int = 4, **settings: Any
) -> EsperVectorEnv:
    """A vector environment on the CPU."""
    task = tiny_task(contexts, episode_length=length)
    return EsperVectorEnv(task, members, **({"device": "cpu", "executor": "loop"} | settings))


def flat_env(*args: Any, **settings: Any) -> FlatVectorEnv:
    """A small vector environment with flat actions."""
    return flat(tiny_env(*args, **settings))


def legal_actions(mask_EN: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """A random legal flat action for each member."""
    return np.array([generator.choice(np.flatnonzero(mask_N)) for mask_N in mask_EN])


def play(env: FlatVectorEnv, seed: int | None, steps: int, draws: int = 0) -> list[tuple[Any, ...]]:
    """(heads, obs, reward, terminated, info) of random legal steps after a reset."""
    generator = np.random.default_rng(draws)
    obs, info = env.reset(seed=seed)
    played: list[tuple[Any, ...]] = [(None, obs, None, None, info)]
    for _ in range(steps):
        chosen_E = legal_actions(info["action_mask"], generator)
        obs, reward_E, over_E, _, info = env.step(chosen_E)
        played.append((env.actions.heads(chosen_E), obs, reward_E, over_E, info))
    return played


def same(left: Any, right: Any) -> bool:
    """Whether nested dictionaries of arrays are equal bit for bit, NaN included."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    left, right = np.asarray(left), np.asarray(right)
    return left.dtype == right.dtype and np.array_equal(
        left, right, equal_nan=left.dtype.kind == "f"
    )


class Repeat(StatelessPolicy):
    """A policy client that takes given actions and keeps what it sees."""

    reads_activation_gradients = True

    def __init__(self, heads: list[np.ndarray], spec: TaskSpec) -> None:
        super().__init__(ScoreReward(spec.upkeep))
        self.actions = [parse_sampled_action(heads_EA) for heads_EA in heads]
        self.seen: list[tuple[Any, Any]] = []
        self.rewards: list[np.ndarray] = []

    def act(self, obs: Any, masks: Any, policy_state: None) -> tuple[PolicyDecision, None]:
        action: ActionSpec = self.actions[len(self.seen)]
        self.seen.append((obs, masks))
        return PolicyDecision.deterministic(action), None

    def store(self, inputs: Any, terminal_E: np.ndarray) -> Any:
        parts = super().store(inputs, terminal_E)
        self.rewards.append(parts.total)
        return parts


def read_mask_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> ActionMasks:
    """The masks of `info["action_mask"]` as Esper's own policies take them."""
    fixed = [arrays[head.name.lower()][0].astype(np.bool_) for head in FIXED_MASK]
    no_restart = len(LifecycleOp) - arrays["op"].shape[1]
    op_EO = np.pad(arrays["op"].astype(np.bool_), ((0, 0), (0, no_restart)))
    slot_EOS = np.pad(arrays["op_slot"].astype(np.bool_), ((0, 0), (0, no_restart), (0, 0)))
    return ActionMasks(op_EO, slot_EOS, arrays["slot_blueprint"].astype(np.bool_), *fixed)
