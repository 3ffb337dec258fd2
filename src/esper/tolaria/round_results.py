"""Results of rounds and runs under policies that do not learn, for `train` and `compare`.

Shape letters: T steps, E members, S slots.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from esper.leyline.arrays import ArrayStruct, Doubles, Ints
from esper.leyline.payloads import EpisodeOutcome
from esper.leyline.prices import ScoreConstants
from esper.leyline.protocols import EngineListener
from esper.leyline.records import StepRecord
from esper.tasks.scoring import charge_length
from esper.tolaria.device_info import describe_device
from esper.tolaria.engine import VectorizedEngine


@dataclass(frozen=True, slots=True, eq=False)
class HostContexts(ArrayStruct):
    """Contexts that hosts met."""

    price_N: Doubles
    """Factor on the price of growth."""
    learning_rate_N: Doubles
    """Factor on the learning rates."""
    params_cap_N: Doubles
    """Most parameters; inf: no cap."""
    macs_cap_N: Doubles
    """Most multiply-accumulates; inf: no cap."""
    budget_N: Doubles
    """Compute budget in training runs of the host."""
    groups_N: Ints
    """Number of classes."""

    @classmethod
    def of(cls, engine: VectorizedEngine) -> HostContexts:
        """Contexts of the members in the engine's last round."""
        drawn, context = engine.context.members, engine.context
        members = engine.env.members
        return cls(
            price_N=drawn.price_E,
            learning_rate_N=drawn.learning_rate_E,
            params_cap_N=drawn.params_cap_E,
            macs_cap_N=drawn.macs_cap_E,
            budget_N=np.full(members, context.round.budget),
            groups_N=np.full(members, context.chance.groups, dtype=np.int64),
        )


@dataclass(frozen=True, slots=True, eq=False)
class RoundResult:
    """Result of one round for all members."""

    outcome: EpisodeOutcome
    test_E: Doubles
    """Accuracy on the test data."""
    accuracy_TE: Doubles
    """On `val_score`; row 0 is the fresh host."""
    score_TE: Doubles
    contexts: HostContexts
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class RunResult:
    """Results of all rounds of a run, with its settings and device."""

    task: str
    """Name of the task."""
    rounds: list[RoundResult]
    slots: tuple[str, ...]
    blueprints: tuple[str, ...]
    host_params: int
    host_macs: int
    executor: str
    executor_reason: str
    profile: str
    machine: dict[str, str]
    member_steps_per_second: float
    """Over all rounds, without the first step of each; NaN if there is no other."""
    telemetry: str
    """Summary of the recorded events; empty if telemetry is off."""


@dataclass(slots=True)
class StepTimer(EngineListener):
    """Listener that records the time of each step."""

    step_seconds: list[float] = field(default_factory=list)
    """Duration of each step of the run, without the first of each round."""
    _last_end: float | None = None

    def on_round_start(self, round_index: int, members: int) -> None:
        """The first step includes set-up: it is not timed."""
        self._last_end = None

    def on_step(self, record: StepRecord) -> None:
        """Record the time since the previous step."""
        now = time.monotonic()
        if self._last_end is not None:
            self.step_seconds.append(now - self._last_end)
        self._last_end = now


def run_round(
    engine: VectorizedEngine, policy: Any, listener: EngineListener | None = None
) -> RoundResult:
    """Run one round."""
    rollout = engine.run_rollout(policy, listener)
    return RoundResult(
        outcome=rollout.outcome,
        test_E=engine.test(),
        accuracy_TE=engine.episode.score_accuracy_TE.copy(),
        score_TE=engine.episode.score_TE.copy(),
        contexts=HostContexts.of(engine),
        seconds=rollout.seconds,
    )


def charge_for_length(result: RoundResult, length: float, constants: ScoreConstants) -> RoundResult:
    """Charge the FLOPs of episodes `length` times as long as the task's to the score."""
    outcome, price_E = result.outcome, result.contexts.price_N
    flops_E = outcome.flops_ratio_E
    score_E, flops_ratio_E = charge_length(outcome.score_E, flops_E, length, constants, price_E)
    score_TE, _ = charge_length(result.score_TE, flops_E, length, constants, price_E)
    outcome = replace(outcome, score_E=score_E, flops_ratio_E=flops_ratio_E)
    return replace(result, outcome=outcome, score_TE=score_TE)


def make_run_result(
    engine: VectorizedEngine, rounds: list[RoundResult], timer: StepTimer, telemetry: str
) -> RunResult:
    """Build the result of a run; `telemetry`: summary of its events."""
    choice = engine.env.model.choice
    assert choice is not None  # set by the first forward pass
    spent = sum(timer.step_seconds)
    rate = engine.env.members * len(timer.step_seconds) / spent if spent > 0 else float("nan")
    return RunResult(
        task=engine.spec.name,
        rounds=rounds,
        slots=engine.env.model.slots,
        blueprints=engine.env.model.blueprints,
        host_params=engine.episode.host_params,
        host_macs=engine.episode.host_macs,
        executor=choice.executor.name,
        executor_reason=choice.reason,
        profile=engine.config.profile,
        machine=describe_device(engine.device),
        member_steps_per_second=rate,
        telemetry=telemetry,
    )
