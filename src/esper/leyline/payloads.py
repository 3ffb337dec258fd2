"""Payloads of telemetry events: one frozen dataclass per event type.

Array fields of a payload are columns: they share their first axis (members, occurrences,
operations or heads), so a sink may write one row per element and repeat the scalars. Slot and
blueprint columns are indices into `RunStarted.slot_ids` and `RunStarted.blueprints`; columns of
codes name their enum. Round, step, member and device are fields of the event.

Shape letters: E members, N occurrences, S slots, O operations, A heads, Z stages, P reward parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Final

import numpy as np

from esper.leyline.actions import ActionHead
from esper.leyline.arrays import ArrayStruct, Bools, Codes, Doubles, Floats, Ints
from esper.leyline.codec import LATER

UNSIGNED: Final[Mapping[str, bool]] = MappingProxyType({"unsigned": True})
"""Metadata of an integer field that needs all 64 bits unsigned."""


@dataclass(frozen=True, slots=True, eq=False)
class Payload(ArrayStruct):
    """Base of event payloads: plain data; `==` compares contents."""


# ---- the run ----------------------------------------------------------------------------------


class RunStatus(IntEnum):
    """How a run ended."""

    COMPLETED = 0
    INTERRUPTED = 1
    """By a signal; saved and resumable."""
    FAILED = 2


class CheckpointReason(IntEnum):
    """Why a checkpoint was written."""

    PERIODIC = 0
    BEST = 1
    FINAL = 2
    INTERRUPTED = 3


@dataclass(frozen=True, slots=True, eq=False)
class RunStarted(Payload):
    """Setup of a run, including the names behind all indices in later events."""

    run_name: str
    task: str
    policy: str
    """Name of the policy: `ppo`, `heuristic`, `wait`, ..."""
    seed: int = field(metadata=UNSIGNED)
    rounds: int
    members: int
    episode_length: int
    batches_per_step: int
    batch_size: int
    control_images: int
    """Validation images for observations, gates and counterfactuals."""
    score_images: int
    """Validation images for the score."""
    profile: str
    """`exact` or `fast`."""
    executor: str
    """`vmap`, `loop` or `sharded`."""
    executor_reason: str
    """Why this executor was chosen."""
    device: str
    versions: tuple[tuple[str, str], ...]
    """(package, version) of everything that affects the numbers, and the git revision."""
    slot_ids: tuple[str, ...]
    blueprints: tuple[str, ...]
    host_params: int
    host_macs: int


@dataclass(frozen=True, slots=True, eq=False)
class RunFinished(Payload):
    """End of a run."""

    status: RunStatus
    rounds_done: int
    episodes_done: int
    seconds: float
    best_score: float
    events_dropped: int
    """Events dropped because the queue was full; 0 in a healthy run."""


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointSaved(Payload):
    """A checkpoint was written completely."""

    path: str
    reason: CheckpointReason
    size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointLoaded(Payload):
    """A run resumed from a checkpoint."""

    path: str
    rounds_done: int


# ---- members and seeds ------------------------------------------------------------------------


class PruneCause(IntEnum):
    """What removed a seed."""

    CONTROLLER = 0
    ROLLBACK = 1
    RESTART = 2
    """The whole member began anew."""


@dataclass(frozen=True, slots=True, eq=False)
class StepCompleted(Payload):
    """Measurements of every member at a step."""

    train_loss_E: Floats
    val_loss_E: Floats
    val_accuracy_E: Floats
    score_E: Doubles
    value_E: Floats
    """Value estimate of the controller; NaN without one."""
    live_seeds_E: Ints
    params_over_host_E: Floats
    train_accuracy_E: Floats
    """On the train batches of the step."""
    spent_E: Doubles
    """Share of the compute budget spent, 0..1."""


@dataclass(frozen=True, slots=True, eq=False)
class LastAction(Payload):
    """Action and reward of every member at a step."""

    op_E: Codes
    """`LifecycleOp`."""
    target_slot_E: Ints
    """`NO_SLOT` for WAIT."""
    veto_E: Codes
    """`VetoReason`; NONE if executed."""
    reward_E: Doubles
    cumulative_reward_E: Doubles
    """Since the start of the episode."""
    op_mask_EO: Bools
    """Legal operations."""
    op_probability_EO: Floats


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeOutcome(Payload):
    """Result of every member's episode."""

    member_E: Ints
    """Index of the member in the whole run, across shards."""
    episode_return_E: Doubles
    """Sum of rewards before scaling."""
    score_E: Doubles
    accuracy_E: Doubles
    """On `val_score`."""
    loss_E: Doubles
    added_params_E: Ints
    added_macs_E: Ints
    flops_ratio_E: Doubles
    """Training FLOPs relative to the host."""
    germinated_E: Ints
    fossilized_E: Ints
    pruned_E: Ints
    """Seeds that left their slot for any `PruneCause`."""
    rollbacks_E: Ints
    blueprint_ES: Ints
    """Topology to export: blueprint per slot, -1 if empty."""
    restarts_E: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64), metadata=LATER)

    def __post_init__(self) -> None:
        if not self.restarts_E.size:  # a file of before there were restarts
            object.__setattr__(self, "restarts_E", np.zeros_like(self.member_E))


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeCurve(Payload):
    """A round step by step, over all members; T: its steps."""

    at_step_T: Ints
    """Step of the episode, from 0."""
    accuracy_T: Doubles
    """Validation accuracy, mean over members."""
    accuracy_low_T: Doubles
    """Lower end of its 95 % interval; NaN with one member."""
    accuracy_high_T: Doubles
    score_T: Doubles
    train_accuracy_T: Doubles
    """On the train batches of the step."""
    spent_T: Doubles
    """Mean share of the compute budget spent, 0..1."""


@dataclass(frozen=True, slots=True, eq=False)
class RoundContexts(Payload):
    """Contexts of the members in a round, and what they used of their budget."""

    price_E: Doubles
    """Factor on the price of growth."""
    learning_rate_E: Doubles
    """Factor on the task's learning rates."""
    params_cap_E: Doubles
    """Most parameters, host included; infinite: no cap."""
    macs_cap_E: Doubles
    spent_E: Doubles
    """Share of the budget spent when it was last observed, before the last step."""
    stopped_E: Bools
    """Stopped training before the end."""
    budget: float
    """Compute budget of every member, in training runs of the host."""
    groups: int
    """Number of classes."""
    train_samples: int
    """Training samples in use."""
    pixel_noise: float
    permuted: bool
    label_noise: float


@dataclass(frozen=True, slots=True, eq=False)
class SeedGerminated(Payload):
    """New seeds."""

    member_N: Ints
    slot_N: Ints
    blueprint_N: Ints
    style_N: Codes
    """`BlendStyle`."""
    tempo_N: Ints
    """Steps of the first blend."""
    alpha_target_N: Floats
    alpha_curve_N: Codes
    """`AlphaCurve`."""
    params_N: Ints
    macs_N: Ints


@dataclass(frozen=True, slots=True, eq=False)
class SeedStageChanged(Payload):
    """Stage transitions, including cooldown."""

    member_N: Ints
    slot_N: Ints
    blueprint_N: Ints
    """-1 if the slot is empty."""
    stage_before_N: Codes
    """`SeedStage`."""
    stage_after_N: Codes
    """`SeedStage`."""
    steps_in_stage_N: Ints
    """Steps spent in the previous stage."""
    alpha_N: Floats


@dataclass(frozen=True, slots=True, eq=False)
class SeedGateEvaluated(Payload):
    """Gate results and their inputs (NaN: not measured)."""

    member_N: Ints
    slot_N: Ints
    gate_N: Codes
    """`Gate`."""
    passed_N: Bools
    host_loss_N: Floats
    shadow_loss_N: Floats
    grad_norm_N: Floats
    contribution_N: Floats
    contribution_se_N: Floats


@dataclass(frozen=True, slots=True, eq=False)
class SeedFossilized(Payload):
    """Seeds that became permanent."""

    member_N: Ints
    slot_N: Ints
    blueprint_N: Ints
    age_N: Ints
    contribution_N: Floats
    contribution_se_N: Floats
    params_N: Ints
    macs_N: Ints


@dataclass(frozen=True, slots=True, eq=False)
class SeedPruned(Payload):
    """Removed seeds (a ramped prune is reported when the ramp ends)."""

    member_N: Ints
    slot_N: Ints
    blueprint_N: Ints
    stage_before_N: Codes
    """`SeedStage`."""
    cause_N: Codes
    """`PruneCause`."""
    age_N: Ints
    contribution_N: Floats
    contribution_se_N: Floats


SlotPayload = SeedGerminated | SeedStageChanged | SeedGateEvaluated | SeedFossilized | SeedPruned
"""Any event of a slot."""


@dataclass(frozen=True, slots=True, eq=False)
class CounterfactualsMeasured(Payload):
    """Contribution of live and permanent seeds, in accuracy (0..1)."""

    member_N: Ints
    slot_N: Ints
    blueprint_N: Ints
    contribution_N: Floats
    """Leave-one-out."""
    contribution_se_N: Floats
    """Paired over images."""
    shapley_N: Floats
    interaction_N: Floats
    """Sum of pairwise interactions with the member's other seeds."""
    coalitions_N: Ints
    """Coalitions of the member evaluated."""
    exact_N: Bools
    """All coalitions were evaluated: the Shapley value is exact, not sampled."""


@dataclass(frozen=True, slots=True, eq=False)
class CounterfactualUnavailable(Payload):
    """Members without a counterfactual measurement at this step."""

    member_N: Ints
    reason_N: Codes
    """`CounterfactualGap`."""


@dataclass(frozen=True, slots=True, eq=False)
class GovernorPanic(Payload):
    """Members the governor intervened for."""

    member_N: Ints
    kind_N: Codes
    """`PanicKind`."""
    loss_N: Floats
    limit_N: Floats
    """Limit the loss was compared with; NaN if it was not."""
    strikes_N: Ints
    """Consecutive steps above the limit."""


@dataclass(frozen=True, slots=True, eq=False)
class GovernorRollback(Payload):
    """Members rolled back to their snapshot."""

    member_N: Ints
    kind_N: Codes
    """`PanicKind`."""
    snapshot_step_N: Ints
    score_before_N: Doubles
    """Score of the step before the rollback."""
    snapshot_score_N: Doubles
    seeds_pruned_N: Ints


# ---- the learner ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LayerGradientStats:
    """Gradient statistics of one parameter tensor (debug level)."""

    layer: str
    grad_norm: float
    grad_mean: float
    grad_std: float
    param_norm: float
    zero_fraction: float
    """Fraction of elements that are exactly 0."""
    small_fraction: float
    """Fraction of elements with magnitude below 1e-6, zeros included."""
    large_fraction: float
    """Fraction of elements with magnitude above 10."""
    nan_count: int
    inf_count: int


@dataclass(frozen=True, slots=True)
class PPOUpdateMetrics:
    """Metrics of one PPO update, over all its epochs and minibatches."""

    policy_loss: float
    value_loss: float
    entropy: float
    """Of the joint action, in nats."""
    head_entropy: tuple[float, ...]
    """Per `ActionHead`, over steps that use the head; NaN if none does."""
    approx_kl: float
    """Summed over heads."""
    clip_fraction: float
    ratio_mean: float
    ratio_min: float
    ratio_max: float
    explained_variance: float
    value_mean: float
    value_std: float
    return_mean: float
    return_std: float
    advantage_mean: float
    """Before normalisation."""
    advantage_std: float
    grad_norm: float
    """Before clipping."""
    learning_rate: float
    entropy_coef: float
    exploration: float
    """Weight of the masked uniform distribution mixed in."""
    epochs_run: int
    early_stopped: bool
    """Stopped by the KL limit."""


@dataclass(frozen=True, slots=True, eq=False)
class PPOUpdated(Payload):
    """One update of the controller."""

    metrics: PPOUpdateMetrics
    layers: tuple[LayerGradientStats, ...]
    """Per parameter tensor at debug level, empty below it."""


@dataclass(frozen=True, slots=True, eq=False)
class ActionDistribution(Payload):
    """Operations of a round; rows are `LifecycleOp`, in order."""

    chosen_O: Ints
    """Member-steps at which the operation was chosen."""
    executed_O: Ints
    """How many of these were executed."""
    legal_O: Ints
    """Member-steps at which it was legal."""
    probability_O: Floats
    """Mean probability given by the controller."""
    chosen_OZ: Ints
    """Operation counts by `SeedStage` of the target slot; WAIT is in no column."""
    slot_chosen: tuple[int, ...]
    """Member-steps at which an operation targeted each slot."""
    slot_executed: tuple[int, ...]
    """How many of these were executed."""


@dataclass(frozen=True, slots=True, eq=False)
class MaskHitRates(Payload):
    """Effect of the masks over steps that use a head; rows are `ActionHead`."""

    steps_A: Ints
    """Member-steps that used the head."""
    masked_fraction_A: Floats
    """Mean fraction of its choices that were masked; NaN if it was never used."""
    forced_fraction_A: Floats
    """Fraction of these steps with a single choice left."""


@dataclass(frozen=True, slots=True, eq=False)
class RewardSummary(Payload):
    """Reward of every member in a round, by component."""

    parts: tuple[str, ...]
    """Names of the P components."""
    value_EP: Doubles
    """Sum over the steps of each component."""
    total_E: Doubles
    slot_reward: tuple[float, ...]
    """Reward of steps whose operation targeted each slot, all members."""


# ---- performance and anomalies ----------------------------------------------------------------


class StepPhase(IntEnum):
    """Timed phases of a round."""

    TRAIN = 0
    VALIDATION = 1
    TRANSFER_1 = 2
    """Measurements to the host."""
    ANALYSIS = 3
    """Governor, signals, gates, legal operations."""
    ACT = 4
    TRANSFER_2 = 5
    """Actions to the host."""
    EXECUTE = 6
    STORE = 7
    LISTEN = 8
    UPDATE = 9
    """Update of the learner, once a round."""


@dataclass(frozen=True, slots=True, eq=False)
class Throughput(Payload):
    """Steady-state speed over a round."""

    member_steps_per_second: float
    episodes_per_second: float
    batches_per_second: float
    """Member-batches."""
    samples_per_second: float
    gpu_utilization: float
    """0..1, as the driver reports it at the end of the round; NaN if it does not, and on a CPU."""
    rows_per_member: float
    """Mean rows (main, shadow, counterfactual) per member."""
    step_seconds_p50: float
    step_seconds_p95: float
    device_share: float
    """Share of the round that the device trained and validated."""
    gpu_memory: float
    """Most bytes that tensors took on the GPU so far; NaN on a CPU."""


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """Duration of one phase in a round."""

    phase: StepPhase
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class PhaseProfile(Payload):
    """Time of a round by phase."""

    phases: tuple[PhaseTime, ...]
    total_seconds: float
    """Whole round, including time outside all phases."""


class AnomalyKind(IntEnum):
    """Kinds of anomalies."""

    RATIO_EXPLOSION = 0
    RATIO_COLLAPSE = 1
    KL_EXPLOSION = 2
    ENTROPY_COLLAPSE = 3
    """Of one head, over steps that use it."""
    VALUE_COLLAPSE = 4
    GRADIENT_EXPLOSION = 5
    GRADIENT_VANISHING = 6
    NON_FINITE = 7
    REWARD_HACKING = 8
    """High reward without a matching score."""
    PERFORMANCE_DEGRADATION = 9


@dataclass(frozen=True, slots=True, eq=False)
class AnomalyDetected(Payload):
    """One anomaly and its magnitude."""

    kind: AnomalyKind
    value: float
    threshold: float
    head: ActionHead | None
    """Head concerned; None if not specific to a head."""
    detail: str
    """One-line description."""


@dataclass(frozen=True, slots=True)
class AnomalyReport:
    """All anomalies found by a check, worst first; empty if healthy."""

    anomalies: tuple[AnomalyDetected, ...] = ()

    @property
    def has_anomaly(self) -> bool:
        """Whether the report holds any anomaly."""
        return bool(self.anomalies)
