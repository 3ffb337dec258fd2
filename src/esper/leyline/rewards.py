"""What a reward is computed from, and the named parts it consists of.

Timing: `score_E`, accuracies, losses, stages and contributions are those of this step's
validation, the `_before` ones those of the step before; the action of this step came after both.
Shape letters: E members, S slots, P parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from esper.leyline.actions import ActionOutcome, ActionSpec
from esper.leyline.arrays import ArrayStruct, Bools, Codes, Doubles, Floats, Ints
from esper.leyline.errors import EsperError, unknown_name


@dataclass(frozen=True, slots=True, eq=False)
class RewardInputs(ArrayStruct):
    """Everything a reward may depend on, for all members at one step."""

    round_index: int
    step: int
    """Step of the episode, 0 .. episode_length - 1."""
    episode_length: int
    host_params: int
    """P0 of the score."""
    host_macs: int
    """M0 of the score."""

    score_E: Doubles
    """The task's score now. Where a member was rolled back: of the state that was given up."""
    score_before_E: Doubles
    """The score the step started from: of the step before, of the snapshot after a rollback, of
    the fresh host at step 0. The rewards of an episode telescope over it."""
    accuracy_E: Doubles
    """On `val_control`, 0..1."""
    accuracy_before_E: Doubles
    loss_E: Doubles
    """On `val_control`."""
    loss_before_E: Doubles

    added_params_E: Doubles
    """dP: parameters of seeds that would be exported now."""
    added_macs_E: Doubles
    """dM: their multiply-accumulates for one sample."""
    live_mac_share_E: Doubles
    """MACs of live, uncommitted seeds (`LIVE_STAGES`) over the host's: what upkeep is paid on."""

    stage_ES: Codes
    """`SeedStage` of every slot."""
    stage_before_ES: Codes
    steps_in_stage_ES: Ints
    steps_in_stage_before_ES: Ints
    alpha_ES: Floats
    contribution_ES: Doubles
    """Last measured contribution of the seed that stands there; NaN where there is none."""
    contribution_before_ES: Doubles
    contribution_se_ES: Doubles

    actions: ActionSpec
    """What was asked at this step."""
    outcome: ActionOutcome
    """What came of it."""

    rolled_back_E: Bools
    """The governor restored a snapshot at this step."""
    snapshot_score_E: Doubles
    """Score of that snapshot; NaN where there was no rollback, like the three below."""
    snapshot_accuracy_E: Doubles
    """Accuracy of that snapshot on `val_control`."""
    snapshot_loss_E: Doubles
    """Its loss there."""
    snapshot_params_E: Doubles
    """dP of that snapshot."""
    truncated_E: Bools
    """The rollout ends here though the episode does not: bootstrap, do not pay the end."""

    def __post_init__(self) -> None:
        self.sizes()
        if not 0 <= self.step < self.episode_length:
            raise EsperError(
                f"RewardInputs.step {self.step}: valid are 0 to {self.episode_length - 1}"
            )
        unknown = np.flatnonzero(self.rolled_back_E & ~np.isfinite(self.snapshot_score_E))
        if unknown.size:
            member = int(unknown[0])
            raise EsperError(
                f"RewardInputs.snapshot_score_E of member {member}: "
                f"{self.snapshot_score_E[member]} at a rollback, a finite score is needed"
            )

    @property
    def members(self) -> int:
        """E."""
        return len(self.score_E)

    @property
    def episode_over(self) -> bool:
        """This is the last step of the episode, for all members."""
        return self.step == self.episode_length - 1

    @property
    def terminal(self) -> Bools:
        """Where no return passes this step: the end of the episode, or a rollback."""
        return np.asarray(self.rolled_back_E | self.episode_over)


@dataclass(frozen=True, slots=True, eq=False)
class RewardComponentsTelemetry(ArrayStruct):
    """The named parts of every member's reward. The total is their sum, by definition.

    >>> parts = {"score": np.array([0.5, 0.25]), "upkeep": np.array([-0.125, 0.0])}
    >>> RewardComponentsTelemetry.of(parts, members=2).total.tolist()
    [0.375, 0.25]
    """

    names: tuple[str, ...]
    """One name per part, in the order they are added up."""
    value_PE: Doubles
    """What each part pays each member."""

    def __post_init__(self) -> None:
        parts = self.sizes()["P"]
        if len(self.names) != parts or len(set(self.names)) != parts:
            raise EsperError(
                f"reward parts {', '.join(self.names) or 'none'}: "
                f"{parts} different names are needed, one per row"
            )

    @classmethod
    def of(cls, parts: Mapping[str, Doubles], members: int) -> RewardComponentsTelemetry:
        """From `[E]` arrays by name; no parts at all is a reward of 0 (controllers without one)."""
        value = np.zeros((len(parts), members), dtype=np.float64)
        for row, (name, part) in zip(value, parts.items(), strict=True):
            if np.shape(part) != (members,):
                raise EsperError(f"reward part {name!r}: shape {np.shape(part)}, not ({members},)")
            row[:] = part
        return cls(tuple(parts), value)

    @property
    def total(self) -> Doubles:
        """The reward: parts added one after the other, so that it does not depend on E."""
        total = np.zeros(self.value_PE.shape[1], dtype=np.float64)
        for row in self.value_PE:
            total += row
        return total

    def part(self, name: str) -> Doubles:
        """What one part pays each member."""
        if name not in self.names:
            raise unknown_name("reward part", name, self.names)
        return np.asarray(self.value_PE[self.names.index(name)])
