"""Protocols between packages: hosts, rewards, policies, listeners, telemetry sinks.

Shape letters: E members, S slots, T steps. No implementation lives here; `EngineListener`'s and
`SinkProtocol`'s must never change what a run computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from esper.leyline.arrays import Bools, Doubles, Ints
    from esper.leyline.masks import ActionMasks
    from esper.leyline.payloads import PPOUpdateMetrics, SlotPayload
    from esper.leyline.records import PlanRecord, PolicyDecision, Rollout, StepRecord
    from esper.leyline.rewards import RewardComponentsTelemetry, RewardInputs
    from esper.leyline.signals import TrainingSignals
    from esper.leyline.slots import InjectionSpec, Topology
    from esper.leyline.telemetry import TelemetryEvent

_StateT = TypeVar("_StateT")


@runtime_checkable
class HostProtocol(Protocol):
    """A network that seeds can be inserted into: an `nn.Module` made of a chain of segments.

    Written for ONE model; the population stacks it. Kasmina never looks inside a segment.
    """

    @property
    def topology(self) -> Topology:
        """Kind of network; decides which blueprints fit."""
        ...

    def segments(self) -> Sequence[nn.Module]:
        """Segments in execution order, each mapping one tensor to one tensor; called at setup."""
        ...

    def injection_specs(self) -> tuple[InjectionSpec, ...]:
        """The S slots of the host in execution order; called at setup."""
        ...

    def forward(self, x: Tensor) -> Tensor:
        """Run all segments without seeds: `x` `[B, ...]` to logits `[B, ...]`."""
        ...


@runtime_checkable
class RewardProtocol(Protocol):
    """A reward: any callable of this signature, a plain function included."""

    def __call__(self, inputs: RewardInputs, /) -> tuple[Doubles, RewardComponentsTelemetry]:
        """Return the reward `[E]` and its components, which sum to it exactly.

        Called by the policy client once a step, from `store`. It may keep state per member;
        `inputs.step == 0` starts a new episode.
        """
        ...


@runtime_checkable
class PolicyProtocol(Protocol[_StateT]):
    """Decides for all members at once; driven by the engine.

    Order of calls in a round: `initial_state`; `act`, `store` for each decision of the plan phase
    (if there is one) and for each step; `reset_state` for members that were rolled back; `update`
    after the rollout (called by the trainer or by `engine.train`).
    """

    def initial_state(self, members: int) -> _StateT:
        """Return the state before the first step of an episode; called once a round."""
        ...

    def reset_state(self, policy_state: _StateT, reset_E: Bools) -> _StateT:
        """Return the state with the rows `reset_E` reset; called after a rollback."""
        ...

    def act(
        self, obs: TrainingSignals, masks: ActionMasks, policy_state: _StateT
    ) -> tuple[PolicyDecision, _StateT]:
        """Choose an action for each of the E members, within the masks.

        Called once a step, after the gates and before actions are executed. Copies its results
        to the host in one batched transfer (transfer 2). Sampling depends only on the seed,
        `obs.round_index`, `obs.step` and the member.
        """
        ...

    def store(self, inputs: RewardInputs, terminal_E: Bools) -> RewardComponentsTelemetry:
        """Store the transition of the last `act` and return its reward by component.

        Called once a step, after the actions were executed. Returns do not propagate across
        `terminal_E` (`inputs.terminal`). A policy without a reward returns
        `RewardComponentsTelemetry.of({}, members)`.
        """
        ...

    def update(self, rollout: Rollout[_StateT]) -> PPOUpdateMetrics | None:
        """Train on the stored transitions and discard them; None if the policy does not learn."""
        ...


@runtime_checkable
class PlantingPolicy(Protocol):
    """Optional protocol of policies whose members start with seeds (static baselines).

    Called at the start of every episode, before training.
    """

    def planted(self, members: int, slots: Sequence[str], blueprints: Sequence[str]) -> Ints:
        """Return `[E, S]` blueprint indices of permanent seeds, `NO_BLUEPRINT` for none."""
        ...


@runtime_checkable
class EngineListener(Protocol):
    """Callbacks of the engine; simic implements them with the telemetry emitters.

    Called on the training thread, so methods must be fast. They receive host arrays, must not
    modify them, and must not use the device. A subclass leaves out what it does not need.
    """

    def on_round_start(self, round_index: int, members: int) -> None:
        """Before the first step of a round."""
        return

    def on_slot_events(self, round_index: int, step: int, payload: SlotPayload) -> None:
        """After slots changed or gates were evaluated; once per step and payload type."""
        return

    def on_step(self, record: StepRecord) -> None:
        """At the end of each step, after `store`."""
        return

    def on_round_end(self, rollout: Rollout[object]) -> None:
        """After the last step of a round, before `update`."""
        return


@runtime_checkable
class PlanListener(Protocol):
    """Optional protocol of listeners that also want the decisions of the plan phase."""

    def on_plan(self, record: PlanRecord) -> None:
        """After each decision of the plan phase, before the first step."""
        ...


@runtime_checkable
class SinkProtocol(Protocol):
    """Destination of events (file, console, dashboard); called only by the hub's writer thread."""

    def emit(self, event: TelemetryEvent) -> None:
        """Write one event; may buffer."""
        ...

    def flush(self) -> None:
        """Flush buffered events so that readers see them."""
        ...

    def close(self) -> None:
        """Flush and release resources; called once, at the end of the run."""
        ...
