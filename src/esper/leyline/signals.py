"""Measurements of a step: inputs of the gates, state of the slots, observations of controllers.

Shape letters: E members, S slots, L last values. NaN means not measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from esper.leyline.actions import NO_SLOT, BlendStyle
from esper.leyline.arrays import ArrayStruct, Bools, Codes, Doubles, Floats, Ints
from esper.leyline.context import Candidates, ContextSignals
from esper.leyline.slots import SlotReport
from esper.leyline.stages import SeedStage

HISTORY_LENGTH: Final = 5
"""L: number of past values of a metric in an observation."""

NO_BLUEPRINT: Final = -1
"""Blueprint index of an empty slot."""


class PanicKind(IntEnum):
    """Why the governor intervenes for a member."""

    NONE = 0
    NON_FINITE_LOSS = 1
    NON_FINITE_GRADIENT = 2
    LOSS_SPIKE = 3
    """Loss above median + k * MAD of the member's window for m steps."""
    ACCURACY_COLLAPSE = 4
    """Accuracy fell back to chance after learning."""


class CounterfactualGap(IntEnum):
    """Why a member has no counterfactual measurement at a step."""

    NONE = 0
    """It has one."""
    STRIDE = 1
    """Skipped by `counterfactual_stride`."""
    NO_SEED = 2
    """No seed to ablate."""
    NON_FINITE = 3
    """The member's outputs are not finite."""


@dataclass(frozen=True, slots=True, eq=False)
class GateSignals(ArrayStruct):
    """Inputs of the gates. Non-finite losses and gradients are +inf, not NaN."""

    host_loss_E: Floats
    """Train loss of the main row, the baseline of the shadow losses."""
    shadow_loss_ES: Floats
    """Train loss with the training seed of that slot enabled."""
    grad_norm_ES: Floats
    """Norm of the seed's gradient over the step; +inf if any gradient was not finite."""
    contribution_ES: Floats
    """Accuracy on `val_control` with minus without the seed (0..1)."""
    contribution_se_ES: Floats
    """Standard error of the contribution, paired over images."""

    @classmethod
    def unmeasured(cls, members: int, slots: int) -> GateSignals:
        """NaN everywhere: nothing measured yet."""

        def nan(*shape: int) -> Floats:
            return np.full(shape, np.nan, dtype=np.float32)

        pair = (members, slots)
        return cls(nan(members), nan(*pair), nan(*pair), nan(*pair), nan(*pair))


@dataclass(frozen=True, slots=True, eq=False)
class Counterfactuals(ArrayStruct):
    """Measured contribution of each seed at this step, in accuracy (0..1)."""

    contribution_ES: Floats
    """Leave-one-out; NaN in slots that were not ablated."""
    contribution_se_ES: Floats
    """Paired over images."""
    shapley_ES: Floats
    interaction_ES: Floats
    """Sum of pairwise interactions with the member's other seeds."""
    coalitions_E: Ints
    """Distinct coalitions evaluated."""
    exact_E: Bools
    """All coalitions were evaluated: the Shapley values are exact, not sampled."""
    gap_E: Codes
    """`CounterfactualGap`."""


@dataclass(frozen=True, slots=True, eq=False)
class GovernorVerdicts(ArrayStruct):
    """Findings and rollbacks of the governor at this step."""

    panic_E: Codes
    """`PanicKind`."""
    loss_limit_E: Floats
    """median + k * MAD; NaN while the window is too short."""
    strikes_E: Ints
    """Consecutive steps above the limit."""
    rolled_back_E: Bools
    snapshot_step_E: Ints
    """Step of the snapshot to roll back to; -1 if there is none."""
    snapshot_score_E: Doubles
    """Score of that snapshot; NaN if there is none."""
    seeds_pruned_E: Ints
    """Live seeds removed by the rollback."""


@dataclass(frozen=True, slots=True, eq=False)
class SlotReports(ArrayStruct):
    """State of every slot of every member as arrays; `report` returns one of them."""

    slot_ids: tuple[str, ...]
    """Ids of the S slots, by index."""
    blueprints: tuple[str, ...]
    """Blueprint names, by index."""
    stage_ES: Codes
    """`SeedStage`."""
    blueprint_ES: Ints
    """Index into `blueprints`; `NO_BLUEPRINT` if the slot is empty."""
    style_ES: Codes
    """`BlendStyle`; undefined if the slot is empty."""
    alpha_ES: Floats
    alpha_target_ES: Floats
    """Target of the current or last ramp; 0 if the slot is empty."""
    alpha_mode_ES: Codes
    """`AlphaMode`."""
    ramp_steps_left_ES: Ints
    steps_in_stage_ES: Ints
    age_ES: Ints
    """Steps since germination; 0 if the slot is empty."""
    pruning_ES: Bools
    """Alpha is ramping to 0, after which the seed is removed."""
    cooldown_left_ES: Ints
    """Steps until a cooling slot is dormant again."""
    closed_ES: Bools
    """CLOSE was executed: nothing can grow in the slot any more."""
    params_ES: Ints
    """Parameter count of the seed; 0 if the slot is empty."""
    macs_ES: Ints
    """Multiply-accumulates of the seed per sample; 0 if the slot is empty."""
    contribution_ES: Floats
    """Last measured counterfactual contribution of the seed."""
    contribution_se_ES: Floats

    def report(self, member: int, slot: int) -> SlotReport:
        """Return the human-readable report of one slot of one member."""
        at = (member, slot)
        blueprint = int(self.blueprint_ES[at])
        occupied = blueprint != NO_BLUEPRINT
        return SlotReport(
            member=member,
            slot_id=self.slot_ids[slot],
            stage=SeedStage(self.stage_ES[at]),
            blueprint=self.blueprints[blueprint] if occupied else None,
            style=BlendStyle(self.style_ES[at]).name if occupied else None,
            alpha=float(self.alpha_ES[at]),
            alpha_target=float(self.alpha_target_ES[at]),
            ramp_steps_left=int(self.ramp_steps_left_ES[at]),
            steps_in_stage=int(self.steps_in_stage_ES[at]),
            age=int(self.age_ES[at]),
            pruning=bool(self.pruning_ES[at]),
            cooldown_left=int(self.cooldown_left_ES[at]),
            params=int(self.params_ES[at]),
            macs=int(self.macs_ES[at]),
            contribution=float(self.contribution_ES[at]),
            contribution_se=float(self.contribution_se_ES[at]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class TrainingSignals(ArrayStruct):
    """Observations of all members at a step, measured on `val_control`.

    Non-finite losses are kept as they are; features scale and clip them.
    """

    round_index: int
    step: int
    """Step of the episode, 0 .. episode_length - 1."""
    episode_length: int

    train_loss_E: Floats
    """Mean over the step's batches."""
    val_loss_E: Floats
    val_accuracy_E: Floats
    """0..1; for language models 1 - loss / ln vocab."""
    train_loss_history_EL: Floats
    """Last L values, oldest first; NaN before the start of the episode."""
    val_loss_history_EL: Floats
    val_accuracy_history_EL: Floats
    train_loss_slope_E: Floats
    """Least-squares slope per step over the history; 0 with fewer than two values."""
    val_loss_slope_E: Floats
    val_accuracy_slope_E: Floats
    plateau_steps_E: Ints
    """Steps since validation last improved by more than the tracker's tolerance."""
    plateaued_E: Bools
    stabilised_E: Bools
    """The initial steep descent of the host is over; stays true from then on."""

    params_over_host_E: Floats
    """Parameters of the seeds with alpha above 0, relative to the host's."""
    macs_over_host_E: Floats
    seed_budget_left_E: Ints
    """Seeds the member may still germinate."""

    last_op_E: Codes
    """`LifecycleOp` of the previous step; WAIT at the first step."""
    last_slot_E: Ints
    """Target slot of the previous step; `NO_SLOT` for WAIT."""
    last_executed_E: Bools
    """Whether the previous action was executed; true for WAIT."""

    governor_strikes_E: Ints
    """Consecutive steps with the loss above the governor's limit."""
    rollbacks_E: Ints
    """Rollbacks in this episode so far."""
    steps_since_snapshot_E: Ints
    """Steps a rollback would discard."""

    slots: SlotReports
    """Stage, blueprint, alpha, age, contribution and size of every slot."""
    contribution_age_ES: Ints
    """Steps since the contribution was measured; -1 if never."""
    contribution_velocity_ES: Floats
    """Change of the contribution per step between its last two measurements."""
    shapley_ES: Floats
    """Shapley value on accuracy, exact or sampled."""
    interaction_ES: Floats
    """Sum of pairwise interactions with the member's other live seeds."""
    grad_norm_ES: Floats
    grad_health_ES: Floats
    """From 0 (dead or not finite) to 1 (healthy)."""
    shadow_gap_ES: Floats
    """Shadow loss minus host loss; negative if the training seed would help."""

    channels_S: Ints
    depth_S: Floats
    """Fraction of the host's segments before the slot, 0..1."""
    resolution_S: Floats
    """Height of the activation in pixels; tokens for transformers, 1 for vectors."""
    activation_grad_ES: Floats
    """Norm of the loss gradient at the slot's activation; NaN if not measured."""
    train_accuracy_E: Floats
    """On the train batches of the step, 0..1; NaN if there were none."""

    context: ContextSignals
    """Prices, caps and budget."""
    candidates: Candidates
    """Cost of every seed that could be grown."""
    plan_slot: int = NO_SLOT
    """Plan phase: the slot to decide on; `NO_SLOT` in a step."""

    @property
    def progress(self) -> float:
        """Fraction of the episode completed after this step, in (0, 1]."""
        return (self.step + 1) / self.episode_length

    @property
    def planning(self) -> bool:
        """Whether this is a decision of the plan phase, before step 0."""
        return self.plan_slot != NO_SLOT

    @property
    def decision_index(self) -> int:
        """Index that names the random streams of this decision; equal to the step in a step."""
        return self.episode_length + self.plan_slot if self.planning else self.step

    @property
    def decisions(self) -> int:
        """Decisions of an episode: its steps and, if it plans, one per slot."""
        return self.episode_length + (self.slots.stage_ES.shape[1] if self.context.plans else 0)
