"""`VectorizedPPOTrainer`: the training loop of rollout, update and hooks.

trainer = VectorizedPPOTrainer(engine, client, rounds=100)
history = trainer.run()
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import perf_counter
from typing import Protocol

from esper.leyline.payloads import PPOUpdateMetrics
from esper.leyline.protocols import EngineListener
from esper.leyline.records import Rollout
from esper.leyline.telemetry import TelemetryConfig
from esper.simic.client import SimicClient
from esper.simic.telemetry.gradients import inspect_network
from esper.simic.telemetry.listener import ListenerGroup, TelemetryListener
from esper.simic.training.history import ActionTally, RoundRecord
from esper.simic.training.schedules import calculate_entropy_anneal_steps
from esper.tamiyo.network import PolicyState
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.env_factory import configure_slot_telemetry

EngineState = dict[str, int | str]


class RoundHook(Protocol):
    """Called after every round, for checkpoints, early stopping (raise) or plots."""

    def __call__(self, trainer: VectorizedPPOTrainer, record: RoundRecord, /) -> None: ...


class VectorizedPPOTrainer:
    """Runs the rounds of a training run."""

    def __init__(
        self,
        engine: VectorizedEngine,
        client: SimicClient,
        rounds: int,
        listeners: Sequence[EngineListener] = (),
        hooks: Sequence[RoundHook] = (),
    ) -> None:
        """`rounds`: total rounds of the run, including those the engine has already done.

        `listeners` are notified of every rollout; `TelemetryListener`s of updates as well.
        """
        self.engine = engine
        self.client = client
        self.rounds = rounds
        self.hooks: tuple[RoundHook, ...] = tuple(hooks)
        self.history: list[RoundRecord] = []
        self.listeners = tuple(it for it in listeners if isinstance(it, TelemetryListener))
        """Telemetry listeners; also notified of updates."""
        self._tally = ActionTally()
        self._all_listeners = ListenerGroup([self._tally, *listeners])

    def run(self, until: int | None = None) -> list[RoundRecord]:
        """Train all rounds, or up to round `until`; returns the records of all rounds."""
        last = self.rounds if until is None else min(until, self.rounds)
        self._set_run_updates()
        while self.engine.round < last:
            self._configure_telemetry()
            rollout = self.run_rollout()

            began = perf_counter()
            metrics = self.client.update(rollout)
            seconds = perf_counter() - began
            assert metrics is not None  # `make_trainer` gives a client that learns

            self._report(rollout.round_index, metrics, seconds)
            record = self._record(rollout, metrics, seconds)
            self.history.append(record)
            for hook in self.hooks:
                hook(self, record)
        return self.history

    # ---- what `DistributedTrainer` changes ------------------------------------------------------

    @property
    def members(self) -> int:
        """Members that the run trains."""
        return self.engine.env.members

    def share_progress(self) -> None:
        """Give the other ranks what this one resumed from."""

    def engine_state(self) -> EngineState:
        """State of the engine for a checkpoint."""
        return self.engine.state_dict()

    def load_engine_state(self, state: EngineState) -> None:
        """Resume from `engine_state`; raises if the run differs."""
        self.engine.load_state_dict(state)

    def run_rollout(self) -> Rollout[PolicyState]:
        """The next rollout, all listeners notified."""
        return self.engine.run_rollout(self.client, self._all_listeners)

    def _record(
        self, rollout: Rollout[PolicyState], metrics: PPOUpdateMetrics, seconds: float
    ) -> RoundRecord:
        return self._tally.record(rollout, metrics, self.engine.round * self.members, seconds)

    # ---- details --------------------------------------------------------------------------------

    def _set_run_updates(self) -> None:
        """Set the agent's total updates, so that `steps="run"` schedules end with the run."""
        engine, agent, length = self.engine, self.client.agent, self.engine.spec.episode_length
        rollout_steps = engine.config.rollout_steps or length
        per_rollout = self.client.updates_per_rollout
        per_round = per_rollout * math.ceil(length / rollout_steps)
        members, rounds_left = engine.env.members, self.rounds - engine.round
        left = calculate_entropy_anneal_steps(rounds_left * members, members, per_round)
        left -= per_rollout * (engine.step // rollout_steps)  # of the episode in progress
        agent.run_updates = agent.updates_done + left

    def _configure_telemetry(self) -> None:
        """Set slot telemetry to the listeners' level and pass them the next learning rate and
        entropy coefficient."""
        if self.listeners:
            level = max(listener.level for listener in self.listeners)
            configure_slot_telemetry(self.engine.slot_events, TelemetryConfig(level=level))
        agent = self.client.agent
        for listener in self.listeners:
            listener.set_learner(agent.learning_rate, agent.entropy_coef)

    def _report(self, round_index: int, metrics: PPOUpdateMetrics, seconds: float) -> None:
        """Notify telemetry listeners of the update; they may raise their level on anomalies."""
        network = self.client.agent.network
        for listener in self.listeners:
            health = inspect_network(network, listener.level)
            listener.on_update(round_index, metrics, seconds, health)
