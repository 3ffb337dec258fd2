"""Execution of a step's actions: validate, apply to all members at once, report outcomes.

Shape letters: E members, S slots, K blueprints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from esper.kasmina.lifecycle import advance_active_seed
from esper.kasmina.population import Population
from esper.leyline.actions import (
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    NO_SLOT,
    SLOT_OPS,
    TEMPOS,
    ActionHead,
    ActionOutcome,
    ActionSpec,
    LifecycleOp,
    VetoReason,
)
from esper.leyline.arrays import Bools, Codes, Ints
from esper.leyline.errors import EsperError
from esper.leyline.execution import ActionExecutionResult, BootstrapTargets
from esper.leyline.masks import ActionMasks
from esper.leyline.signals import TrainingSignals
from esper.tamiyo.actions import HEAD_USED_OA
from esper.tamiyo.masks import build_masks
from esper.tolaria.context_state import ContextState
from esper.tolaria.observation import with_slots

_Op = LifecycleOp
_TEMPOS: Ints = np.array(TEMPOS, dtype=np.int64)
_TARGETS = np.array(ALPHA_TARGETS, dtype=np.float32)
_USES_SLOT: Bools = np.array([op in SLOT_OPS for op in LifecycleOp])
_SPEEDS: Ints = np.array(ALPHA_SPEEDS, dtype=np.int64)


def execute_actions(
    population: Population,
    actions: ActionSpec,
    signals: TrainingSignals,
    rolled_back_E: Bools,
    frozen: Mapping[ActionHead, int] | None = None,
    truncated: bool = False,
    context: ContextState | None = None,
) -> ActionExecutionResult:
    """Apply legal actions and report a veto reason for the others.

    The last step of an episode vetoes everything but WAIT. `signals`: the policy's observation.
    `rolled_back_E`: members whose actions are vetoed, because their observed state was rolled back.
    `truncated`: the rollout ends after this step, but not the episode. `context`: updates what the
    signals say about caps and costs; None: they keep what they said before.
    """
    _check_indices(population, actions)
    _check_frozen(actions, frozen or {})
    veto_E = action_vetoes(population, actions, rolled_back_E)
    targets_slot_E, acts_E = _USES_SLOT[actions.op], actions.op != _Op.WAIT
    if signals.step == signals.episode_length - 1:
        veto_E[(veto_E == VetoReason.NONE) & acts_E] = VetoReason.EPISODE_OVER
    stage_before_E = _stage_of(population, actions, targets_slot_E)
    _apply(population, actions, (veto_E == VetoReason.NONE) & acts_E)
    outcome = ActionOutcome(
        veto=veto_E,
        target_slot=np.where(targets_slot_E, actions.slot, NO_SLOT),
        stage_before=stage_before_E,
        stage_after=_stage_of(population, actions, targets_slot_E),
    )
    targets = bootstrap_targets(signals, rolled_back_E) if truncated else BootstrapTargets.none()
    after = _state_after(population, signals, frozen, context)
    return ActionExecutionResult.deferred(outcome, targets, len(population.slots), after)


def _state_after(
    population: Population,
    signals: TrainingSignals,
    frozen: Mapping[ActionHead, int] | None,
    context: ContextState | None,
) -> Callable[[], tuple[TrainingSignals, ActionMasks]]:
    """Return a function that observes the members as they are now, whenever it is called.

    It is called only for the last step of a rollout, unless a listener reads every step's.
    """
    slots, life = population.slot_reports(), population.lifecycle.copy()
    if context is not None:  # its budget and caps change later, so it is read now
        seen, candidates = context.observe(signals.context.spent_E, slots)
        signals = replace(signals, context=seen, candidates=candidates)

    def observe() -> tuple[TrainingSignals, ActionMasks]:
        masks = build_masks(life.legal_ops(), life.fits_ESK(), frozen)
        return with_slots(signals, population, slots, life), masks

    return observe


def _check_indices(population: Population, actions: ActionSpec) -> None:
    """Raise on unknown slots or blueprints; `ActionSpec` validates the other heads."""
    if actions.members != population.members:
        raise EsperError(f"{actions.members} actions for {population.members} members")
    limits = ((ActionHead.SLOT, population.slots), (ActionHead.BLUEPRINT, population.blueprints))
    for head, names in limits:
        beyond_E = actions.of(head) >= len(names)
        if beyond_E.any():
            bad = np.flatnonzero(beyond_E)
            raise EsperError(
                f"action of member {bad[0]}: {head.name.lower()} {actions.of(head)[bad[0]]}, but "
                f"there are {len(names)} ({', '.join(names)})"
            )


def _check_frozen(actions: ActionSpec, frozen: Mapping[ActionHead, int]) -> None:
    """Raise if a used head differs from its frozen choice."""
    for head, choice in frozen.items():
        differs_E = HEAD_USED_OA[actions.op, head] & (actions.of(head) != choice)
        if differs_E.any():
            bad = np.flatnonzero(differs_E)
            raise EsperError(
                f"action of member {bad[0]}: {head.name.lower()} {actions.of(head)[bad[0]]}, but "
                f"that head is frozen to {choice}"
            )


def _stage_of(population: Population, actions: ActionSpec, targets_slot_E: Bools) -> Codes:
    """Stage of the slot each action targets; -1 for WAIT, STOP and RESTART."""
    stage_E = population.lifecycle.stage_ES[np.arange(actions.members), actions.slot]
    return np.where(targets_slot_E, stage_E, np.int8(-1))


def action_vetoes(population: Population, actions: ActionSpec, rolled_back_E: Bools) -> Codes:
    """`[E]`: first veto reason of each action, in the order of `VetoReason`."""
    life, everyone = population.lifecycle, np.arange(actions.members)
    veto_E = life.vetoes()[actions.op, everyone, actions.slot]
    grows_E = (actions.op == _Op.GERMINATE) | (actions.op == _Op.PLANT)
    misfit_E = grows_E & ~life.fits_SK[actions.slot, actions.blueprint]
    over_cap_E = grows_E & ~life.fits_ESK()[everyone, actions.slot, actions.blueprint]
    veto_E[(veto_E == VetoReason.NONE) & misfit_E] = VetoReason.BLUEPRINT_MISFIT
    veto_E[(veto_E == VetoReason.NONE) & over_cap_E] = VetoReason.OVER_CAP
    veto_E[rolled_back_E & (actions.op != _Op.WAIT)] = VetoReason.GOVERNOR
    return veto_E


def _members_of(actions: ActionSpec, legal_E: Bools) -> dict[LifecycleOp, Ints]:
    """Members that chose each operation and may do it."""
    nobody: Ints = np.zeros(0, dtype=np.int64)
    found = dict.fromkeys(LifecycleOp, nobody)
    for op in np.unique(actions.op[legal_E]):
        found[LifecycleOp(op)] = np.flatnonzero(legal_E & (actions.op == op))
    return found


def _apply(population: Population, actions: ActionSpec, legal_E: Bools) -> None:
    """Apply each operation to all members that chose it, in one call."""
    members_of = _members_of(actions, legal_E)
    if (e := members_of[_Op.GERMINATE]).size:
        population.germinate(
            e,
            actions.slot[e],
            actions.blueprint[e],
            style=actions.style[e],
            tempo=_TEMPOS[actions.tempo[e]],
            alpha_target=_TARGETS[actions.alpha_target[e]],
            curve=actions.alpha_curve[e],
        )
    if (e := members_of[_Op.ADVANCE]).size:
        advance_active_seed(population, e, actions.slot[e])
    if (e := members_of[_Op.SET_ALPHA_TARGET]).size:
        population.set_alpha_target(
            e,
            actions.slot[e],
            _TARGETS[actions.alpha_target[e]],
            speed=_SPEEDS[actions.alpha_speed[e]],
            curve=actions.alpha_curve[e],
        )
    if (e := members_of[_Op.PRUNE]).size:
        speed = _SPEEDS[actions.alpha_speed[e]]
        population.prune(e, actions.slot[e], speed=speed, curve=actions.alpha_curve[e])
    if (e := members_of[_Op.PLANT]).size:
        population.plant(e, actions.slot[e], actions.blueprint[e], prunable=True)
    if (e := members_of[_Op.FOSSILIZE]).size:
        population.fossilize(e, actions.slot[e])
    if (e := members_of[_Op.CLOSE]).size:
        population.lifecycle.close(e, actions.slot[e])
    for op, act in ((_Op.STOP, population.lifecycle.stop), (_Op.RESTART, population.restart)):
        if (e := members_of[op]).size:
            act(e)


def bootstrap_targets(signals: TrainingSignals, rolled_back_E: Bools) -> BootstrapTargets:
    """Members whose return is bootstrapped if the rollout ends after this step.

    For a rolled-back member this step is terminal.
    """
    member_N = np.flatnonzero(~rolled_back_E)
    return BootstrapTargets(member_N, np.full(len(member_N), signals.step, dtype=np.int64))
