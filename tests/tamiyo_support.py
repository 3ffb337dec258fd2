"""What the tests of tamiyo share: observations of a real population, and actions carried out in it.

Nothing trains: the lifecycle is fed with signals, and actions move its stages alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from esper.kasmina import Population
from esper.leyline import (
    ActionHead,
    ActionMasks,
    ActionSpec,
    GateSignals,
    LifecycleOp,
    PolicyDecision,
    PolicyProtocol,
    ScoreConstants,
    TrainingSignals,
)
from esper.leyline.actions import ALPHA_SPEEDS, ALPHA_TARGETS, HEADS_BY_OP, NO_SLOT, TEMPOS
from esper.leyline.context import ContextSignals
from esper.tamiyo import build_masks
from payload_support import build
from support import good_signals

EPISODE = 500


def masks_of(population: Population, frozen: Mapping[ActionHead, int] | None = None) -> ActionMasks:
    life = population.lifecycle
    return build_masks(life.legal_ops(), life.fits_ESK(), frozen)


FREE = ScoreConstants(0.0, 0.0, 0.0)


def fixed_context(
    members: int, constants: ScoreConstants = FREE, **overrides: Any
) -> ContextSignals:
    """What a policy sees of a fixed context; growth is free unless said otherwise."""
    facts = {
        "plans": False,
        "constants": constants,
        "price_E": np.ones(members),
        "learning_rate_E": np.ones(members),
        "params_cap_E": np.full(members, np.inf),
        "macs_cap_E": np.full(members, np.inf),
        "cost_E": np.ones(members),
        "stopped_E": np.zeros(members, dtype=np.bool_),
        "budget": 1.0,
    }
    return build(ContextSignals, facts | overrides, E=members)


@cache
def nothing_seen(members: int, slots: int) -> TrainingSignals:
    """Zeros of the right shape, in a fixed context."""
    facts = {"episode_length": EPISODE, "context": fixed_context(members), "plan_slot": NO_SLOT}
    return build(TrainingSignals, facts, E=members, S=slots)


def observe(population: Population, step: int = 0, **overrides: Any) -> TrainingSignals:
    """What a controller sees: the real slots, a plateau unless said otherwise."""
    reports = population.slot_reports()
    shape = reports.stage_ES.shape
    facts = {
        "step": step,
        "slots": reports,
        "contribution_age_ES": np.where(np.isnan(reports.contribution_ES), -1, 0),
        "plateaued_E": np.ones(shape[0], dtype=np.bool_),
        "stabilised_E": np.zeros(shape[0], dtype=np.bool_),
    }
    return replace(nothing_seen(*shape), **(facts | overrides))


def worthless_signals(population: Population) -> GateSignals:
    """Seeds may blend, but make the host worse."""
    good = good_signals(population)
    return replace(good, contribution_ES=-good.contribution_ES)


def choices_of(
    masks: ActionMasks, actions: ActionSpec, member: int
) -> dict[ActionHead, np.ndarray]:
    """The mask of every head, given the choices before it; spelt out for one member."""
    op, slot = int(actions.op[member]), int(actions.slot[member])
    return {
        ActionHead.OP: masks.op_EO[member],
        ActionHead.SLOT: masks.slot_EOS[member, op],
        ActionHead.BLUEPRINT: masks.blueprint_ESK[member, slot : slot + 1].any(axis=0),
        ActionHead.STYLE: masks.style_Y,
        ActionHead.TEMPO: masks.tempo_M,
        ActionHead.ALPHA_TARGET: masks.alpha_target_T,
        ActionHead.ALPHA_SPEED: masks.alpha_speed_V,
        ActionHead.ALPHA_CURVE: masks.alpha_curve_U,
    }


def assert_within(masks: ActionMasks, decision: PolicyDecision) -> None:
    """Every head that counts holds an allowed choice, for every member."""
    actions = decision.actions
    assert actions.members == len(masks.op_EO)
    for member in range(actions.members):
        allowed = choices_of(masks, actions, member)
        for head in HEADS_BY_OP[LifecycleOp(actions.op[member])]:
            choice = actions.of(head)[member]
            assert allowed[head][choice], (member, head.name, int(choice))


def carry_out(population: Population, actions: ActionSpec) -> None:
    """Apply the actions to the stages; whatever is not legal raises."""
    life = population.lifecycle
    tempos, speeds = np.array(TEMPOS), np.array(ALPHA_SPEEDS)
    targets = np.array(ALPHA_TARGETS, dtype=np.float32)
    for op in np.unique(actions.op):
        at = np.flatnonzero(actions.op == op)
        later = (actions.of(head)[at] for head in list(ActionHead)[1:])
        slot, kind, style, tempo, target, speed, curve = later
        if op == LifecycleOp.GERMINATE:
            life.germinate(at, slot, kind, style, tempos[tempo], targets[target], curve)
        elif op == LifecycleOp.ADVANCE:
            life.advance(at, slot)
        elif op == LifecycleOp.SET_ALPHA_TARGET:
            life.set_alpha_target(at, slot, targets[target], speeds[speed], curve)
        elif op == LifecycleOp.PRUNE:
            life.prune(at, slot, speeds[speed], curve)
        elif op == LifecycleOp.FOSSILIZE:
            life.fossilize(at, slot)


@dataclass
class Drive:
    """A policy in charge of a population that does not train."""

    policy: PolicyProtocol[Any]
    population: Population
    signals: Callable[[Population], GateSignals] = good_signals
    frozen: Mapping[ActionHead, int] | None = None

    def __post_init__(self) -> None:
        self.state = self.policy.initial_state(self.population.members)
        self.step = 0
        self.actions: list[ActionSpec] = []
        self.stages: list[np.ndarray] = []

    def run(self, steps: int, **overrides: Any) -> Drive:
        """That many steps of the clock, an action after each; `stages` are those acted on."""
        life = self.population.lifecycle
        for _ in range(steps):
            life.begin_step()
            life.end_step(self.signals(self.population))
            masks = masks_of(self.population, self.frozen)
            obs = observe(self.population, self.step, **overrides)
            decision, self.state = self.policy.act(obs, masks, self.state)
            assert_within(masks, decision)
            self.stages.append(life.stage_ES.copy())
            carry_out(self.population, decision.actions)
            self.actions.append(decision.actions)
            self.step += 1
        return self

    def did(self, op: LifecycleOp, member: int = 0) -> list[tuple[int, int]]:
        """(step, slot) of every such action of a member."""
        return [
            (step, int(actions.slot[member]))
            for step, actions in enumerate(self.actions)
            if actions.op[member] == op
        ]
