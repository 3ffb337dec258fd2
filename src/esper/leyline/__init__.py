"""Shared contracts: enums, records and the protocols between packages.

Imports nothing else of esper and no torch. Here is what hosts, policies, rewards, contexts and
sinks of your own need; the rest is imported from its module. Names load when first used (PEP 562),
so importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.leyline.lazy import attach

if TYPE_CHECKING:
    from esper.leyline.actions import ActionHead as ActionHead
    from esper.leyline.actions import ActionOutcome as ActionOutcome
    from esper.leyline.actions import ActionSpec as ActionSpec
    from esper.leyline.actions import AlphaCurve as AlphaCurve
    from esper.leyline.actions import BlendStyle as BlendStyle
    from esper.leyline.actions import LifecycleOp as LifecycleOp
    from esper.leyline.actions import VetoReason as VetoReason
    from esper.leyline.context import FIXED as FIXED
    from esper.leyline.context import PLANNED as PLANNED
    from esper.leyline.context import VARIED as VARIED
    from esper.leyline.context import ContextSpec as ContextSpec
    from esper.leyline.context import Range as Range
    from esper.leyline.errors import EsperError as EsperError
    from esper.leyline.execution import ActionExecutionResult as ActionExecutionResult
    from esper.leyline.masks import ActionMasks as ActionMasks
    from esper.leyline.payloads import AnomalyReport as AnomalyReport
    from esper.leyline.payloads import LayerGradientStats as LayerGradientStats
    from esper.leyline.prices import ScoreConstants as ScoreConstants
    from esper.leyline.protocols import EngineListener as EngineListener
    from esper.leyline.protocols import HostProtocol as HostProtocol
    from esper.leyline.protocols import PlantingPolicy as PlantingPolicy
    from esper.leyline.protocols import PolicyProtocol as PolicyProtocol
    from esper.leyline.protocols import RewardProtocol as RewardProtocol
    from esper.leyline.protocols import SinkProtocol as SinkProtocol
    from esper.leyline.records import BatchSummary as BatchSummary
    from esper.leyline.records import PolicyDecision as PolicyDecision
    from esper.leyline.records import Rollout as Rollout
    from esper.leyline.records import StepRecord as StepRecord
    from esper.leyline.rewards import RewardComponentsTelemetry as RewardComponentsTelemetry
    from esper.leyline.rewards import RewardInputs as RewardInputs
    from esper.leyline.signals import GateSignals as GateSignals
    from esper.leyline.signals import SlotReports as SlotReports
    from esper.leyline.signals import TrainingSignals as TrainingSignals
    from esper.leyline.slots import InjectionSpec as InjectionSpec
    from esper.leyline.slots import Topology as Topology
    from esper.leyline.stages import SeedStage as SeedStage
    from esper.leyline.telemetry import TelemetryConfig as TelemetryConfig
    from esper.leyline.telemetry import TelemetryEvent as TelemetryEvent
    from esper.leyline.telemetry import TelemetryEventType as TelemetryEventType
    from esper.leyline.telemetry import TelemetryLevel as TelemetryLevel
else:
    __getattr__, __dir__, __all__ = attach(__name__)
