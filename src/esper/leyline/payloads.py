"""What each telemetry event says: one frozen dataclass per event type.

Array fields of a payload are columns: they share their first axis (members, occurrences,
operations or heads), so a sink may write one row per element and repeat the scalars. Slot and
blueprint columns are indices into `RunStarted.slot_ids` and `RunStarted.blueprints`; columns of
codes name their enum. Round, step, member and device stand in the event, not here.

Shape letters: E members, N occurrences, S slots, O operations, A heads, Z stages, P reward parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from esper.leyline.actions import ActionHead
from esper.leyline.arrays import ArrayStruct, Bools, Codes, Doubles, Floats, Ints

UNSIGNED: Final[Mapping[str, bool]] = MappingProxyType({"unsigned": True})
"""Metadata of a field that may take all 64 bits of a whole number."""


@dataclass(frozen=True, slots=True, eq=False)
class Payload(ArrayStruct):
    """What an event says. Subclasses are plain data; `==` compares contents."""


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
    """What is run, on what; enough to read every index and every figure that follows."""

    run_name: str
    task: str
    policy: str
    """Who decides: `ppo`, `heuristic`, `wait`, ..."""
    seed: int = field(metadata=UNSIGNED)
    rounds: int
    members: int
    episode_length: int
    batches_per_step: int
    batch_size: int
    control_images: int
    """Validation images observations, gates and counterfactuals are measured on."""
    score_images: int
    """Validation images the score is measured on."""
    profile: str
    """`exact` or `fast`."""
    executor: str
    """`vmap`, `loop` or `sharded`."""
    executor_reason: str
    """Why that one."""
    device: str
    versions: tuple[tuple[str, str], ...]
    """(package, version) of what the numbers depend on, and the git revision."""
    slot_ids: tuple[str, ...]
    blueprints: tuple[str, ...]
    host_params: int
    host_macs: int


@dataclass(frozen=True, slots=True, eq=False)
class RunFinished(Payload):
    """How it ended."""

    status: RunStatus
    rounds_done: int
    episodes_done: int
    seconds: float
    best_score: float
    events_dropped: int
    """Events the queue had no room for; 0 in a healthy run."""


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointSaved(Payload):
    """A checkpoint is complete on disk."""

    path: str
    reason: CheckpointReason
    size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointLoaded(Payload):
    """A run goes on from a checkpoint."""

    path: str
    rounds_done: int


# ---- members and seeds ------------------------------------------------------------------------


class PruneCause(IntEnum):
    """Who removed a seed."""

    CONTROLLER = 0
    ROLLBACK = 1


@dataclass(frozen=True, slots=True, eq=False)
class StepCompleted(Payload):
    """What every member measured at a step."""

    train_loss_E: Floats
    val_loss_E: Floats
    val_accuracy_E: Floats
    score_E: Doubles
    value_E: Floats
    """The controller's estimate of the return to come; NaN for controllers without one."""
    live_seeds_E: Ints
    params_over_host_E: Floats


@dataclass(frozen=True, slots=True, eq=False)
class LastAction(Payload):
    """What every member was asked to do at a step, and what it was paid."""

    op_E: Codes
    """`LifecycleOp`."""
    target_slot_E: Ints
    """`NO_SLOT` for WAIT."""
    veto_E: Codes
    """`VetoReason`; NONE where it was carried out."""
    reward_E: Doubles
    cumulative_reward_E: Doubles
    """Of this episode so far."""
    op_mask_EO: Bools
    """Operations that were legal."""
    op_probability_EO: Floats


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeOutcome(Payload):
    """How the episode of every member ended."""

    member_E: Ints
    """Index of the member in the whole run, shards included."""
    episode_return_E: Doubles
    """Sum of the rewards as paid, before any scaling."""
    score_E: Doubles
    accuracy_E: Doubles
    """On `val_score`."""
    loss_E: Doubles
    added_params_E: Ints
    added_macs_E: Ints
    flops_ratio_E: Doubles
    """Training FLOPs over those of the host alone."""
    germinated_E: Ints
    fossilized_E: Ints
    pruned_E: Ints
    rollbacks_E: Ints
    blueprint_ES: Ints
    """The topology that would be exported: blueprint per slot, -1 where there is none."""


@dataclass(frozen=True, slots=True, eq=False)
class SeedGerminated(Payload):
    """Seeds born."""

    member_N: Ints
    slot_N: Ints
    blueprint_N: Ints
    style_N: Codes
    """`BlendStyle`."""
    tempo_N: Ints
    """Steps the first blend will take."""
    alpha_target_N: Floats
    alpha_curve_N: Codes
    """`AlphaCurve`."""
    params_N: Ints
    macs_N: Ints


@dataclass(frozen=True, slots=True, eq=False)
class SeedStageChanged(Payload):
    """Slots that moved from one stage to the next, cooldown included."""

    member_N: Ints
    slot_N: Ints
    blueprint_N: Ints
    """-1 where no seed stands any more."""
    stage_before_N: Codes
    """`SeedStage`."""
    stage_after_N: Codes
    """`SeedStage`."""
    steps_in_stage_N: Ints
    """Steps spent in the stage that was left."""
    alpha_N: Floats


@dataclass(frozen=True, slots=True, eq=False)
class SeedGateEvaluated(Payload):
    """What the gate in front of a seed said, and what it had to go by (NaN: not measured)."""

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
    """Seeds made permanent."""

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
    """Seeds removed (a prune by ramp counts when the ramp has ended)."""

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
"""What can happen in a slot."""


@dataclass(frozen=True, slots=True, eq=False)
class CounterfactualsMeasured(Payload):
    """What live and permanent seeds are worth, on accuracy (0..1)."""

    member_N: Ints
    slot_N: Ints
    blueprint_N: Ints
    contribution_N: Floats
    """Leave-one-out."""
    contribution_se_N: Floats
    """Paired over images."""
    shapley_N: Floats
    interaction_N: Floats
    """Sum of the pair interactions with the member's other seeds."""
    coalitions_N: Ints
    """Coalitions of the member that were evaluated."""
    exact_N: Bools
    """All coalitions were evaluated, so the Shapley value is not sampled."""


@dataclass(frozen=True, slots=True, eq=False)
class CounterfactualUnavailable(Payload):
    """Members whose seeds were not measured at this step."""

    member_N: Ints
    reason_N: Codes
    """`CounterfactualGap`."""


@dataclass(frozen=True, slots=True, eq=False)
class GovernorPanic(Payload):
    """Members the governor stepped in for."""

    member_N: Ints
    kind_N: Codes
    """`PanicKind`."""
    loss_N: Floats
    limit_N: Floats
    """What the loss was compared with; NaN where it was not."""
    strikes_N: Ints
    """Steps in a row above the limit."""


@dataclass(frozen=True, slots=True, eq=False)
class GovernorRollback(Payload):
    """Members set back to their snapshot."""

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
    """The gradient of one parameter tensor (debug level)."""

    layer: str
    grad_norm: float
    grad_mean: float
    grad_std: float
    param_norm: float
    zero_fraction: float
    """Share of elements that are exactly 0."""
    small_fraction: float
    """Share of elements below 1e-6 in size, zeros included."""
    large_fraction: float
    """Share of elements above 10 in size."""
    nan_count: int
    inf_count: int


@dataclass(frozen=True, slots=True)
class PPOUpdateMetrics:
    """What one PPO update did, over all its epochs and minibatches."""

    policy_loss: float
    value_loss: float
    entropy: float
    """Of the joint action, in nats."""
    head_entropy: tuple[float, ...]
    """Per `ActionHead`, over steps where the head counted; NaN where none did."""
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
    """Share of the masked uniform distribution mixed in."""
    epochs_run: int
    early_stopped: bool
    """By the KL limit."""


@dataclass(frozen=True, slots=True, eq=False)
class PPOUpdated(Payload):
    """One update of the controller."""

    metrics: PPOUpdateMetrics
    layers: tuple[LayerGradientStats, ...]
    """Per parameter tensor at debug level, empty below it."""


@dataclass(frozen=True, slots=True, eq=False)
class ActionDistribution(Payload):
    """What the controller did in a round; rows are `LifecycleOp`, in order."""

    chosen_O: Ints
    """Member-steps at which the operation was chosen."""
    executed_O: Ints
    """Of these, carried out."""
    legal_O: Ints
    """Member-steps at which it was legal."""
    probability_O: Floats
    """Mean probability the controller gave it."""
    chosen_OZ: Ints
    """The op mix by stage: `SeedStage` of the slot that was meant; WAIT in no column."""


@dataclass(frozen=True, slots=True, eq=False)
class MaskHitRates(Payload):
    """How much the masks took away, over steps where a head counted; rows are `ActionHead`."""

    steps_A: Ints
    """Member-steps at which the head counted."""
    masked_fraction_A: Floats
    """Mean share of its choices that were masked; NaN where it never counted."""
    forced_fraction_A: Floats
    """Share of these steps with a single choice left."""


@dataclass(frozen=True, slots=True, eq=False)
class RewardSummary(Payload):
    """What every member was paid in a round, by part."""

    parts: tuple[str, ...]
    """Names of the P parts."""
    value_EP: Doubles
    """Sum over the steps of each part."""
    total_E: Doubles


# ---- how fast, how sound ----------------------------------------------------------------------


class StepPhase(IntEnum):
    """The parts of a round that time is measured of."""

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
    """The learner, once a round."""


@dataclass(frozen=True, slots=True, eq=False)
class Throughput(Payload):
    """Steady-state speed over a round, with everything it depends on that a round can change."""

    member_steps_per_second: float
    episodes_per_second: float
    batches_per_second: float
    """Member-batches."""
    samples_per_second: float
    gpu_utilization: float
    """0..1; NaN where it cannot be read."""
    rows_per_member: float
    """Mean rows (main, shadow, counterfactual) a member cost."""
    step_seconds_p50: float
    step_seconds_p95: float


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """How long one phase took in a round."""

    phase: StepPhase
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class PhaseProfile(Payload):
    """Where the time of a round went."""

    phases: tuple[PhaseTime, ...]
    total_seconds: float
    """Of the round, what no phase covers included."""


class AnomalyKind(IntEnum):
    """What can be wrong with a run."""

    RATIO_EXPLOSION = 0
    RATIO_COLLAPSE = 1
    KL_EXPLOSION = 2
    ENTROPY_COLLAPSE = 3
    """Of one head, over steps where it counted."""
    VALUE_COLLAPSE = 4
    GRADIENT_EXPLOSION = 5
    GRADIENT_VANISHING = 6
    NON_FINITE = 7
    REWARD_HACKING = 8
    """Paid without the score to show for it."""
    PERFORMANCE_DEGRADATION = 9


@dataclass(frozen=True, slots=True, eq=False)
class AnomalyDetected(Payload):
    """One thing that is wrong, and by how much."""

    kind: AnomalyKind
    value: float
    threshold: float
    head: ActionHead | None
    """The head it is about; None where it is about none."""
    detail: str
    """One line for people."""


@dataclass(frozen=True, slots=True)
class AnomalyReport:
    """Everything a check found wrong, worst first; empty in a sound run."""

    anomalies: tuple[AnomalyDetected, ...] = ()

    @property
    def has_anomaly(self) -> bool:
        """Whether anything is wrong."""
        return bool(self.anomalies)
