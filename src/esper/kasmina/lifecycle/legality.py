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

from esper.kasmina.lifecycle.caps import Caps
from esper.leyline.actions import OFFERED_OPS, ActionSpace, AlphaMode, LifecycleOp, VetoReason
from esper.leyline.arrays import Bools, Codes, Floats, Ints
from esper.leyline.signals import GateSignals
from esper.leyline.stage_masks import stage_mask
from esper.leyline.stages import ADVANCE_TO, GATE_INTO, PRUNABLE_STAGES, Gate, SeedStage


class _SlotRules(Protocol):
    """Settings that the rules read."""

    @property
    def min_prune_age(self) -> int: ...


class _SlotStates(Protocol):
    """State that the rules read: the arrays of a lifecycle, and its gates."""

    stage_ES: Codes
    blueprint_ES: Ints
    style_ES: Codes
    steps_in_stage_ES: Ints
    age_ES: Ints
    alpha_ES: Floats
    mode_ES: Codes
    signals: GateSignals
    fits_SK: Bools
    caps: Caps | None
    closed_ES: Bools
    stopped_E: Bools
    trained_E: Bools
    restartable_E: Bools
    planning: bool
    action_space: ActionSpace

    @property
    def config(self) -> _SlotRules: ...
    def budget_left(self) -> Ints: ...
    def fits_ESK(self) -> Bools: ...
    def occupied(self) -> Bools: ...
    def gate_open(self, gate: Gate, /) -> Bools: ...


_OPS: Final = tuple(LifecycleOp)


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
        """What the rules read when the reasons below were found."""
        self._found: dict[LifecycleOp, Codes] = {}

    def reasons(self, life: _SlotStates, op: LifecycleOp) -> Codes:
        """Return `[E, S]` the first `VetoReason` against `op`, read-only; NONE where legal."""
        self._renew(life)
        return self._reasons(life, op)

    def all_reasons(self, life: _SlotStates) -> Codes:
        """Return `[O, E, S]` the first `VetoReason` against each operation."""
        self._renew(life)
        return np.array([self._reasons(life, op) for op in _OPS])

    def _reasons(self, life: _SlotStates, op: LifecycleOp) -> Codes:
        if op not in self._found:
            veto_ES = self._found[op] = veto_reasons(life, op)
            veto_ES.setflags(write=False)
        return self._found[op]

    def _renew(self, life: _SlotStates) -> None:
        """Forget what was found if the slots have changed since.

        They are compared by content, because callers write into the arrays of a lifecycle.
        """
        state = _state_of(life)
        if state != self._state:
            self._state = state
            self._found.clear()


def _state_of(life: _SlotStates) -> tuple[object, ...]:
    """Return everything that the rules read."""
    seen = life.signals
    arrays = (
        life.stage_ES, life.blueprint_ES, life.style_ES, life.steps_in_stage_ES, life.age_ES,
        life.alpha_ES, life.mode_ES, life.closed_ES, life.stopped_E, life.trained_E,
        life.restartable_E, life.fits_SK, seen.host_loss_E, seen.shadow_loss_ES, seen.grad_norm_ES,
        seen.contribution_ES, seen.contribution_se_ES,
    )  # fmt: skip
    settings = (life.planning, life.action_space, life.caps, life.config)
    return (*settings, *[array.tobytes() for array in arrays])


def veto_reasons(life: _SlotStates, op: LifecycleOp) -> Codes:
    """Return `[E, S]` the first `VetoReason` against `op`; NONE where it is legal."""
    if not _offered(life, op):
        return np.full(life.stage_ES.shape, VetoReason.NOT_IN_PHASE, dtype=np.int8)
    veto_ES = np.zeros(life.stage_ES.shape, dtype=np.int8)  # VetoReason.NONE
    for reason, applies_ES in reversed(list(_rules(life, op))):  # the first is written last
        np.copyto(veto_ES, int(reason), where=applies_ES)
    return veto_ES


def _rules(life: _SlotStates, op: LifecycleOp) -> Iterator[tuple[VetoReason, Bools]]:
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


def _germination_vetoes(life: _SlotStates) -> Iterator[tuple[VetoReason, Bools]]:
    """Vetoes of a new seed. Here any blueprint may fit; `action_vetoes` checks the chosen one."""
    yield VetoReason.SLOT_NOT_DORMANT, np.asarray(life.stage_ES != SeedStage.DORMANT)
    yield VetoReason.BUDGET_SPENT, life.budget_left()[:, None] <= 0
    yield VetoReason.BLUEPRINT_MISFIT, np.asarray(~life.fits_SK.any(axis=1))[None]
    if life.caps is not None:
        yield VetoReason.OVER_CAP, np.asarray(~life.fits_ESK().any(axis=2))
    yield VetoReason.SLOT_CLOSED, life.closed_ES


def _offered(life: _SlotStates, op: LifecycleOp) -> bool:
    """Whether the context has this operation, in this phase."""
    if life.planning:
        return op in (LifecycleOp.WAIT, LifecycleOp.PLANT)
    return op is not LifecycleOp.PLANT and op in OFFERED_OPS[life.action_space]


def _next_gate_closed(life: _SlotStates) -> Bools:
    closed_ES = np.zeros(life.stage_ES.shape, dtype=np.bool_)
    for stage, after in ADVANCE_TO.items():
        here_ES = life.stage_ES == stage
        if here_ES.any():
            closed_ES |= here_ES & ~life.gate_open(GATE_INTO[after])
    return closed_ES
