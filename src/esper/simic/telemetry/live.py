"""`LiveProgress`: what a training run is doing right now, for its live record.

Figures are taken from what the engine hands to every listener, at most once a second.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from esper.leyline.protocols import EngineListener
from esper.leyline.records import Rollout, StepRecord
from esper.leyline.stages import OCCUPIED_STAGES, SeedStage
from esper.storage.live import WRITE_SECONDS, LiveFile, LiveRecord


class LiveProgress(EngineListener):
    """Listener that knows where the run is.

    live = LiveProgress(rounds=10, after_round="updating the controller")
    with live.written_to(folder):
        ...                 rollouts with `live` among their listeners
    """

    def __init__(self, rounds: int, after_round: str) -> None:
        """`after_round`: what is done between the last step of a round and the next round."""
        self._rounds, self._after_round = rounds, after_round
        self._noted = -math.inf
        self.record = LiveRecord(doing="setting up")
        """The newest; replaced, never changed, as another thread reads it."""

    def written_to(self, folder: Path) -> LiveFile:
        """Write it to the run folder, which this process has locked."""
        return LiveFile(folder, lambda: self.record)

    def on_round_start(self, round_index: int, members: int) -> None:
        """A round begins."""
        share = round_index / max(1, self._rounds)
        self.record = LiveRecord("training", share, round=round_index, members=members)

    def on_step(self, record: StepRecord) -> None:
        """Note the step, and look at the members if the last look is a second ago."""
        seen = record.signals
        done, length = seen.step + 1, seen.episode_length
        share = (seen.round_index + done / length) / max(1, self._rounds)
        self.record = replace(self.record, share=share, step=done, steps=length)
        now = time.monotonic()
        if now - self._noted >= WRITE_SECONDS or done == length:
            self._noted = now
            self._look(record)

    def on_round_end(self, rollout: Rollout[object]) -> None:
        """What follows may take seconds, too."""
        self.record = replace(self.record, doing=self._after_round)

    @np.errstate(all="ignore")
    def _look(self, record: StepRecord) -> None:
        seen = record.signals
        count_Z = np.bincount(seen.slots.stage_ES.ravel(), minlength=len(SeedStage))
        held = {stage.name: int(count_Z[stage]) for stage in sorted(OCCUPIED_STAGES)}
        self.record = replace(
            self.record,
            accuracy=float(seen.val_accuracy_E.mean()),
            score=float(record.reward_inputs.score_E.mean()),
            stages=tuple((name, count) for name, count in held.items() if count),
        )
