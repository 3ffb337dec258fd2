"""Slot events (germination, stage changes, gates, pruning), found by comparing slot reports.

Stages change at four points of a step: its start, the gates, a rollback and the actions. The
collector compares after each; listeners are notified once per step and kind of event.

Shape letters: E members, S slots, N occurrences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from esper.kasmina.population import Population
from esper.leyline.arrays import Bools, Ints
from esper.leyline.payloads import (
    PruneCause,
    SeedFossilized,
    SeedGateEvaluated,
    SeedGerminated,
    SeedPruned,
    SeedStageChanged,
    SlotPayload,
)
from esper.leyline.signals import GateSignals, SlotReports
from esper.leyline.stage_masks import IS_OCCUPIED
from esper.leyline.stages import ADVANCE_TO, GATE_INTO, Gate, SeedStage

_P = TypeVar("_P", bound=SlotPayload)
_Column = npt.NDArray[np.generic]
_Places = tuple[Ints, ...]
"""Members and slots of the occurrences."""

SlotCallback = Callable[[SlotPayload], None]
"""Receives slot events, once per step and kind."""

_NEXT_GATE = {stage: GATE_INTO[after] for stage, after in ADVANCE_TO.items()} | {
    SeedStage.HOLDING: Gate.G5
}


class SlotEventCollector:
    """Collects the changes of slots since the previous comparison."""

    def __init__(self, population: Population) -> None:
        self.population = population
        self.gate_events = False
        """Whether to collect the result of every seed's next gate at every step, too."""
        self._pending: list[SlotPayload] = []
        self.reset()

    def reset(self) -> None:
        """Start an episode: discard pending events and take the current slots as reference."""
        self._last = self.population.slot_reports()
        self._births_ES = self.population.lifecycle.births_ES.copy()
        self._pending.clear()

    def collect_changes(
        self, cause: PruneCause = PruneCause.CONTROLLER, counted: bool = False
    ) -> SlotReports:
        """Collect changes since the previous call; returns the current slots.

        `cause`: recorded for pruned seeds; those of members that restarted leave an empty slot
        without a cooldown, and have that cause. `counted`: `population.end_step` ran in
        between, so a stage that ended lasted one step longer than last reported.
        """
        now, life = self.population.slot_reports(), self.population.lifecycle
        born_ES = life.births_ES != self._births_ES
        moved_ES = now.stage_ES != self._last.stage_ES
        if born_ES.any():
            at = np.nonzero(born_ES)
            tempo_N, curve_N = life.tempo_ES[at], life.curve_ES[at]
            self._pending.append(
                _columns(SeedGerminated, now, at, tempo_N=tempo_N, alpha_curve_N=curve_N)
            )
        if moved_ES.any():
            self._collect_moves(moved_ES, now, cause, int(counted))
        self._last, self._births_ES = now, life.births_ES.copy()
        return now

    def _collect_moves(
        self, moved_ES: Bools, now: SlotReports, cause: PruneCause, steps_since: int
    ) -> None:
        """Collect stage changes; pruned seeds as they were reported before."""
        last, at = self._last, np.nonzero(moved_ES)
        self._pending.append(
            _columns(
                SeedStageChanged,
                now,
                at,
                stage_before_N=last.stage_ES[at],
                stage_after_N=now.stage_ES[at],
                steps_in_stage_N=last.steps_in_stage_ES[at] + steps_since,
            )
        )
        at = np.nonzero(moved_ES & (now.stage_ES == SeedStage.FOSSILIZED))
        if at[0].size:
            self._pending.append(_columns(SeedFossilized, now, at))
        at = np.nonzero(IS_OCCUPIED[last.stage_ES] & ~IS_OCCUPIED[now.stage_ES])
        if at[0].size:
            cause_ES = np.where(now.stage_ES == SeedStage.DORMANT, PruneCause.RESTART, cause)
            gone = {"stage_before_N": last.stage_ES[at], "cause_N": cause_ES[at].astype(np.int8)}
            self._pending.append(_columns(SeedPruned, last, at, **gone))

    def collect_gate_results(self, signals: GateSignals) -> None:
        """Collect the results of all gates; no-op unless `gate_events` is set."""
        if not self.gate_events:
            return
        life = self.population.lifecycle
        gate_ES = np.full(life.stage_ES.shape, -1, dtype=np.int8)
        passed_ES = np.zeros(life.stage_ES.shape, dtype=np.bool_)
        for stage, gate in _NEXT_GATE.items():
            here_ES = (life.stage_ES == stage) & ~life.pruning_ES
            gate_ES[here_ES] = gate
            passed_ES |= here_ES & life.gate_open(gate)
        at = np.nonzero(gate_ES >= 0)
        if at[0].size:
            self._pending.append(
                _columns(
                    SeedGateEvaluated,
                    signals,
                    at,
                    gate_N=gate_ES[at],
                    passed_N=passed_ES[at],
                    host_loss_N=signals.host_loss_E[at[0]],
                )
            )

    def flush(self, callbacks: Sequence[SlotCallback]) -> None:
        """Pass the events since the last flush to every callback, one payload per kind."""
        if callbacks:
            for kind in dict.fromkeys(type(payload) for payload in self._pending):
                merged = _concatenate(
                    [payload for payload in self._pending if type(payload) is kind]
                )
                for callback in callbacks:
                    callback(merged)
        self._pending.clear()


def _columns(
    kind: type[_P], source: SlotReports | GateSignals, at: _Places, **given: _Column
) -> _P:
    """Event of the slots at these (members, slots): column `x_N`, if not given, is `x_ES`."""
    columns = {"member_N": at[0], "slot_N": at[1], **given}
    for name in (field.name for field in fields(kind)):
        if name not in columns:
            columns[name] = getattr(source, f"{name.removesuffix('_N')}_ES")[at]
    return kind(**columns)  # type: ignore[arg-type]


def _concatenate(payloads: Sequence[_P]) -> _P:
    """Concatenate payloads of one kind, in order of occurrence."""
    if len(payloads) == 1:
        return payloads[0]
    kind = type(payloads[0])
    columns: dict[str, _Column] = {
        f.name: np.concatenate([getattr(payload, f.name) for payload in payloads])
        for f in fields(kind)
    }
    return kind(**columns)  # type: ignore[arg-type]
