"""Creation and reset of `ParallelEnvState`, and slot telemetry callbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from esper.kasmina.lifecycle.arguments import as_integers
from esper.kasmina.training.scaling import MemberScaler
from esper.leyline.arrays import Ints
from esper.leyline.compute import ExecutorName
from esper.leyline.errors import EsperError
from esper.leyline.payloads import SlotPayload
from esper.leyline.protocols import EngineListener, PlantingPolicy, PolicyProtocol
from esper.leyline.signals import NO_BLUEPRINT
from esper.leyline.telemetry import TelemetryConfig, TelemetryEventType
from esper.tamiyo.signals import SignalConfig, SignalTracker
from esper.tasks.objectives import Objective
from esper.tasks.spec import TaskSpec
from esper.tolaria.env_state import ParallelEnvState
from esper.tolaria.governor import GovernorConfig, TolariaGovernor, default_governor
from esper.tolaria.slot_events import SlotEventCollector


def create_env_state(
    spec: TaskSpec,
    members: int,
    seed: int,
    device: torch.device,
    executor: ExecutorName = "auto",
    signals: SignalConfig | None = None,
    governor: GovernorConfig | None = None,
    fp16: bool = False,
    stream: torch.cuda.Stream | None = None,
    objective: Objective | None = None,
) -> ParallelEnvState:
    """Create the members of a task, with their signal tracker, governor and loss scaler.

    `objective`: the task's own loss and metric; None: cross-entropy.
    """
    population = spec.population(members, seed, device, executor)
    if objective is not None:
        population.loss, population.count_correct = objective.loss, objective.count_correct
    return ParallelEnvState(
        model=population,
        signal_tracker=SignalTracker(members, signals or SignalConfig()),
        governor=TolariaGovernor(population, spec.chance, governor or default_governor(spec)),
        scaler=MemberScaler(members, device) if fp16 else None,
        stream=stream,
    )


def reset_env_state(state: ParallelEnvState, round_index: int, client: PolicyProtocol[Any]) -> None:
    """Reset members to fresh hosts of the round; plants seeds if the policy asks for them."""
    population = state.model
    population.reset(round_index)
    state.signal_tracker.reset()
    state.zero_accumulators()
    if state.scaler is not None:
        state.scaler.reset()
    state.reset_lstm_hidden(client)
    if isinstance(client, PlantingPolicy):
        wanted_ES = client.planted(population.members, population.slots, population.blueprints)
        _plant(state, as_integers("planted blueprint", np.asarray(wanted_ES)))


def _plant(state: ParallelEnvState, blueprint_ES: Ints) -> None:
    """Plant permanent seeds, one call per slot and blueprint."""
    population = state.model
    shape = (population.members, len(population.slots))
    if blueprint_ES.shape != shape:
        raise EsperError(
            f"planted topology of shape {blueprint_ES.shape}: expected {shape}, members x slots"
        )
    for slot in range(shape[1]):
        for kind in np.unique(blueprint_ES[:, slot]):
            if kind != NO_BLUEPRINT:
                population.plant(np.flatnonzero(blueprint_ES[:, slot] == kind), slot, int(kind))


def make_telemetry_callback(
    listener: EngineListener, round_index: int, step: int
) -> Callable[[SlotPayload], None]:
    """Return a callback that forwards slot events to the listener with round and step."""

    def notify(payload: SlotPayload) -> None:
        listener.on_slot_events(round_index, step, payload)

    return notify


def configure_slot_telemetry(collector: SlotEventCollector, config: TelemetryConfig) -> None:
    """Collect gate events only if the telemetry level records them; never changes the run."""
    collector.gate_events = TelemetryEventType.SEED_GATE_EVALUATED.recorded_at(config.level)
