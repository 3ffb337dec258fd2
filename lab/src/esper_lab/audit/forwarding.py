"""Listener that passes everything on; listeners of audits add what they note."""

from __future__ import annotations

from esper.leyline.payloads import SlotPayload
from esper.leyline.protocols import EngineListener
from esper.leyline.records import Rollout, StepRecord


class ForwardingListener:
    """Passes all calls of an engine on to another listener, if there is one."""

    def __init__(self, listener: EngineListener | None) -> None:
        self._next = listener

    def on_round_start(self, round_index: int, members: int) -> None:
        """Pass on."""
        if self._next is not None:
            self._next.on_round_start(round_index, members)

    def on_slot_events(self, round_index: int, step: int, payload: SlotPayload) -> None:
        """Pass on."""
        if self._next is not None:
            self._next.on_slot_events(round_index, step, payload)

    def on_step(self, record: StepRecord) -> None:
        """Pass on."""
        if self._next is not None:
            self._next.on_step(record)

    def on_round_end(self, rollout: Rollout[object]) -> None:
        """Pass on."""
        if self._next is not None:
            self._next.on_round_end(rollout)
