"""Veto reasons of lifecycle operations.

An operation is legal where there is no reason against it, so legality and its explanation cannot
disagree. Reasons that depend on the whole action (the chosen blueprint, a rollback, the last step)
are added by tolaria/action_execution.py.

Shape letters: E members, S slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from esper.leyline.actions import OFFERED_OPS, AlphaMode, LifecycleOp, VetoReason
from esper.leyline.arrays import Bools, Codes
from esper.leyline.stage_masks import stage_mask
from esper.leyline.stages import ADVANCE_TO, GATE_INTO, PRUNABLE_STAGES, Gate, SeedStage

if TYPE_CHECKING:
    from esper.kasmina.lifecycle.lifecycle import Lifecycle


STAGES_FOR: Final = {
    LifecycleOp.ADVANCE: stage_mask(ADVANCE_TO),
    LifecycleOp.SET_ALPHA_TARGET: stage_mask((SeedStage.BLENDING, SeedStage.HOLDING)),
    LifecycleOp.PRUNE: stage_mask(PRUNABLE_STAGES),
    LifecycleOp.FOSSILIZE: stage_mask((SeedStage.HOLDING,)),
}
"""Stages in which an operation is allowed, as a mask over `SeedStage`."""


class VetoTable:
    """Veto reasons of a lifecycle, computed once per operation and state of the slots."""

    def __init__(self) -> None:
        self._state: tuple[object, ...] = ()
        """Of the slots, when the reasons below were found."""
        self._found: dict[LifecycleOp, Codes] = {}

    def reasons(self, life: Lifecycle, op: LifecycleOp) -> Codes:
        """Return `[E, S]` the first `VetoReason` against `op`, read-only; NONE where legal."""
        self._renew(life)
        return self._reasons(life, op)

    def all_reasons(self, life: Lifecycle) -> Codes:
        """Return `[O, E, S]` the first `VetoReason` against each operation."""
        self._renew(life)
        return np.array([self._reasons(life, op) for op in LifecycleOp])

    def _reasons(self, life: Lifecycle, op: LifecycleOp) -> Codes:
        if op not in self._found:
            veto_ES = self._found[op] = veto_reasons(life, op)
            veto_ES.setflags(write=False)
        return self._found[op]

    def _renew(self, life: Lifecycle) -> None:
        """Forget what was found if the slots have changed since."""
        state = life.content()
        if state != self._state:
            self._state = state
            self._found.clear()


def veto_reasons(life: Lifecycle, op: LifecycleOp) -> Codes:
    """Return `[E, S]` the first `VetoReason` against `op`; NONE where it is legal."""
    if not _offered(life, op):
        return np.full(life.stage_ES.shape, VetoReason.NOT_IN_PHASE, dtype=np.int8)
    veto_ES = np.zeros(life.stage_ES.shape, dtype=np.int8)  # VetoReason.NONE
    for reason, applies_ES in reversed(list(_rules(life, op))):  # the first is written last
        np.copyto(veto_ES, int(reason), where=applies_ES)
    return veto_ES


def _rules(life: Lifecycle, op: LifecycleOp) -> Iterator[tuple[VetoReason, Bools]]:
    """Yield reasons and where they apply `[E, S]`, either axis may be 1; the first counts."""
    if op is LifecycleOp.WAIT:
        return
    yield VetoReason.STOPPED, life.stopped_E[:, None]
    if op in (LifecycleOp.STOP, LifecycleOp.RESTART):
        yield VetoReason.NOTHING_TRAINED, ~life.trained_E[:, None]
        if op is LifecycleOp.RESTART:
            yield VetoReason.TOO_LITTLE_LEFT, ~life.restartable_E[:, None]
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
        yield VetoReason.TOO_YOUNG, np.asarray(life.age_ES < life.config.min_prune_age)
    if op is LifecycleOp.FOSSILIZE:
        yield VetoReason.GATE_CLOSED, ~life.gate_open(Gate.G5)


def _germination_vetoes(life: Lifecycle) -> Iterator[tuple[VetoReason, Bools]]:
    """Vetoes of a new seed. Here any blueprint may fit; `action_vetoes` checks the chosen one."""
    yield VetoReason.SLOT_NOT_DORMANT, np.asarray(life.stage_ES != SeedStage.DORMANT)
    yield VetoReason.BUDGET_SPENT, life.budget_left()[:, None] <= 0
    yield VetoReason.BLUEPRINT_MISFIT, np.asarray(~life.fits_SK.any(axis=1))[None]
    if life.caps is not None:
        yield VetoReason.OVER_CAP, np.asarray(~life.fits_ESK().any(axis=2))
    yield VetoReason.SLOT_CLOSED, life.closed_ES


def _offered(life: Lifecycle, op: LifecycleOp) -> bool:
    """Whether the context has this operation, in this phase."""
    if life.planning:
        return op in (LifecycleOp.WAIT, LifecycleOp.PLANT)
    return op is not LifecycleOp.PLANT and op in OFFERED_OPS[life.action_space]


def _next_gate_closed(life: Lifecycle) -> Bools:
    closed_ES = np.zeros(life.stage_ES.shape, dtype=np.bool_)
    for stage, after in ADVANCE_TO.items():
        here_ES = life.stage_ES == stage
        if here_ES.any():
            closed_ES |= here_ES & ~life.gate_open(GATE_INTO[after])
    return closed_ES
