"""Shared contracts: enums, records and the protocols between packages.

Imports nothing else of esper and no torch. Names load when first used (PEP 562), so importing
the package costs nothing. Helpers and limits are imported from their modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.leyline.lazy import attach

if TYPE_CHECKING:
    from esper.leyline.actions import ALPHA_SPEEDS as ALPHA_SPEEDS
    from esper.leyline.actions import ALPHA_TARGETS as ALPHA_TARGETS
    from esper.leyline.actions import CLASSIC_OPS as CLASSIC_OPS
    from esper.leyline.actions import HEAD_CHOICES as HEAD_CHOICES
    from esper.leyline.actions import HEADS_BY_OP as HEADS_BY_OP
    from esper.leyline.actions import NO_SLOT as NO_SLOT
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
    from esper.leyline.arrays import Floats as Floats
    from esper.leyline.codec import from_json as from_json
    from esper.leyline.compute import ComputeSettings as ComputeSettings
    from esper.leyline.context import FIXED as FIXED
    from esper.leyline.context import NAMED_CONTEXTS as NAMED_CONTEXTS
    from esper.leyline.context import PLANNED as PLANNED
    from esper.leyline.context import VARIED as VARIED
    from esper.leyline.context import Candidates as Candidates
    from esper.leyline.context import ContextSignals as ContextSignals
    from esper.leyline.context import ContextSpec as ContextSpec
    from esper.leyline.context import MemberContexts as MemberContexts
    from esper.leyline.context import MemberTerms as MemberTerms
    from esper.leyline.context import Range as Range
    from esper.leyline.context import RoundContext as RoundContext
    from esper.leyline.errors import EsperError as EsperError
    from esper.leyline.errors import IllegalActionError as IllegalActionError
    from esper.leyline.errors import ShapeError as ShapeError
    from esper.leyline.errors import UnknownNameError as UnknownNameError
    from esper.leyline.execution import ActionExecutionResult as ActionExecutionResult
    from esper.leyline.execution import BootstrapTargets as BootstrapTargets
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
    from esper.leyline.signals import HISTORY_LENGTH as HISTORY_LENGTH
    from esper.leyline.signals import NO_BLUEPRINT as NO_BLUEPRINT
    from esper.leyline.signals import CounterfactualGap as CounterfactualGap
    from esper.leyline.signals import Counterfactuals as Counterfactuals
    from esper.leyline.signals import GateSignals as GateSignals
    from esper.leyline.signals import GovernorVerdicts as GovernorVerdicts
    from esper.leyline.signals import PanicKind as PanicKind
    from esper.leyline.signals import SlotReports as SlotReports
    from esper.leyline.signals import TrainingSignals as TrainingSignals
    from esper.leyline.slots import InjectionSpec as InjectionSpec
    from esper.leyline.slots import SlotReport as SlotReport
    from esper.leyline.slots import Topology as Topology
    from esper.leyline.slots import parse_slot_id as parse_slot_id
    from esper.leyline.slots import slot_id as slot_id
    from esper.leyline.stage_masks import IS_LIVE as IS_LIVE
    from esper.leyline.stage_masks import IS_OCCUPIED as IS_OCCUPIED
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
    from esper.leyline.statistics import Estimate as Estimate
    from esper.leyline.statistics import Interval as Interval
    from esper.leyline.statistics import PairedDifference as PairedDifference
    from esper.leyline.streams import GOLDEN as GOLDEN
    from esper.leyline.streams import MIX_1 as MIX_1
    from esper.leyline.streams import mix64 as mix64
    from esper.leyline.streams import stream_keys as stream_keys
    from esper.leyline.streams import stream_seed as stream_seed
    from esper.leyline.streams import text_number as text_number
    from esper.leyline.telemetry import SCHEMA_VERSION as SCHEMA_VERSION
    from esper.leyline.telemetry import TelemetryConfig as TelemetryConfig
    from esper.leyline.telemetry import TelemetryEvent as TelemetryEvent
    from esper.leyline.telemetry import TelemetryEventType as TelemetryEventType
    from esper.leyline.telemetry import TelemetryLevel as TelemetryLevel
else:
    __getattr__, __dir__, __all__ = attach(__name__)
