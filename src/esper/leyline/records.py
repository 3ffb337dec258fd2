"""What the rooms hand each other about a step, a rollout and a round.

Shape letters: E members, O operations, A action heads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from esper.leyline.actions import ActionHead, ActionSpec, LifecycleOp
from esper.leyline.arrays import ArrayStruct, Doubles, Floats
from esper.leyline.errors import EsperError
from esper.leyline.execution import ActionExecutionResult, BootstrapTargets
from esper.leyline.masks import ActionMasks
from esper.leyline.payloads import EpisodeOutcome, Payload, PhaseTime
from esper.leyline.rewards import RewardComponentsTelemetry, RewardInputs
from esper.leyline.signals import Counterfactuals, GovernorVerdicts, TrainingSignals
from esper.leyline.stages import SeedStage

_StateT_co = TypeVar("_StateT_co", covariant=True)
"""What a policy carries from step to step; opaque to the engine."""


@dataclass(frozen=True, slots=True, eq=False)
class PolicyDecision(ArrayStruct):
    """What a policy chose, and how sure it was. Already on the host: one batched copy."""

    actions: ActionSpec
    op_probability_EO: Floats
    """Probability of each operation, masked ones 0."""
    head_confidence_EA: Floats
    """Probability of the choice of each head; 1 for heads that do not count."""
    value_E: Floats
    """Estimated return to come; NaN for policies without an estimate."""

    def __post_init__(self) -> None:
        sizes = self.sizes()
        if (sizes["O"], sizes["A"]) != (len(LifecycleOp), len(ActionHead)):
            raise EsperError(
                f"PolicyDecision: {sizes['O']} operations and {sizes['A']} heads, "
                f"there are {len(LifecycleOp)} and {len(ActionHead)}"
            )

    @classmethod
    def certain(cls, actions: ActionSpec) -> PolicyDecision:
        """The decision of a policy that does not sample: probability 1, no value."""
        members = actions.members
        chosen_EO = np.eye(len(LifecycleOp), dtype=np.float32)[actions.op]
        sure_EA = np.ones((members, len(ActionHead)), dtype=np.float32)
        return cls(actions, chosen_EO, sure_EA, np.full(members, np.nan, dtype=np.float32))


@dataclass(frozen=True, slots=True, eq=False)
class StepRecord(ArrayStruct):
    """All of one step of all members, for listeners. Nothing in it may be written to."""

    signals: TrainingSignals
    """What was observed; its round and step are the record's."""
    masks: ActionMasks
    """What was legal."""
    decision: PolicyDecision
    """What was chosen."""
    result: ActionExecutionResult
    """What came of it."""
    reward_inputs: RewardInputs
    rewards: RewardComponentsTelemetry
    """What the policy's own reward paid for it, as returned by `store`."""
    counterfactuals: Counterfactuals
    governor: GovernorVerdicts
    rows: int
    """Rows of the step, shadow and counterfactual rows included."""
    phases: tuple[PhaseTime, ...]
    """Host wall time of the phases of this step; device work may still be under way."""


@dataclass(frozen=True, slots=True, eq=False)
class Rollout(ArrayStruct, Generic[_StateT_co]):
    """What `run_rollout` hands to `update`; the transitions are in the policy's own store."""

    round_index: int
    steps: int
    """T of this rollout; less than the episode where it was cut."""
    ends_episode: bool
    """Whether its last step was the episode's; False: it was cut, and the next one goes on."""
    outcome: EpisodeOutcome
    """How every member stood after the last step."""
    truncated_bootstrap_targets: BootstrapTargets
    """Where returns go on beyond the rollout; empty when it ended with the episode."""
    final_signals: TrainingSignals
    """Where it was cut: of the next step, what its `act` will see, so that the value of the cut
    members is that of the state beyond. Else of the last step, after its actions."""
    final_masks: ActionMasks
    final_state: _StateT_co
    train_accuracy_E: Doubles
    """On the train batches of the last step, 0..1."""
    seconds: float
    """Wall time."""
    device_seconds: float
    """Of these, the device spent on training and validation."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchSummary(Payload):
    """One round in figures; the payload of ROUND_COMPLETED."""

    round_index: int
    rounds_total: int
    episodes_done: int
    """Of the whole run, this round included."""
    members: int
    mean_reward: float
    """Mean return of an episode, before any scaling; 0 for policies without a reward."""
    mean_accuracy: float
    """Over members, on `val_score`."""
    min_accuracy: float
    max_accuracy: float
    mean_score: float
    max_score: float
    best_score: float
    """Best mean score of any round so far."""
    mean_added_params: float
    mean_added_macs: float
    learning_rate: float
    """Of the controller; NaN where nothing learns."""
    entropy_coef: float
    """NaN where nothing learns."""
    stage_counts: tuple[int, ...]
    """Slots of all members in each `SeedStage`, at the end of the round."""
    active_slots: float
    """Mean number of slots of a member in which a seed stands."""
    rollbacks: int
    member_steps_per_second: float
    seconds: float
    mean_train_accuracy: float = math.nan
    """On the train batches of the last step, over members; NaN in events of older versions."""

    @property
    def ends_episode(self) -> bool:
        """Whether the round is over; False: its rollout was cut, and the next goes on in it."""
        return self.episodes_done >= (self.round_index + 1) * self.members

    def __post_init__(self) -> None:
        if len(self.stage_counts) != len(SeedStage):
            raise EsperError(
                f"BatchSummary.stage_counts: {len(self.stage_counts)} counts "
                f"for {len(SeedStage)} stages"
            )
