"""Inputs of a reward, and its named components.

Timing: `score_E`, accuracies, losses, stages and contributions are from this step's validation, the
`_before` ones from the previous step's; this step's action came after both.
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
    """Inputs of a reward for all members at one step."""

    round_index: int
    step: int
    """Step of the episode, 0 .. episode_length - 1."""
    episode_length: int
    host_params: int
    """P0 of the score."""
    host_macs: int
    """M0 of the score."""

    score_E: Doubles
    """Current score; for a member rolled back at this step, of the discarded state."""
    score_before_E: Doubles
    """Score at the start of the step: of the previous step, of the snapshot after a rollback, or
    of the fresh host at step 0. Score differences telescope over an episode."""
    accuracy_E: Doubles
    """On `val_control`, 0..1."""
    accuracy_before_E: Doubles
    loss_E: Doubles
    """On `val_control`."""
    loss_before_E: Doubles

    added_params_E: Doubles
    """dP: parameters of the seeds with alpha above 0."""
    added_macs_E: Doubles
    """dM: multiply-accumulates of those seeds per sample."""
    live_mac_share_E: Doubles
    """MACs of live seeds (`LIVE_STAGES`) relative to the host's; upkeep is charged on them."""

    stage_ES: Codes
    """`SeedStage` of every slot."""
    stage_before_ES: Codes
    steps_in_stage_ES: Ints
    steps_in_stage_before_ES: Ints
    alpha_ES: Floats
    contribution_ES: Doubles
    """Last measured contribution of the seed; NaN if there is none."""
    contribution_before_ES: Doubles
    contribution_se_ES: Doubles

    actions: ActionSpec
    """Actions of this step."""
    outcome: ActionOutcome
    """Their outcome."""

    rolled_back_E: Bools
    """The governor restored a snapshot at this step."""
    snapshot_score_E: Doubles
    """Score of that snapshot; NaN without a rollback, like the three below."""
    snapshot_accuracy_E: Doubles
    """Accuracy of that snapshot on `val_control`."""
    snapshot_loss_E: Doubles
    """Loss of that snapshot on `val_control`."""
    snapshot_params_E: Doubles
    """dP of that snapshot."""
    truncated_E: Bools
    """The rollout ends here but the episode does not: bootstrap, no terminal reward."""
    planning: bool = False
    """A decision of the plan phase, before step 0; only the scores matter."""

    @property
    def members(self) -> int:
        """E."""
        return len(self.score_E)

    @property
    def episode_over(self) -> bool:
        """Whether this is the last step of the episode, which is the same for all members."""
        return self.step == self.episode_length - 1 and not self.planning

    @property
    def terminal(self) -> Bools:
        """Members whose return ends at this step: end of the episode, or a rollback."""
        return np.asarray(self.rolled_back_E | self.episode_over)


@dataclass(frozen=True, slots=True, eq=False)
class RewardComponentsTelemetry(ArrayStruct):
    """Named components of every member's reward; the total is their sum.

    >>> parts = {"score": np.array([0.5, 0.25]), "upkeep": np.array([-0.125, 0.0])}
    >>> RewardComponentsTelemetry.of(parts, members=2).total.tolist()
    [0.375, 0.25]
    """

    names: tuple[str, ...]
    """One name per component, in summation order."""
    value_PE: Doubles
    """Value of each component for each member."""

    def __post_init__(self) -> None:
        parts = self.sizes()["P"]
        if len(self.names) != parts or len(set(self.names)) != parts:
            raise EsperError(
                f"reward parts {', '.join(self.names) or 'none'}: "
                f"{parts} different names are needed, one per row"
            )

    @classmethod
    def of(cls, parts: Mapping[str, Doubles], members: int) -> RewardComponentsTelemetry:
        """Build from `[E]` arrays by name; an empty mapping is a reward of 0."""
        value = np.zeros((len(parts), members), dtype=np.float64)
        for row, (name, part) in zip(value, parts.items(), strict=True):
            if np.shape(part) != (members,):
                raise EsperError(f"reward part {name!r}: shape {np.shape(part)}, not ({members},)")
            row[:] = part
        return cls(tuple(parts), value)

    @property
    def total(self) -> Doubles:
        """Reward `[E]`; components are summed sequentially, so that it does not depend on E."""
        total = np.zeros(self.value_PE.shape[1], dtype=np.float64)
        for row in self.value_PE:
            total += row
        return total

    def part(self, name: str) -> Doubles:
        """Return the values `[E]` of one component."""
        if name not in self.names:
            raise unknown_name("reward part", name, self.names)
        return np.asarray(self.value_PE[self.names.index(name)])
