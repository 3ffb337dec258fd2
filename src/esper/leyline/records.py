"""Records passed between packages for a step, a rollout and a round.

Shape letters: E members, O operations, A action heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from esper.leyline.actions import ActionHead, ActionOutcome, ActionSpec, LifecycleOp
from esper.leyline.arrays import ArrayStruct, Bools, Doubles, Floats, Ints, map_member_arrays
from esper.leyline.context import PLAIN_ROUND, RoundContext
from esper.leyline.errors import EsperError
from esper.leyline.execution import ActionExecutionResult, BootstrapTargets
from esper.leyline.masks import ActionMasks
from esper.leyline.payloads import EpisodeOutcome, Payload, PhaseTime
from esper.leyline.rewards import RewardComponentsTelemetry, RewardInputs
from esper.leyline.signals import Counterfactuals, GovernorVerdicts, TrainingSignals

_StateT_co = TypeVar("_StateT_co", covariant=True)
"""Recurrent state of a policy; opaque to the engine."""


@dataclass(frozen=True, slots=True, eq=False)
class PolicyDecision(ArrayStruct):
    """A policy's actions with their probabilities and values, on the host."""

    actions: ActionSpec
    op_probability_EO: Floats
    """Probability of each operation; 0 where masked."""
    head_confidence_EA: Floats
    """Probability of the chosen index of each head; 1 for heads the operation does not use."""
    value_E: Floats
    """Value estimate; NaN for policies without one."""

    def __post_init__(self) -> None:
        sizes = self.sizes()
        if (sizes["O"], sizes["A"]) != (len(LifecycleOp), len(ActionHead)):
            raise EsperError(
                f"PolicyDecision: {sizes['O']} operations and {sizes['A']} heads, "
                f"there are {len(LifecycleOp)} and {len(ActionHead)}"
            )

    @classmethod
    def deterministic(cls, actions: ActionSpec) -> PolicyDecision:
        """Decision of a policy that does not sample: probability 1, value NaN."""
        members = actions.members
        chosen_EO = np.eye(len(LifecycleOp), dtype=np.float32)[actions.op]
        sure_EA = np.ones((members, len(ActionHead)), dtype=np.float32)
        return cls(actions, chosen_EO, sure_EA, np.full(members, np.nan, dtype=np.float32))


@dataclass(frozen=True, slots=True, eq=False)
class StepRecord(ArrayStruct):
    """One step of all members, for listeners. Read-only."""

    signals: TrainingSignals
    """Observations; the record's round and step are theirs."""
    masks: ActionMasks
    """Legal actions."""
    decision: PolicyDecision
    """Chosen actions."""
    result: ActionExecutionResult
    """Result of executing them."""
    reward_inputs: RewardInputs
    rewards: RewardComponentsTelemetry
    """Reward by component, as returned by `store`."""
    counterfactuals: Counterfactuals
    governor: GovernorVerdicts
    rows: int
    """Rows computed in the step, including shadow and counterfactual rows."""
    phases: tuple[PhaseTime, ...]
    """Host wall time per phase; device work may still be pending."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanRecord(ArrayStruct):
    """One decision of the plan phase for all members. Read-only."""

    signals: TrainingSignals
    """Observations; `plan_slot` is the slot decided on."""
    masks: ActionMasks
    decision: PolicyDecision
    outcome: ActionOutcome
    rewards: RewardComponentsTelemetry


@dataclass(frozen=True, slots=True, eq=False)
class Rollout(ArrayStruct, Generic[_StateT_co]):
    """Passed from `run_rollout` to `update`; the policy itself stores the transitions."""

    round_index: int
    steps: int
    """T of this rollout; less than the episode length if it was truncated."""
    ends_episode: bool
    """Whether the next rollout begins a new episode; if False, it continues this one."""
    outcome: EpisodeOutcome
    """State of every member after the last step."""
    truncated_bootstrap_targets: BootstrapTargets
    """Steps to bootstrap from the value; empty if the episode ran to its end."""
    final_signals: TrainingSignals
    """If truncated: the observation of the next step, so that bootstrap values are those of the
    next state. Otherwise of the last step, after its actions."""
    final_masks: ActionMasks
    final_state: _StateT_co
    train_accuracy_E: Doubles
    """On the train batches of the last step, 0..1."""
    steps_E: Ints
    """Steps of each member: below `steps` where the rollout of its rank was cut."""
    seconds: float
    """Wall time."""
    device_seconds: float
    """Of these, the device spent on training and validation."""
    plan_decisions: int = 0
    """Decisions of the plan phase, which come before the steps; 0 without one."""
    round_context: RoundContext = PLAIN_ROUND
    """What all members of the round share."""

    @property
    def decisions(self) -> int:
        """Decisions of this rollout: of the plan phase and of its steps."""
        return self.plan_decisions + self.steps

    @property
    def cut_steps(self) -> int:
        """Steps that members did not take because the rollout of their rank was cut."""
        return int((self.steps - self.steps_E).sum())

    @property
    def whole_E(self) -> Bools:
        """Members that were not cut."""
        return np.asarray(self.steps_E == self.steps)

    @property
    def completed(self) -> EpisodeOutcome:
        """Outcome of the members that were not cut."""
        whole_E = self.whole_E
        return map_member_arrays(self.outcome, lambda array: array[whole_E])


@dataclass(frozen=True, slots=True, eq=False)
class LearningRates(Payload):
    """Learning rates of the members in the first step of an episode."""

    host_rate_E: Doubles
    """Of hosts and permanent seeds."""
    seed_rate_E: Doubles
    """Of seeds until they are permanent."""
    schedule: str
    """`constant` or `cosine`; it covers the steps that are left when a member begins, or restarts.
    """


@dataclass(frozen=True, slots=True, eq=False)
class MemberRestarted(Payload):
    """Members that began anew at the end of a step."""

    member_N: Ints
    restart_N: Ints
    """1 for the member's first restart of the episode, 2 for the next."""
    score_N: Doubles
    """Score that was given up."""
    seeds_removed_N: Ints
    spent_N: Doubles
    """Share of the compute budget spent, 0..1; it stays spent."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchSummary(Payload):
    """Summary of one round; the payload of ROUND_COMPLETED."""

    round_index: int
    rounds_total: int
    episodes_done: int
    """In the whole run, this round included."""
    members: int
    mean_reward: float
    """Mean episode return before scaling; 0 for policies without a reward."""
    mean_accuracy: float
    """Over members, on `val_score`."""
    min_accuracy: float
    max_accuracy: float
    mean_score: float
    max_score: float
    best_score: float
    """Best mean score over all rounds so far; NaN before the first, and where rounds do not
    compare."""
    mean_added_params: float
    mean_added_macs: float
    learning_rate: float
    """Learning rate of the controller; NaN if nothing learns."""
    entropy_coef: float
    """NaN if nothing learns."""
    stage_counts: tuple[int, ...]
    """Slots of all members in each `SeedStage`, at the end of the round."""
    active_slots: float
    """Mean number of slots per member that hold a seed."""
    rollbacks: int
    member_steps_per_second: float
    seconds: float
    mean_train_accuracy: float
    """On the train batches of the last step, over members; NaN if one trained on none, because it
    had stopped or its compute did not suffice."""
    cut_steps: int
    """Steps that members did not take because their rank was a straggler; means, extremes and best
    score leave these members out."""

    @property
    def ends_episode(self) -> bool:
        """Whether the episode ended; if False, its rollout was truncated and the next continues."""
        return self.episodes_done >= (self.round_index + 1) * self.members
