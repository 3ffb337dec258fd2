"""Telemetry levels, event types and the event record.

`TelemetryEventType` is the one table of events: name, payload class, minimum level.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Final

from esper.leyline import payloads as p
from esper.leyline.codec import Json, to_json
from esper.leyline.errors import EsperError
from esper.leyline.records import BatchSummary, LearningRates, MemberRestarted

SCHEMA_VERSION: Final = 1
"""Increase when an event type or payload changes so that older readers would misread it."""


QUEUE_SIZE: Final = 8192
"""Default of `TelemetryConfig.queue_size`."""


class TelemetryLevel(IntEnum):
    """How much is recorded; each level includes the ones below it."""

    OFF = 0
    MINIMAL = 1
    """Runs, rounds, episodes, errors and anomalies."""
    NORMAL = 2
    """Also seeds, the learner, rewards and speed."""
    DEBUG = 3
    """Also every step, every gate, per-layer gradients."""


@dataclass(frozen=True, slots=True)
class TelemetryConfig:
    """Settings of telemetry. They never change what a run computes."""

    level: TelemetryLevel = TelemetryLevel.NORMAL
    """Recording level."""
    step_events: bool = False
    """Record STEP_COMPLETED and LAST_ACTION at every level except OFF."""
    escalation_level: TelemetryLevel = TelemetryLevel.DEBUG
    """Level to raise recording to after an anomaly."""
    escalation_rounds: int = 5
    """Rounds until the level is restored; 0 disables escalation."""
    queue_size: int = QUEUE_SIZE
    """Capacity of the writer's queue; events beyond it are dropped and counted."""

    def __post_init__(self) -> None:
        if self.escalation_rounds < 0:
            raise EsperError(f"escalation_rounds={self.escalation_rounds}: must be 0 or more")
        if self.queue_size < 1:
            raise EsperError(f"queue_size={self.queue_size}: must be 1 or more")


class TelemetryEventType(Enum):
    """Every event: its payload class and minimum level."""

    RUN_STARTED = (p.RunStarted, TelemetryLevel.MINIMAL)
    RUN_FINISHED = (p.RunFinished, TelemetryLevel.MINIMAL)
    ROUND_COMPLETED = (BatchSummary, TelemetryLevel.MINIMAL)
    EPISODE_OUTCOME = (p.EpisodeOutcome, TelemetryLevel.MINIMAL)
    ROUND_CONTEXTS = (p.RoundContexts, TelemetryLevel.NORMAL)
    LEARNING_RATES = (LearningRates, TelemetryLevel.NORMAL)
    EPISODE_CURVE = (p.EpisodeCurve, TelemetryLevel.NORMAL)
    STEP_COMPLETED = (p.StepCompleted, TelemetryLevel.DEBUG)
    LAST_ACTION = (p.LastAction, TelemetryLevel.DEBUG)
    SEED_GERMINATED = (p.SeedGerminated, TelemetryLevel.NORMAL)
    SEED_STAGE_CHANGED = (p.SeedStageChanged, TelemetryLevel.NORMAL)
    SEED_GATE_EVALUATED = (p.SeedGateEvaluated, TelemetryLevel.DEBUG)
    SEED_FOSSILIZED = (p.SeedFossilized, TelemetryLevel.NORMAL)
    SEED_PRUNED = (p.SeedPruned, TelemetryLevel.NORMAL)
    MEMBER_RESTARTED = (MemberRestarted, TelemetryLevel.NORMAL)
    COUNTERFACTUALS_MEASURED = (p.CounterfactualsMeasured, TelemetryLevel.NORMAL)
    COUNTERFACTUAL_UNAVAILABLE = (p.CounterfactualUnavailable, TelemetryLevel.DEBUG)
    PPO_UPDATED = (p.PPOUpdated, TelemetryLevel.NORMAL)
    ACTION_DISTRIBUTION = (p.ActionDistribution, TelemetryLevel.NORMAL)
    MASK_HIT_RATES = (p.MaskHitRates, TelemetryLevel.NORMAL)
    REWARD_SUMMARY = (p.RewardSummary, TelemetryLevel.NORMAL)
    THROUGHPUT = (p.Throughput, TelemetryLevel.NORMAL)
    PHASE_PROFILE = (p.PhaseProfile, TelemetryLevel.NORMAL)
    GOVERNOR_PANIC = (p.GovernorPanic, TelemetryLevel.MINIMAL)
    GOVERNOR_ROLLBACK = (p.GovernorRollback, TelemetryLevel.MINIMAL)
    ANOMALY_DETECTED = (p.AnomalyDetected, TelemetryLevel.MINIMAL)
    CHECKPOINT_SAVED = (p.CheckpointSaved, TelemetryLevel.MINIMAL)
    CHECKPOINT_LOADED = (p.CheckpointLoaded, TelemetryLevel.MINIMAL)

    def __init__(self, payload_class: type[p.Payload], level: TelemetryLevel) -> None:
        self.payload_class = payload_class
        self.level = level

    def recorded_at(self, level: TelemetryLevel) -> bool:
        """Whether a run at `level` records events of this type."""
        return level >= self.level


EVENT_TYPE_OF: Final[Mapping[type[p.Payload], TelemetryEventType]] = MappingProxyType(
    {kind.payload_class: kind for kind in TelemetryEventType}
)
"""Payload class -> event type."""


@dataclass(frozen=True, slots=True)
class TelemetryEvent:
    """One event with its time and place.

    >>> event = TelemetryEvent.of(p.CheckpointLoaded("runs/a/round-7", rounds_done=7))
    >>> event.type.name
    'CHECKPOINT_LOADED'
    """

    type: TelemetryEventType
    payload: p.Payload
    round_index: int | None = None
    """None outside a round."""
    step: int | None = None
    """Step of the episode; None for events of a round or a run."""
    env_id: int | None = None
    """Member the event is about; None if the payload has columns over members."""
    device: str | None = None
    wall_time: float = field(default_factory=time.time)
    """Seconds since 1970, for display only."""
    schema_version: int = SCHEMA_VERSION

    @classmethod
    def of(
        cls,
        payload: p.Payload,
        round_index: int | None = None,
        step: int | None = None,
        env_id: int | None = None,
        device: str | None = None,
    ) -> TelemetryEvent:
        """Wrap a payload; the event type follows from its class."""
        return cls(EVENT_TYPE_OF[type(payload)], payload, round_index, step, env_id, device)

    def to_json_dict(self) -> dict[str, Json]:
        """Convert to strict JSON data, without NaN literals (see `codec`)."""
        return {f.name: to_json(getattr(self, f.name)) for f in fields(self)}
