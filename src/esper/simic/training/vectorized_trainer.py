"""How a controller is trained: rollout, update, emit; round after round.

trainer = VectorizedPPOTrainer(engine, client, rounds=100)
history = trainer.run()
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import perf_counter
from typing import Protocol

from esper.leyline.errors import EsperError
from esper.leyline.payloads import PPOUpdateMetrics
from esper.leyline.protocols import EngineListener
from esper.leyline.telemetry import TelemetryConfig
from esper.simic.client import ActingMode, SimicClient
from esper.simic.telemetry.inspection import inspect_network
from esper.simic.telemetry.listener import ListenerGroup, TelemetryListener
from esper.simic.training.history import ActionTally, RoundRecord
from esper.simic.training.schedules import calculate_entropy_anneal_steps
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.env_factory import configure_slot_telemetry


class RoundHook(Protocol):
    """Called after every round: checkpoints, early stops (raise), pictures while it runs."""

    def __call__(self, trainer: VectorizedPPOTrainer, record: RoundRecord, /) -> None: ...


class VectorizedPPOTrainer:
    """Owns the rounds of a run. Engine, client and listeners are given to it."""

    def __init__(
        self,
        engine: VectorizedEngine,
        client: SimicClient,
        rounds: int,
        listeners: Sequence[EngineListener] = (),
        hooks: Sequence[RoundHook] = (),
    ) -> None:
        """`rounds`: of the whole run; an engine with some of them done does the rest.

        `listeners` hear every rollout; `TelemetryListener`s among them hear updates as well.
        """
        if rounds < 1:
            raise EsperError(f"rounds={rounds}: must be 1 or more")
        if client.mode is not ActingMode.LEARN:
            raise EsperError(
                f"client in mode {client.mode.value!r}: a trainer needs one that learns "
                f"({ActingMode.LEARN.value!r})"
            )
        self.engine = engine
        self.client = client
        self.rounds = rounds
        self.hooks = tuple(hooks)
        self.history: list[RoundRecord] = []
        self.listeners = tuple(it for it in listeners if isinstance(it, TelemetryListener))
        """Those that also hear updates."""
        self._tally = ActionTally()
        self._all_listeners = ListenerGroup([self._tally, *listeners])

    def run(self, until: int | None = None) -> list[RoundRecord]:
        """Train until all rounds are done, or `until` of them; a record of each."""
        last = self.rounds if until is None else min(until, self.rounds)
        self._set_run_updates()
        while self.engine.round < last:
            self._announce()
            rollout = self.engine.run_rollout(self.client, self._all_listeners)

            began = perf_counter()
            metrics = self.client.update(rollout)
            seconds = perf_counter() - began
            assert metrics is not None  # the client learns: checked at the start

            self._report(rollout.round_index, metrics, seconds)
            episodes = self.engine.round * self.engine.env.members
            record = self._tally.record(rollout, metrics, episodes, seconds)
            self.history.append(record)
            for hook in self.hooks:
                hook(self, record)
        return self.history

    def _set_run_updates(self) -> None:
        """Schedules over the run end with it, with however many updates a round it goes on."""
        engine, agent, length = self.engine, self.client.agent, self.engine.spec.episode_length
        rollout_steps = engine.config.rollout_steps or length
        per_rollout = self.client.updates_per_rollout
        per_round = per_rollout * math.ceil(length / rollout_steps)
        members, rounds_left = engine.env.members, self.rounds - engine.round
        left = calculate_entropy_anneal_steps(rounds_left * members, members, per_round)
        left -= per_rollout * (engine.step // rollout_steps)  # of an episode under way
        agent.run_updates = agent.updates_done + left

    def _announce(self) -> None:
        """Tell listeners what the next update will be set to; show them slots as closely as they
        record."""
        if self.listeners:
            level = max(listener.level for listener in self.listeners)
            configure_slot_telemetry(self.engine.slot_events, TelemetryConfig(level=level))
        agent = self.client.agent
        for listener in self.listeners:
            listener.set_learner(agent.learning_rate, agent.entropy_coef)

    def _report(self, round_index: int, metrics: PPOUpdateMetrics, seconds: float) -> None:
        """Tell listeners of the update; they look for anomalies and may record more."""
        network = self.client.agent.network
        for listener in self.listeners:
            health = inspect_network(network, listener.level)
            listener.on_update(round_index, metrics, seconds, health)
