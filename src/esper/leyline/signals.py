"""What is measured at a step: what gates read, what stands in the slots, what controllers observe.

Shape letters: E members, S slots, L last values. NaN means not measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from esper.leyline.actions import BlendStyle
from esper.leyline.arrays import ArrayStruct, Bools, Codes, Doubles, Floats, Ints
from esper.leyline.errors import EsperError
from esper.leyline.slots import SlotReport
from esper.leyline.stages import SeedStage

HISTORY_LENGTH: Final = 5
"""L: how many past values of a metric a controller sees."""

NO_BLUEPRINT: Final = -1
"""In place of a blueprint index: no seed stands there."""


class PanicKind(IntEnum):
    """Why the governor steps in for a member."""

    NONE = 0
    NON_FINITE_LOSS = 1
    NON_FINITE_GRADIENT = 2
    LOSS_SPIKE = 3
    """Loss above median + k * MAD of its own window for m steps."""
    ACCURACY_COLLAPSE = 4
    """Accuracy back at chance after having learnt."""


class CounterfactualGap(IntEnum):
    """Why a member's seeds were not measured at a step."""

    NONE = 0
    """They were."""
    STRIDE = 1
    """Not this step: `counterfactual_stride`."""
    NO_SEED = 2
    """Nothing to switch off."""
    NON_FINITE = 3
    """The member's outputs were not finite."""


@dataclass(frozen=True, slots=True, eq=False)
class GateSignals(ArrayStruct):
    """What the gates read. Losses and gradients that are not finite are given as +inf, not NaN."""

    host_loss_E: Floats
    """Train loss of the main row, the one shadow losses are compared with."""
    shadow_loss_ES: Floats
    """Train loss with the incubating seed of that slot switched on."""
    grad_norm_ES: Floats
    """Norm of the seed's gradient over the step; +inf where any gradient was not finite."""
    contribution_ES: Floats
    """Accuracy on `val_control` with the seed minus without it (0..1)."""
    contribution_se_ES: Floats
    """Standard error of the contribution, paired over images."""

    @classmethod
    def unmeasured(cls, members: int, slots: int) -> GateSignals:
        """Nothing measured yet: NaN everywhere."""

        def nan(*shape: int) -> Floats:
            return np.full(shape, np.nan, dtype=np.float32)

        pair = (members, slots)
        return cls(nan(members), nan(*pair), nan(*pair), nan(*pair), nan(*pair))


@dataclass(frozen=True, slots=True, eq=False)
class Counterfactuals(ArrayStruct):
    """What seeds were found to be worth at this step, on accuracy (0..1)."""

    contribution_ES: Floats
    """Leave-one-out; NaN in slots that were not switched off."""
    contribution_se_ES: Floats
    """Paired over images."""
    shapley_ES: Floats
    interaction_ES: Floats
    """Sum of the pair interactions with the member's other seeds."""
    coalitions_E: Ints
    """Distinct coalitions that were evaluated."""
    exact_E: Bools
    """All coalitions were, so the Shapley values are not sampled."""
    gap_E: Codes
    """`CounterfactualGap`."""


@dataclass(frozen=True, slots=True, eq=False)
class GovernorVerdicts(ArrayStruct):
    """What the governor found and did at this step."""

    panic_E: Codes
    """`PanicKind`."""
    loss_limit_E: Floats
    """median + k * MAD; NaN while the window is too short."""
    strikes_E: Ints
    """Steps in a row above the limit."""
    rolled_back_E: Bools
    snapshot_step_E: Ints
    """Step of the snapshot a rollback goes to; -1 while there is none."""
    snapshot_score_E: Doubles
    """Its score; NaN while there is none."""
    seeds_pruned_E: Ints
    """Live seeds the rollback removed."""


@dataclass(frozen=True, slots=True, eq=False)
class SlotReports(ArrayStruct):
    """What stands in every slot of every member, as arrays; `report` reads one of them."""

    slot_ids: tuple[str, ...]
    """Ids of the S slots, in index order."""
    blueprints: tuple[str, ...]
    """Names behind the blueprint indices."""
    stage_ES: Codes
    """`SeedStage`."""
    blueprint_ES: Ints
    """Index into `blueprints`; `NO_BLUEPRINT` where no seed stands."""
    style_ES: Codes
    """`BlendStyle`; meaningless where no seed stands."""
    alpha_ES: Floats
    alpha_target_ES: Floats
    """Where alpha is heading or has stopped; 0 where no seed stands."""
    alpha_mode_ES: Codes
    """`AlphaMode`."""
    ramp_steps_left_ES: Ints
    steps_in_stage_ES: Ints
    age_ES: Ints
    """Steps since germination; 0 where no seed stands."""
    pruning_ES: Bools
    """Alpha is on its way to 0, after which the seed is removed."""
    cooldown_left_ES: Ints
    """Steps until a resting slot is dormant again."""
    params_ES: Ints
    """Parameters of the seed that stands there; 0 where none."""
    macs_ES: Ints
    """Multiply-accumulates of one forward of that seed for one sample; 0 where none."""
    contribution_ES: Floats
    """Last measured counterfactual contribution of the seed that stands there."""
    contribution_se_ES: Floats

    def __post_init__(self) -> None:
        slots = self.sizes()["S"]
        if len(self.slot_ids) != slots:
            raise EsperError(
                f"SlotReports.slot_ids: {len(self.slot_ids)} ids ({', '.join(self.slot_ids)}) "
                f"for {slots} slots"
            )

    def report(self, member: int, slot: int) -> SlotReport:
        """The readable report of one slot of one member."""
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
    """What controllers observe of all members at a step. Everything here is from `val_control`.

    Losses that are not finite stay non-finite; scaling and clipping belong to the features.
    """

    round_index: int
    step: int
    """Steps before this one in the episode, 0 .. episode_length - 1."""
    episode_length: int

    train_loss_E: Floats
    """Mean over the step's batches."""
    val_loss_E: Floats
    val_accuracy_E: Floats
    """0..1; for language models 1 - loss / ln vocab."""
    train_loss_history_EL: Floats
    """The last values, oldest first, this step's last; NaN before the episode began."""
    val_loss_history_EL: Floats
    val_accuracy_history_EL: Floats
    train_loss_slope_E: Floats
    """Least-squares change per step over the history; 0 with fewer than two values."""
    val_loss_slope_E: Floats
    val_accuracy_slope_E: Floats
    plateau_steps_E: Ints
    """Steps since validation last improved by more than the tracker's tolerance."""
    plateaued_E: Bools
    stabilised_E: Bools
    """The host's first steep descent is over; from then on it stays true."""

    params_over_host_E: Floats
    """Parameters of seeds that would be exported now, over the host's."""
    macs_over_host_E: Floats
    params_over_budget_E: Floats
    """The same over the task's parameter budget; 0 where there is none."""
    macs_over_budget_E: Floats
    seed_budget_left_E: Ints
    """Seeds the member may still germinate."""

    last_op_E: Codes
    """`LifecycleOp` of the step before; WAIT at the first step."""
    last_slot_E: Ints
    """Slot of the step before; `NO_SLOT` for WAIT."""
    last_executed_E: Bools
    """Whether that action was carried out; true for WAIT."""

    governor_strikes_E: Ints
    """Steps in a row that the loss has been above the governor's limit."""
    rollbacks_E: Ints
    """Rollbacks of this episode so far."""
    steps_since_snapshot_E: Ints
    """How much a rollback would lose."""

    slots: SlotReports
    """Stage, blueprint, alpha, age, contribution and size of every slot."""
    contribution_age_ES: Ints
    """Steps since the contribution was measured; -1 where it never was."""
    contribution_velocity_ES: Floats
    """Change of the contribution per step between its last two measurements."""
    shapley_ES: Floats
    """Shapley value on accuracy, exact or sampled."""
    interaction_ES: Floats
    """Sum of the pair interactions with the member's other live seeds."""
    grad_norm_ES: Floats
    grad_health_ES: Floats
    """0 dead or not finite .. 1 healthy."""
    shadow_gap_ES: Floats
    """Shadow loss minus host loss: below 0 the incubating seed would help."""

    channels_S: Ints
    depth_S: Floats
    """Share of the host's segments that stand before the slot, 0..1."""
    resolution_S: Floats
    """Side of the activation there in pixels; tokens for transformers, 1 for vectors."""

    def __post_init__(self) -> None:
        length = self.sizes()["L"]
        if length != HISTORY_LENGTH:
            raise EsperError(f"TrainingSignals histories: {length} values, not {HISTORY_LENGTH}")
        if not 0 <= self.step < self.episode_length:
            raise EsperError(
                f"TrainingSignals.step {self.step}: valid are 0 to {self.episode_length - 1}"
            )

    @property
    def progress(self) -> float:
        """Share of the episode that is over once this step is: above 0, exactly 1 at the last."""
        return (self.step + 1) / self.episode_length
