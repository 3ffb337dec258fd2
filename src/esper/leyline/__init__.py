"""Shared contracts: enums, records and the protocols between packages.

Imports nothing else of esper and no torch. Names load when first used (PEP 562), so importing
the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.leyline.lazy import attach

_NAMES_IN: dict[str, tuple[str, ...]] = {
    ".errors": (
        "EsperError",
        "UnknownNameError",
        "IllegalActionError",
        "ShapeError",
        "MAX_SHOWN_CHARS",
        "shorten",
        "shown",
        "install_hint",
        "parse_error_line",
        "unknown_name",
    ),
    ".user_errors": (
        "MAX_ERROR_CHARS",
        "count_as_library",
        "user_code",
        "user_callback",
        "exit_error",
        "in_user_code",
        "format_error",
        "is_out_of_memory",
    ),
    ".torch_switches": ("read_switches", "put_back"),
    ".lazy": ("attach",),
    ".optim": ("OptimConfig",),
    ".compute": (
        "Profile",
        "ExecutorName",
        "Precision",
        "KernelMode",
        "KernelName",
        "GraphMode",
        "DataPlacement",
        "PROFILES",
        "EXECUTOR_NAMES",
        "PRECISIONS",
        "KERNEL_MODES",
        "GRAPH_MODES",
        "PLACEMENTS",
        "ComputeSettings",
    ),
    ".limits": (
        "MAX_COUNT",
        "MAX_MEMBERS",
        "MAX_EPISODE_LENGTH",
        "MAX_BATCHES_PER_STEP",
        "MAX_EPOCHS",
        "MAX_NETWORK_WIDTH",
        "is_integer",
        "require_at_most",
        "require_counts",
    ),
    ".stopping": ("STOP_SIGNALS", "second_stop_handler"),
    ".seeds": (
        "EVALUATION_SEEDS",
        "require_training_seed",
        "require_evaluation_seeds",
        "MAX_SEED",
        "require_seed",
    ),
    ".statistics": (
        "LEVEL",
        "RESAMPLES",
        "TRIMMED",
        "Interval",
        "Estimate",
        "PairedDifference",
        "t_interval",
        "student_estimate",
        "interquartile_mean",
        "interquartile_estimate",
        "mean_estimate",
        "paired_difference",
        "probability_of_improvement",
        "improvement_estimate",
    ),
    ".stages": (
        "SeedStage",
        "Gate",
        "TRANSITIONS",
        "GATE_INTO",
        "ADVANCE_TO",
        "COOLDOWN_CHAIN",
        "PRUNABLE_STAGES",
        "LIVE_STAGES",
        "OCCUPIED_STAGES",
        "BLENDED_STAGES",
        "STATIC_STAGES",
    ),
    ".stage_masks": ("IS_LIVE", "IS_OCCUPIED", "stage_mask"),
    ".context": (
        "ActionSpace",
        "ClockKind",
        "Range",
        "ONE",
        "NONE",
        "ContextSpec",
        "FIXED",
        "PLANNED",
        "VARIED",
        "NAMED_CONTEXTS",
        "RoundContext",
        "PLAIN_ROUND",
        "MemberContexts",
        "MemberTerms",
        "ContextSignals",
        "Candidates",
    ),
    ".slots": (
        "Topology",
        "TOPOLOGIES",
        "slot_id",
        "parse_slot_id",
        "is_slot_id",
        "InjectionSpec",
        "SlotReport",
    ),
    ".streams": (
        "GOLDEN",
        "MIX_1",
        "MIX_2",
        "UInt64Array",
        "mix64",
        "name_word",
        "stream_keys",
        "stream_seed",
        "text_number",
    ),
    ".arrays": (
        "Floats",
        "Doubles",
        "Ints",
        "StructT",
        "map_member_arrays",
        "read_only",
        "read_only_view",
        "Codes",
        "Bools",
        "ArrayStruct",
        "require_equal_lengths",
        "require_choice",
    ),
    ".actions": (
        "LifecycleOp",
        "BlendStyle",
        "AlphaMode",
        "AlphaCurve",
        "TEMPOS",
        "ALPHA_TARGETS",
        "ALPHA_SPEEDS",
        "ActionHead",
        "HEADS_BY_OP",
        "HEAD_CHOICES",
        "NO_SLOT",
        "SLOT_OPS",
        "CLASSIC_OPS",
        "VetoReason",
        "ActionSpec",
        "ActionOutcome",
    ),
    ".masks": ("ActionMasks",),
    ".prices": ("ScoreConstants",),
    ".signals": (
        "HISTORY_LENGTH",
        "NO_BLUEPRINT",
        "PanicKind",
        "CounterfactualGap",
        "GateSignals",
        "Counterfactuals",
        "GovernorVerdicts",
        "SlotReports",
        "TrainingSignals",
    ),
    ".execution": (
        "BootstrapTargets",
        "ActionExecutionResult",
    ),
    ".rewards": (
        "RewardInputs",
        "RewardComponentsTelemetry",
    ),
    ".payloads": (
        "UNSIGNED",
        "Payload",
        "RunStatus",
        "CheckpointReason",
        "RunStarted",
        "RunFinished",
        "CheckpointSaved",
        "CheckpointLoaded",
        "PruneCause",
        "StepCompleted",
        "LastAction",
        "EpisodeCurve",
        "EpisodeOutcome",
        "RoundContexts",
        "SeedGerminated",
        "SeedStageChanged",
        "SeedGateEvaluated",
        "SeedFossilized",
        "SeedPruned",
        "SlotPayload",
        "CounterfactualsMeasured",
        "CounterfactualUnavailable",
        "GovernorPanic",
        "GovernorRollback",
        "LayerGradientStats",
        "PPOUpdateMetrics",
        "PPOUpdated",
        "ActionDistribution",
        "MaskHitRates",
        "RewardSummary",
        "StepPhase",
        "Throughput",
        "PhaseTime",
        "PhaseProfile",
        "AnomalyKind",
        "AnomalyDetected",
        "AnomalyReport",
    ),
    ".records": (
        "PolicyDecision",
        "StepRecord",
        "PlanRecord",
        "Rollout",
        "BatchSummary",
    ),
    ".codec": (
        "MAX_INTEGER_BITS",
        "Json",
        "from_json",
        "read_enum",
        "read_record",
        "to_json",
    ),
    ".telemetry": (
        "QUEUE_SIZE",
        "SCHEMA_VERSION",
        "TelemetryLevel",
        "TelemetryConfig",
        "TelemetryEventType",
        "EVENT_TYPE_OF",
        "TelemetryEvent",
    ),
    ".text": ("visible", "visible_in", "visible_lines"),
    ".protocols": (
        "HostProtocol",
        "RewardProtocol",
        "PolicyProtocol",
        "EngineListener",
        "PlantingPolicy",
        "PlanListener",
        "SinkProtocol",
    ),
}

if TYPE_CHECKING:
    from esper.leyline.actions import ALPHA_SPEEDS as ALPHA_SPEEDS
    from esper.leyline.actions import ALPHA_TARGETS as ALPHA_TARGETS
    from esper.leyline.actions import CLASSIC_OPS as CLASSIC_OPS
    from esper.leyline.actions import HEAD_CHOICES as HEAD_CHOICES
    from esper.leyline.actions import HEADS_BY_OP as HEADS_BY_OP
    from esper.leyline.actions import NO_SLOT as NO_SLOT
    from esper.leyline.actions import SLOT_OPS as SLOT_OPS
    from esper.leyline.actions import TEMPOS as TEMPOS
    from esper.leyline.actions import ActionHead as ActionHead
    from esper.leyline.actions import ActionOutcome as ActionOutcome
    from esper.leyline.actions import ActionSpec as ActionSpec
    from esper.leyline.actions import AlphaCurve as AlphaCurve
    from esper.leyline.actions import AlphaMode as AlphaMode
    from esper.leyline.actions import BlendStyle as BlendStyle
    from esper.leyline.actions import LifecycleOp as LifecycleOp
    from esper.leyline.actions import VetoReason as VetoReason
    from esper.leyline.arrays import ArrayStruct as ArrayStruct
    from esper.leyline.arrays import Bools as Bools
    from esper.leyline.arrays import Codes as Codes
    from esper.leyline.arrays import Doubles as Doubles
    from esper.leyline.arrays import Floats as Floats
    from esper.leyline.arrays import Ints as Ints
    from esper.leyline.arrays import StructT as StructT
    from esper.leyline.arrays import map_member_arrays as map_member_arrays
    from esper.leyline.arrays import read_only as read_only
    from esper.leyline.arrays import read_only_view as read_only_view
    from esper.leyline.arrays import require_choice as require_choice
    from esper.leyline.arrays import require_equal_lengths as require_equal_lengths
    from esper.leyline.codec import MAX_INTEGER_BITS as MAX_INTEGER_BITS
    from esper.leyline.codec import Json as Json
    from esper.leyline.codec import from_json as from_json
    from esper.leyline.codec import read_enum as read_enum
    from esper.leyline.codec import read_record as read_record
    from esper.leyline.codec import to_json as to_json
    from esper.leyline.compute import EXECUTOR_NAMES as EXECUTOR_NAMES
    from esper.leyline.compute import GRAPH_MODES as GRAPH_MODES
    from esper.leyline.compute import KERNEL_MODES as KERNEL_MODES
    from esper.leyline.compute import PLACEMENTS as PLACEMENTS
    from esper.leyline.compute import PRECISIONS as PRECISIONS
    from esper.leyline.compute import PROFILES as PROFILES
    from esper.leyline.compute import ComputeSettings as ComputeSettings
    from esper.leyline.compute import DataPlacement as DataPlacement
    from esper.leyline.compute import ExecutorName as ExecutorName
    from esper.leyline.compute import GraphMode as GraphMode
    from esper.leyline.compute import KernelMode as KernelMode
    from esper.leyline.compute import KernelName as KernelName
    from esper.leyline.compute import Precision as Precision
    from esper.leyline.compute import Profile as Profile
    from esper.leyline.context import FIXED as FIXED
    from esper.leyline.context import NAMED_CONTEXTS as NAMED_CONTEXTS
    from esper.leyline.context import NONE as NONE
    from esper.leyline.context import ONE as ONE
    from esper.leyline.context import PLAIN_ROUND as PLAIN_ROUND
    from esper.leyline.context import PLANNED as PLANNED
    from esper.leyline.context import VARIED as VARIED
    from esper.leyline.context import ActionSpace as ActionSpace
    from esper.leyline.context import Candidates as Candidates
    from esper.leyline.context import ClockKind as ClockKind
    from esper.leyline.context import ContextSignals as ContextSignals
    from esper.leyline.context import ContextSpec as ContextSpec
    from esper.leyline.context import MemberContexts as MemberContexts
    from esper.leyline.context import MemberTerms as MemberTerms
    from esper.leyline.context import Range as Range
    from esper.leyline.context import RoundContext as RoundContext
    from esper.leyline.errors import MAX_SHOWN_CHARS as MAX_SHOWN_CHARS
    from esper.leyline.errors import EsperError as EsperError
    from esper.leyline.errors import IllegalActionError as IllegalActionError
    from esper.leyline.errors import ShapeError as ShapeError
    from esper.leyline.errors import UnknownNameError as UnknownNameError
    from esper.leyline.errors import install_hint as install_hint
    from esper.leyline.errors import parse_error_line as parse_error_line
    from esper.leyline.errors import shorten as shorten
    from esper.leyline.errors import shown as shown
    from esper.leyline.errors import unknown_name as unknown_name
    from esper.leyline.execution import ActionExecutionResult as ActionExecutionResult
    from esper.leyline.execution import BootstrapTargets as BootstrapTargets
    from esper.leyline.lazy import attach as attach
    from esper.leyline.limits import MAX_BATCHES_PER_STEP as MAX_BATCHES_PER_STEP
    from esper.leyline.limits import MAX_COUNT as MAX_COUNT
    from esper.leyline.limits import MAX_EPISODE_LENGTH as MAX_EPISODE_LENGTH
    from esper.leyline.limits import MAX_EPOCHS as MAX_EPOCHS
    from esper.leyline.limits import MAX_MEMBERS as MAX_MEMBERS
    from esper.leyline.limits import MAX_NETWORK_WIDTH as MAX_NETWORK_WIDTH
    from esper.leyline.limits import is_integer as is_integer
    from esper.leyline.limits import require_at_most as require_at_most
    from esper.leyline.limits import require_counts as require_counts
    from esper.leyline.masks import ActionMasks as ActionMasks
    from esper.leyline.optim import OptimConfig as OptimConfig
    from esper.leyline.payloads import UNSIGNED as UNSIGNED
    from esper.leyline.payloads import ActionDistribution as ActionDistribution
    from esper.leyline.payloads import AnomalyDetected as AnomalyDetected
    from esper.leyline.payloads import AnomalyKind as AnomalyKind
    from esper.leyline.payloads import AnomalyReport as AnomalyReport
    from esper.leyline.payloads import CheckpointLoaded as CheckpointLoaded
    from esper.leyline.payloads import CheckpointReason as CheckpointReason
    from esper.leyline.payloads import CheckpointSaved as CheckpointSaved
    from esper.leyline.payloads import CounterfactualsMeasured as CounterfactualsMeasured
    from esper.leyline.payloads import CounterfactualUnavailable as CounterfactualUnavailable
    from esper.leyline.payloads import EpisodeCurve as EpisodeCurve
    from esper.leyline.payloads import EpisodeOutcome as EpisodeOutcome
    from esper.leyline.payloads import GovernorPanic as GovernorPanic
    from esper.leyline.payloads import GovernorRollback as GovernorRollback
    from esper.leyline.payloads import LastAction as LastAction
    from esper.leyline.payloads import LayerGradientStats as LayerGradientStats
    from esper.leyline.payloads import MaskHitRates as MaskHitRates
    from esper.leyline.payloads import Payload as Payload
    from esper.leyline.payloads import PhaseProfile as PhaseProfile
    from esper.leyline.payloads import PhaseTime as PhaseTime
    from esper.leyline.payloads import PPOUpdated as PPOUpdated
    from esper.leyline.payloads import PPOUpdateMetrics as PPOUpdateMetrics
    from esper.leyline.payloads import PruneCause as PruneCause
    from esper.leyline.payloads import RewardSummary as RewardSummary
    from esper.leyline.payloads import RoundContexts as RoundContexts
    from esper.leyline.payloads import RunFinished as RunFinished
    from esper.leyline.payloads import RunStarted as RunStarted
    from esper.leyline.payloads import RunStatus as RunStatus
    from esper.leyline.payloads import SeedFossilized as SeedFossilized
    from esper.leyline.payloads import SeedGateEvaluated as SeedGateEvaluated
    from esper.leyline.payloads import SeedGerminated as SeedGerminated
    from esper.leyline.payloads import SeedPruned as SeedPruned
    from esper.leyline.payloads import SeedStageChanged as SeedStageChanged
    from esper.leyline.payloads import SlotPayload as SlotPayload
    from esper.leyline.payloads import StepCompleted as StepCompleted
    from esper.leyline.payloads import StepPhase as StepPhase
    from esper.leyline.payloads import Throughput as Throughput
    from esper.leyline.prices import ScoreConstants as ScoreConstants
    from esper.leyline.protocols import EngineListener as EngineListener
    from esper.leyline.protocols import HostProtocol as HostProtocol
    from esper.leyline.protocols import PlanListener as PlanListener
    from esper.leyline.protocols import PlantingPolicy as PlantingPolicy
    from esper.leyline.protocols import PolicyProtocol as PolicyProtocol
    from esper.leyline.protocols import RewardProtocol as RewardProtocol
    from esper.leyline.protocols import SinkProtocol as SinkProtocol
    from esper.leyline.records import BatchSummary as BatchSummary
    from esper.leyline.records import PlanRecord as PlanRecord
    from esper.leyline.records import PolicyDecision as PolicyDecision
    from esper.leyline.records import Rollout as Rollout
    from esper.leyline.records import StepRecord as StepRecord
    from esper.leyline.rewards import RewardComponentsTelemetry as RewardComponentsTelemetry
    from esper.leyline.rewards import RewardInputs as RewardInputs
    from esper.leyline.seeds import EVALUATION_SEEDS as EVALUATION_SEEDS
    from esper.leyline.seeds import MAX_SEED as MAX_SEED
    from esper.leyline.seeds import require_evaluation_seeds as require_evaluation_seeds
    from esper.leyline.seeds import require_seed as require_seed
    from esper.leyline.seeds import require_training_seed as require_training_seed
    from esper.leyline.signals import HISTORY_LENGTH as HISTORY_LENGTH
    from esper.leyline.signals import NO_BLUEPRINT as NO_BLUEPRINT
    from esper.leyline.signals import CounterfactualGap as CounterfactualGap
    from esper.leyline.signals import Counterfactuals as Counterfactuals
    from esper.leyline.signals import GateSignals as GateSignals
    from esper.leyline.signals import GovernorVerdicts as GovernorVerdicts
    from esper.leyline.signals import PanicKind as PanicKind
    from esper.leyline.signals import SlotReports as SlotReports
    from esper.leyline.signals import TrainingSignals as TrainingSignals
    from esper.leyline.slots import TOPOLOGIES as TOPOLOGIES
    from esper.leyline.slots import InjectionSpec as InjectionSpec
    from esper.leyline.slots import SlotReport as SlotReport
    from esper.leyline.slots import Topology as Topology
    from esper.leyline.slots import is_slot_id as is_slot_id
    from esper.leyline.slots import parse_slot_id as parse_slot_id
    from esper.leyline.slots import slot_id as slot_id
    from esper.leyline.stage_masks import IS_LIVE as IS_LIVE
    from esper.leyline.stage_masks import IS_OCCUPIED as IS_OCCUPIED
    from esper.leyline.stage_masks import stage_mask as stage_mask
    from esper.leyline.stages import ADVANCE_TO as ADVANCE_TO
    from esper.leyline.stages import BLENDED_STAGES as BLENDED_STAGES
    from esper.leyline.stages import COOLDOWN_CHAIN as COOLDOWN_CHAIN
    from esper.leyline.stages import GATE_INTO as GATE_INTO
    from esper.leyline.stages import LIVE_STAGES as LIVE_STAGES
    from esper.leyline.stages import OCCUPIED_STAGES as OCCUPIED_STAGES
    from esper.leyline.stages import PRUNABLE_STAGES as PRUNABLE_STAGES
    from esper.leyline.stages import STATIC_STAGES as STATIC_STAGES
    from esper.leyline.stages import TRANSITIONS as TRANSITIONS
    from esper.leyline.stages import Gate as Gate
    from esper.leyline.stages import SeedStage as SeedStage
    from esper.leyline.statistics import LEVEL as LEVEL
    from esper.leyline.statistics import RESAMPLES as RESAMPLES
    from esper.leyline.statistics import TRIMMED as TRIMMED
    from esper.leyline.statistics import Estimate as Estimate
    from esper.leyline.statistics import Interval as Interval
    from esper.leyline.statistics import PairedDifference as PairedDifference
    from esper.leyline.statistics import improvement_estimate as improvement_estimate
    from esper.leyline.statistics import interquartile_estimate as interquartile_estimate
    from esper.leyline.statistics import interquartile_mean as interquartile_mean
    from esper.leyline.statistics import mean_estimate as mean_estimate
    from esper.leyline.statistics import paired_difference as paired_difference
    from esper.leyline.statistics import probability_of_improvement as probability_of_improvement
    from esper.leyline.statistics import student_estimate as student_estimate
    from esper.leyline.statistics import t_interval as t_interval
    from esper.leyline.stopping import STOP_SIGNALS as STOP_SIGNALS
    from esper.leyline.stopping import second_stop_handler as second_stop_handler
    from esper.leyline.streams import GOLDEN as GOLDEN
    from esper.leyline.streams import MIX_1 as MIX_1
    from esper.leyline.streams import MIX_2 as MIX_2
    from esper.leyline.streams import UInt64Array as UInt64Array
    from esper.leyline.streams import mix64 as mix64
    from esper.leyline.streams import name_word as name_word
    from esper.leyline.streams import stream_keys as stream_keys
    from esper.leyline.streams import stream_seed as stream_seed
    from esper.leyline.streams import text_number as text_number
    from esper.leyline.telemetry import EVENT_TYPE_OF as EVENT_TYPE_OF
    from esper.leyline.telemetry import QUEUE_SIZE as QUEUE_SIZE
    from esper.leyline.telemetry import SCHEMA_VERSION as SCHEMA_VERSION
    from esper.leyline.telemetry import TelemetryConfig as TelemetryConfig
    from esper.leyline.telemetry import TelemetryEvent as TelemetryEvent
    from esper.leyline.telemetry import TelemetryEventType as TelemetryEventType
    from esper.leyline.telemetry import TelemetryLevel as TelemetryLevel
    from esper.leyline.text import visible as visible
    from esper.leyline.text import visible_in as visible_in
    from esper.leyline.text import visible_lines as visible_lines
    from esper.leyline.torch_switches import put_back as put_back
    from esper.leyline.torch_switches import read_switches as read_switches
    from esper.leyline.user_errors import MAX_ERROR_CHARS as MAX_ERROR_CHARS
    from esper.leyline.user_errors import count_as_library as count_as_library
    from esper.leyline.user_errors import exit_error as exit_error
    from esper.leyline.user_errors import format_error as format_error
    from esper.leyline.user_errors import in_user_code as in_user_code
    from esper.leyline.user_errors import is_out_of_memory as is_out_of_memory
    from esper.leyline.user_errors import user_callback as user_callback
    from esper.leyline.user_errors import user_code as user_code
else:
    __getattr__, __dir__, __all__ = attach(__name__, _NAMES_IN)
