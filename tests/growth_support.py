"""Policies for tests of growth in the real engine: named wishes, carried out as soon as legal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from esper.leyline import (
    ActionHead,
    ActionMasks,
    ActionSpec,
    LifecycleOp,
    PolicyDecision,
    TrainingSignals,
)
from esper.leyline.actions import ALPHA_SPEEDS, ALPHA_TARGETS
from esper.simic.rewards.score import ScoreReward
from esper.tamiyo.baselines import RandomPolicy, WaitPolicy
from esper.tasks.spec import TaskSpec


class Wishes(WaitPolicy):
    """Each member of `who` goes through a list of operations on one slot, each when it is legal."""

    def __init__(
        self,
        who: Collection[int],
        ops: Sequence[LifecycleOp],
        slot: int = 1,
        blueprint: str = "conv_light",
        before: Callable[[], None] | None = None,
    ) -> None:
        """`before` is called at each step before the actions are carried out."""
        super().__init__()
        self.ops, self.slot, self.blueprint, self.before = tuple(ops), slot, blueprint, before
        self.left = {member: list(ops) for member in who}
        self.done: dict[int, list[tuple[int, LifecycleOp]]] = {member: [] for member in who}
        """(step, operation) of each member's wishes that came true."""

    def act(self, obs: TrainingSignals, masks: ActionMasks, policy_state: None) -> Any:
        """The next wish of each member where its masks allow it, else WAIT."""
        if self.before is not None:
            self.before()
        heads = {h: np.zeros(len(masks.op_EO), dtype=np.int64) for h in ActionHead}
        heads[ActionHead.SLOT][:] = self.slot
        heads[ActionHead.BLUEPRINT][:] = obs.slots.blueprints.index(self.blueprint)
        heads[ActionHead.ALPHA_TARGET][:] = ALPHA_TARGETS.index(1.0)
        heads[ActionHead.ALPHA_SPEED][:] = ALPHA_SPEEDS.index(0)
        for member, left in self.left.items():
            if left and masks.slot_EOS[member, left[0], self.slot]:
                heads[ActionHead.OP][member] = left[0]
                self.done[member].append((obs.step, left.pop(0)))
        return PolicyDecision.deterministic(ActionSpec(*heads.values())), policy_state

    def step_of(self, member: int, op: LifecycleOp, nth: int = 0) -> int:
        """The step at which a member's wish came true."""
        steps = [step for step, done in self.done[member] if done is op]
        assert len(steps) > nth, f"{op.name} of member {member} never was legal: {self.done}"
        return steps[nth]


class SomeGrow(RandomPolicy):
    """Random actions for some members, the others wait."""

    def __init__(self, who: Collection[int], spec: TaskSpec, seed: int = 0) -> None:
        super().__init__(seed, ScoreReward(spec.upkeep))
        self.who = sorted(who)

    def act(self, obs: TrainingSignals, masks: ActionMasks, policy_state: None) -> Any:
        """What chance says, and nothing for the others."""
        decision, policy_state = super().act(obs, masks, policy_state)
        op = np.full_like(decision.actions.op, LifecycleOp.WAIT)
        op[self.who] = decision.actions.op[self.who]
        return PolicyDecision.deterministic(
            dataclasses.replace(decision.actions, op=op)
        ), policy_state
