"""`RoundRecord`, the training history of one round, and the listener that counts its actions.

Shape letters: E members, S slots, O operations, Z stages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from esper.leyline.actions import ActionOutcome, ActionSpec, LifecycleOp
from esper.leyline.arrays import ArrayStruct, Bools, Doubles, Ints
from esper.leyline.codec import LATER
from esper.leyline.errors import EsperError
from esper.leyline.payloads import PPOUpdateMetrics
from esper.leyline.protocols import EngineListener
from esper.leyline.records import PlanRecord, Rollout, StepRecord
from esper.leyline.stages import SeedStage

_SHAPE_OZ: Final = (len(LifecycleOp), len(SeedStage))
_BEFORE_RESTARTS: Final = (int(LifecycleOp.RESTART), len(SeedStage))
"""Shape of `chosen_OZ` in files of before there were restarts."""


@dataclass(frozen=True, slots=True, eq=False)
class RoundRecord(ArrayStruct):
    """One rollout and its update."""

    round_index: int
    steps: int
    """Steps of the rollout."""
    episodes_done: int
    """Episodes of the run so far, including this round."""
    score_E: Doubles
    """Score at the end of the rollout."""
    accuracy_E: Doubles
    """Accuracy on `val_score`."""
    return_E: Doubles
    """Sum of the unscaled rewards of the episode so far."""
    added_params_E: Ints
    rollbacks_E: Ints
    blueprint_ES: Ints
    """Blueprint index of each slot that would be exported; -1 for none."""
    waited: int
    """Decisions of members for WAIT, the plan phase included."""
    chosen_OZ: Ints
    """Decisions of members for each operation, by the stage of its slot; WAIT, STOP and RESTART
    have no slot and are not counted here."""
    metrics: PPOUpdateMetrics
    rollout_seconds: float
    update_seconds: float
    stopped: int
    """Decisions of members for STOP."""
    steps_E: Ints
    """Steps of each member: below `steps` where the rollout of its rank was cut."""
    restarted: int = field(default=0, metadata=LATER)
    """Decisions of members for RESTART."""

    def __post_init__(self) -> None:
        if self.chosen_OZ.shape == _BEFORE_RESTARTS:
            object.__setattr__(self, "chosen_OZ", np.pad(self.chosen_OZ, ((0, 1), (0, 0))))
        if self.chosen_OZ.shape != _SHAPE_OZ:
            raise EsperError(f"RoundRecord.chosen_OZ: {self.chosen_OZ.shape}, expected {_SHAPE_OZ}")
        self.sizes()

    @property
    def mean_score(self) -> float:
        """Mean score over members whose episodes were not cut."""
        return float(self.score_E[self.whole_E].mean())

    @property
    def whole_E(self) -> Bools:
        """Members whose episodes were not cut."""
        return np.asarray(self.steps_E == self.steps)

    @property
    def cut_steps(self) -> int:
        """Steps that members did not take because the rollout of their rank was cut."""
        return int((self.steps - self.steps_E).sum())

    @property
    def chosen_O(self) -> Ints:
        """Decisions of members for each operation."""
        chosen_O: Ints = self.chosen_OZ.sum(axis=1)
        chosen_O[LifecycleOp.WAIT] = self.waited
        chosen_O[LifecycleOp.STOP] = self.stopped
        chosen_O[LifecycleOp.RESTART] = self.restarted
        return chosen_O


class ActionTally(EngineListener):
    """Engine listener that counts chosen operations, also by stage, until the next round starts."""

    def __init__(self) -> None:
        self.chosen_O: Ints = np.zeros(_SHAPE_OZ[0], dtype=np.int64)
        self.chosen_OZ: Ints = np.zeros(_SHAPE_OZ, dtype=np.int64)

    def on_round_start(self, round_index: int, members: int) -> None:
        """Reset the counts."""
        self.chosen_O = np.zeros_like(self.chosen_O)
        self.chosen_OZ = np.zeros_like(self.chosen_OZ)

    def on_plan(self, record: PlanRecord) -> None:
        """Add the actions of one decision of the plan phase."""
        self._add(record.decision.actions, record.outcome)

    def on_step(self, record: StepRecord) -> None:
        """Add the actions of one step."""
        self._add(record.decision.actions, record.result.outcome)

    def _add(self, actions: ActionSpec, outcome: ActionOutcome) -> None:
        self.chosen_O += np.bincount(actions.op, minlength=len(self.chosen_O))
        placed_E = outcome.stage_before >= 0
        cell_N = actions.op[placed_E] * _SHAPE_OZ[1] + outcome.stage_before[placed_E]
        counts = np.bincount(cell_N, minlength=self.chosen_OZ.size)
        self.chosen_OZ += counts.reshape(_SHAPE_OZ)

    def record(
        self,
        rollout: Rollout[object],
        metrics: PPOUpdateMetrics,
        episodes_done: int,
        update_seconds: float,
    ) -> RoundRecord:
        """Build the record of the finished round."""
        outcome = rollout.outcome
        return RoundRecord(
            round_index=rollout.round_index,
            steps=rollout.steps,
            episodes_done=episodes_done,
            score_E=outcome.score_E,
            accuracy_E=outcome.accuracy_E,
            return_E=outcome.episode_return_E,
            added_params_E=outcome.added_params_E,
            rollbacks_E=outcome.rollbacks_E,
            blueprint_ES=outcome.blueprint_ES,
            waited=int(self.chosen_O[LifecycleOp.WAIT]),
            chosen_OZ=self.chosen_OZ,
            metrics=metrics,
            rollout_seconds=rollout.seconds,
            update_seconds=update_seconds,
            stopped=int(self.chosen_O[LifecycleOp.STOP]),
            steps_E=rollout.steps_E,
            restarted=int(self.chosen_O[LifecycleOp.RESTART]),
        )
