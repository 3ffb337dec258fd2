"""`EngineProgress`: a progress bar that listens to engines."""

from __future__ import annotations

from esper.karn.compare_progress import ProgressBar
from esper.leyline.payloads import SlotPayload
from esper.leyline.records import Rollout, StepRecord


class EngineProgress(ProgressBar):
    """Engine listener with a bar; subclasses show the steps."""

    def on_round_start(self, round_index: int, members: int) -> None:
        """No-op: steps are counted."""

    def on_slot_events(self, round_index: int, step: int, payload: SlotPayload) -> None:
        """No-op: seeds are counted per step."""

    def on_step(self, record: StepRecord) -> None:
        """Show the step."""
        raise NotImplementedError

    def on_round_end(self, rollout: Rollout[object]) -> None:
        """No-op."""
