"""Helpers for tests of rewards: synthetic steps, and stories run by the real lifecycle.

A story is what a member that does something and a member that waits go through side by side, with
the same accuracies and losses; only what growing costs is different.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from esper.kasmina.lifecycle.lifecycle import Lifecycle, LifecycleConfig
from esper.leyline.actions import ALPHA_SPEEDS, ALPHA_TARGETS, NO_SLOT, LifecycleOp
from esper.leyline.prices import ScoreConstants
from esper.leyline.rewards import RewardComponentsTelemetry, RewardInputs
from esper.leyline.signals import GateSignals
from esper.leyline.stage_masks import IS_OCCUPIED
from esper.simic.rewards.config import REWARD_FAMILIES, REWARD_MODES, RewardConfig
from esper.simic.rewards.factory import make_reward
from esper.tasks.scoring import Upkeep, added, live_mac_share, score
from payload_support import build

EVERY = [(mode, family) for mode in REWARD_MODES for family in REWARD_FAMILIES]
RULE = Upkeep()
HOST_PARAMS, HOST_MACS, SEED_PARAMS, SEED_MACS = 1000, 5000, 300, 2500
SEED_SHARE = SEED_MACS / HOST_MACS


def reward_of(mode: str, family: str = "contribution", **weights: Any):
    return make_reward(RewardConfig(mode=mode, family=family, **weights), RULE)


def step_inputs(step: int, length: int, members: int = 1, slots: int = 2, **fields: Any):
    """One step in which nothing happens, but for `fields`; scalars and lists become arrays."""
    hints = {f.name for f in dataclasses.fields(RewardInputs)}
    assert set(fields) <= hints | {"op", "target_slot"}, fields
    plain = {
        "rolled_back_E": np.zeros(members, dtype=np.bool_),
        "truncated_E": np.zeros(members, dtype=np.bool_),
        "snapshot_score_E": np.full(members, np.nan),
        "snapshot_accuracy_E": np.full(members, np.nan),
        "snapshot_loss_E": np.full(members, np.nan),
        "snapshot_params_E": np.full(members, np.nan),
        "loss_E": np.ones(members),
        "loss_before_E": np.ones(members),
        "contribution_ES": np.full((members, slots), np.nan),
        "contribution_before_ES": np.full((members, slots), np.nan),
    }
    base = build(
        RewardInputs,
        {"step": step, "episode_length": length, "host_params": HOST_PARAMS, **plain},
        E=members,
        S=slots,
    )
    changed: dict[str, Any] = {"host_macs": HOST_MACS}
    if "op" in fields:
        changed |= _acted(base, fields.pop("op"), fields.pop("target_slot"))
    for name, value in fields.items():
        old = getattr(base, name)
        changed[name] = np.broadcast_to(np.asarray(value, old.dtype), old.shape).copy()
    return dataclasses.replace(base, **changed)


def _acted(base: RewardInputs, op: Any, target_slot: Any) -> dict[str, Any]:
    """Actions that were carried out."""
    op_E = np.broadcast_to(np.asarray(op, np.int64), base.score_E.shape).copy()
    slot_E = np.broadcast_to(np.asarray(target_slot, np.int64), op_E.shape).copy()
    actions = dataclasses.replace(base.actions, op=op_E, slot=np.maximum(slot_E, 0))
    where_E = np.where(op_E == LifecycleOp.WAIT, NO_SLOT, slot_E)
    return {
        "actions": actions,
        "outcome": dataclasses.replace(base.outcome, target_slot=where_E),
    }


def pay(reward: Any, story: list[RewardInputs]) -> list[RewardComponentsTelemetry]:
    """What a reward pays for each step of a story."""
    return [reward(inputs)[1] for inputs in story]


def totals(paid: list[RewardComponentsTelemetry]) -> np.ndarray:
    """Rewards `[T, E]`."""
    return np.stack([components.total for components in paid])


WAITS, GROWS = 0, 1
RATHER = {
    LifecycleOp.GERMINATE: 4.0,
    LifecycleOp.SET_ALPHA_TARGET: 1.0,
    LifecycleOp.PRUNE: 0.3,
    LifecycleOp.FOSSILIZE: 2.0,
}
"""What a member in a story does rather: a seed lives for some steps."""


@dataclass
class Story:
    """Member 0 waits, member 1 does what `draw` says, as far as it is legal; 3 slots."""

    draw: np.random.Generator
    length: int = 48
    busy: int = 20
    """Steps in which seeds may be germinated; later, all that is live is pruned."""
    fossilize: bool = False
    """Seeds may be made permanent (then the cycle is not closed)."""
    slots: int = 3
    steps: list[RewardInputs] = field(default_factory=list)

    def play(self) -> list[RewardInputs]:
        names = [f"r0c{s}" for s in range(self.slots)]
        fits = np.ones((self.slots, 1), dtype=np.bool_)
        self.life = Lifecycle(2, names, fits, LifecycleConfig(auto_forward_g2=True))
        self.accuracy = np.clip(np.cumsum(self.draw.normal(0.01, 0.05, self.length + 1)), 0, 1)
        self.loss = self.draw.uniform(0.2, 2.5, self.length + 1)
        self.flops_E = np.zeros(2)
        self.before = (self.life.stage_ES.copy(), np.full((2, self.slots), np.nan))
        self.score_before_E = np.full(2, self.accuracy[0])
        for step in range(self.length):
            self._step(step)
        return self.steps

    def _step(self, step: int) -> None:
        life = self.life
        life.begin_step()
        seen_alpha, seen_stage = life.alpha_ES.copy(), life.stage_ES.copy()
        size = np.where(IS_OCCUPIED[seen_stage], 1, 0)
        self.flops_E += 0.01 * size.sum(axis=1)
        score_E = score(
            np.full(2, self.accuracy[step + 1]), seen_alpha, size * SEED_PARAMS, size * SEED_MACS,
            HOST_PARAMS, HOST_MACS, ScoreConstants(), 1.0 + self.flops_E,
        )  # fmt: skip
        life.end_step(self._signals(seen_alpha))
        now = (life.stage_ES.copy(), life.signals.contribution_ES.astype(np.float64))
        alpha = life.alpha_ES.copy()
        op, slot = self._act(step)
        self.steps.append(
            step_inputs(
                step,
                self.length,
                members=2,
                slots=self.slots,
                score_E=score_E,
                score_before_E=self.score_before_E,
                accuracy_E=self.accuracy[step + 1],
                accuracy_before_E=self.accuracy[step],
                loss_E=self.loss[step + 1],
                loss_before_E=self.loss[step],
                added_params_E=added(seen_alpha, size * SEED_PARAMS),
                added_macs_E=added(seen_alpha, size * SEED_MACS),
                live_mac_share_E=live_mac_share(seen_stage, size * SEED_MACS, HOST_MACS),
                stage_ES=now[0],
                stage_before_ES=self.before[0],
                alpha_ES=alpha,
                contribution_ES=now[1],
                contribution_before_ES=self.before[1],
                op=[LifecycleOp.WAIT, op],
                target_slot=[NO_SLOT, slot],
            )
        )
        self.before, self.score_before_E = now, score_E

    def _signals(self, alpha_ES: np.ndarray) -> GateSignals:
        """Blended seeds help or harm by chance, and now and then are not measured."""
        shape = alpha_ES.shape
        measured = (alpha_ES > 0) & (self.draw.random(shape) < 0.8)
        found = np.where(measured, self.draw.normal(0.05, 0.1, shape), np.nan)
        return GateSignals(
            host_loss_E=np.ones(2, np.float32),
            shadow_loss_ES=np.ones(shape, np.float32),
            grad_norm_ES=np.ones(shape, np.float32),
            contribution_ES=found.astype(np.float32),
            contribution_se_ES=np.full(shape, 0.01, np.float32),
        )

    def _act(self, step: int) -> tuple[int, int]:
        """Something legal for member 1; (op, slot)."""
        legal_SO = self.life.legal_ops()[GROWS].copy()
        ops = {LifecycleOp.GERMINATE, LifecycleOp.SET_ALPHA_TARGET, LifecycleOp.PRUNE}
        if self.fossilize:
            ops |= {LifecycleOp.FOSSILIZE}
        if step >= self.busy:
            ops = {LifecycleOp.PRUNE}
        elif self.draw.random() < 0.3:
            return LifecycleOp.WAIT, NO_SLOT
        legal_SO[:, [op for op in LifecycleOp if op not in ops]] = False
        choices = np.argwhere(legal_SO)
        if not len(choices):
            return LifecycleOp.WAIT, NO_SLOT
        weight = np.array([RATHER[op] for op in choices[:, 1]])
        picked = self.draw.choice(len(choices), p=weight / weight.sum())
        slot, op = (int(value) for value in choices[picked])
        self._carry_out(LifecycleOp(op), slot)
        return op, slot

    def _carry_out(self, op: LifecycleOp, slot: int) -> None:
        life, draw = self.life, self.draw
        if op is LifecycleOp.GERMINATE:
            life.germinate(GROWS, slot, 0, alpha_target=float(draw.choice(ALPHA_TARGETS)))
        elif op is LifecycleOp.SET_ALPHA_TARGET:
            target, speed = draw.choice(ALPHA_TARGETS), draw.choice(ALPHA_SPEEDS)
            life.set_alpha_target(GROWS, slot, float(target), int(speed))
        elif op is LifecycleOp.PRUNE:
            life.prune(GROWS, slot, int(draw.choice(ALPHA_SPEEDS)))
        else:
            life.fossilize(GROWS, slot)
