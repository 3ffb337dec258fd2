"""Veto reasons of lifecycle operations.

An operation is legal where there is no reason against it, so legality and its explanation cannot
disagree. Reasons that depend on the whole action (the chosen blueprint, a rollback, the last step)
are added by tolaria/action_execution.py.

Shape letters: E members, S slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

import numpy as np

from esper.leyline.actions import CLASSIC_OPS, AlphaMode, LifecycleOp, VetoReason
from esper.leyline.arrays import Bools, Codes, Ints
from esper.leyline.context import ActionSpace
from esper.leyline.stages import ADVANCE_TO, GATE_INTO, PRUNABLE_STAGES, Gate, SeedStage


class SlotStates(Protocol):
    """State that the rules read: the arrays of a lifecycle, and its gates."""

    stage_ES: Codes
    age_ES: Ints
    mode_ES: Codes
    fits_SK: Bools
    closed_ES: Bools
    stopped_E: Bools
    trained_E: Bools
    planning: bool
    action_space: ActionSpace

    @property
    def min_prune_age(self) -> int: ...
    def budget_left(self) -> Ints: ...
    def fits_ESK(self) -> Bools: ...
    def occupied(self) -> Bools: ...
    def gate_open(self, gate: Gate, /) -> Bools: ...


def _stages(*stages: SeedStage) -> Bools:
    return np.array([stage in stages for stage in SeedStage])


STAGES_FOR: Final = {
    LifecycleOp.ADVANCE: _stages(*ADVANCE_TO),
    LifecycleOp.SET_ALPHA_TARGET: _stages(SeedStage.BLENDING, SeedStage.HOLDING),
    LifecycleOp.PRUNE: _stages(*PRUNABLE_STAGES),
    LifecycleOp.FOSSILIZE: _stages(SeedStage.HOLDING),
}
"""Stages in which an operation is allowed, as a mask over `SeedStage`."""


def veto_reasons(life: SlotStates, op: LifecycleOp) -> Codes:
    """Return `[E, S]` the first `VetoReason` against `op`; NONE where it is legal."""
    if not _offered(life, op):
        return np.full(life.stage_ES.shape, VetoReason.NOT_IN_PHASE, dtype=np.int8)
    veto_ES = np.full(life.stage_ES.shape, VetoReason.NONE, dtype=np.int8)
    for reason, applies_ES in _rules(life, op):
        veto_ES[(veto_ES == VetoReason.NONE) & applies_ES] = reason
    return veto_ES


def _rules(life: SlotStates, op: LifecycleOp) -> Iterator[tuple[VetoReason, Bools]]:
    """Yield reasons and where they apply `[E, S]`; the first that applies counts."""
    if op is LifecycleOp.WAIT:
        return
    shape = life.stage_ES.shape
    yield VetoReason.STOPPED, np.broadcast_to(life.stopped_E[:, None], shape)
    if op is LifecycleOp.STOP:
        yield VetoReason.NOTHING_TRAINED, np.broadcast_to(~life.trained_E[:, None], shape)
        return
    if op is LifecycleOp.CLOSE:
        yield VetoReason.SLOT_CLOSED, life.closed_ES
        yield VetoReason.WRONG_STAGE, life.occupied()
        return
    if op in (LifecycleOp.GERMINATE, LifecycleOp.PLANT):
        yield from _germination_vetoes(life)
        return
    yield VetoReason.WRONG_STAGE, ~STAGES_FOR[op][life.stage_ES]
    if op is LifecycleOp.ADVANCE:
        yield VetoReason.GATE_CLOSED, _next_gate_closed(life)
        return
    yield VetoReason.RAMPING, np.asarray(life.mode_ES != AlphaMode.HOLD)
    if op is LifecycleOp.PRUNE:
        yield VetoReason.TOO_YOUNG, np.asarray(life.age_ES < life.min_prune_age)
    if op is LifecycleOp.FOSSILIZE:
        yield VetoReason.GATE_CLOSED, ~life.gate_open(Gate.G5)


def _germination_vetoes(life: SlotStates) -> Iterator[tuple[VetoReason, Bools]]:
    """Vetoes of a new seed. Here any blueprint may fit; `action_vetoes` checks the chosen one."""
    shape = life.stage_ES.shape
    yield VetoReason.SLOT_NOT_DORMANT, np.asarray(life.stage_ES != SeedStage.DORMANT)
    yield VetoReason.BUDGET_SPENT, np.broadcast_to(life.budget_left()[:, None] <= 0, shape)
    yield VetoReason.BLUEPRINT_MISFIT, np.broadcast_to(~life.fits_SK.any(axis=1), shape)
    yield VetoReason.OVER_CAP, np.asarray(~life.fits_ESK().any(axis=2))
    yield VetoReason.SLOT_CLOSED, life.closed_ES


def _offered(life: SlotStates, op: LifecycleOp) -> bool:
    """Whether the context has this operation, in this phase."""
    if life.planning:
        return op in (LifecycleOp.WAIT, LifecycleOp.PLANT)
    extended = op in (LifecycleOp.STOP, LifecycleOp.CLOSE) and life.action_space == "full"
    return extended or op in CLASSIC_OPS


def _next_gate_closed(life: SlotStates) -> Bools:
    closed_ES = np.zeros(life.stage_ES.shape, dtype=np.bool_)
    for stage, after in ADVANCE_TO.items():
        closed_ES |= (life.stage_ES == stage) & ~life.gate_open(GATE_INTO[after])
    return closed_ES
