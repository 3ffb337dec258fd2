"""The interfaces between the rooms: who calls what, when, with which shapes.

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
    from esper.leyline.records import PolicyDecision, Rollout, StepRecord
    from esper.leyline.rewards import RewardComponentsTelemetry, RewardInputs
    from esper.leyline.signals import TrainingSignals
    from esper.leyline.slots import InjectionSpec, Topology
    from esper.leyline.telemetry import TelemetryEvent

_StateT = TypeVar("_StateT")


@runtime_checkable
class HostProtocol(Protocol):
    """A network that seeds can be grown in: an `nn.Module` cut into a chain of segments.

    Written for ONE model; the population stacks it. Kasmina never looks inside a segment.
    """

    @property
    def topology(self) -> Topology:
        """Decides which blueprints fit."""
        ...

    def segments(self) -> Sequence[nn.Module]:
        """The parts in execution order, each one tensor in, one tensor out; asked at set-up."""
        ...

    def injection_specs(self) -> tuple[InjectionSpec, ...]:
        """The S slots the host offers, in execution order; asked at set-up."""
        ...

    def forward(self, x: Tensor) -> Tensor:
        """All segments in a row with no seed: `x` `[B, ...]` to logits `[B, ...]`."""
        ...


@runtime_checkable
class RewardProtocol(Protocol):
    """A reward: any callable of this signature, a plain function included."""

    def __call__(self, inputs: RewardInputs, /) -> tuple[Doubles, RewardComponentsTelemetry]:
        """The reward `[E]` and its parts, which sum to it exactly (`components.total`).

        Called by the policy client once a step, from `store`. It may keep state per member;
        `inputs.step == 0` starts a new episode.
        """
        ...


@runtime_checkable
class PolicyProtocol(Protocol[_StateT]):
    """The client the engine drives: who decides, for all members at once.

    Order of calls in a round: `initial_state`; then each step `act`, `store`; `reset_state`
    wherever a member starts over; `update` after the rollout (by the trainer, or by
    `engine.train`).
    """

    def initial_state(self, members: int) -> _StateT:
        """The state before the first step of an episode; the engine calls it once a round."""
        ...

    def reset_state(self, policy_state: _StateT, reset_E: Bools) -> _StateT:
        """The state with the rows of `reset_E` as at the start; called after a rollback."""
        ...

    def act(
        self, obs: TrainingSignals, masks: ActionMasks, policy_state: _StateT
    ) -> tuple[PolicyDecision, _StateT]:
        """Choose an action for each of the E members, within the masks.

        Called by the engine once a step, after gates and before actions are carried out. Whatever
        was computed on a device comes back in one batched copy (transfer 2), made here. Random
        draws follow from the seed, `obs.round_index`, `obs.step` and the member alone.
        """
        ...

    def store(self, inputs: RewardInputs, terminal_E: Bools) -> RewardComponentsTelemetry:
        """Keep the transition of the last `act`; answer what its reward paid, by part.

        Called by the engine once a step, after the actions were carried out. No return passes a
        step where `terminal_E` (it is `inputs.terminal`). A policy without a reward answers
        `RewardComponentsTelemetry.of({}, members)`.
        """
        ...

    def update(self, rollout: Rollout[_StateT]) -> PPOUpdateMetrics | None:
        """Learn from what was stored, and forget it; None where there is nothing to learn."""
        ...


@runtime_checkable
class PlantingPolicy(Protocol):
    """A policy whose members are born with seeds in them (static baselines); optional.

    The engine asks it at the start of every episode, before anything trains.
    """

    def planted(self, members: int, slots: Sequence[str], blueprints: Sequence[str]) -> Ints:
        """`[E, S]`: blueprint index of the permanent seed in each slot, `NO_BLUEPRINT` for none."""
        ...


@runtime_checkable
class EngineListener(Protocol):
    """Who is told what happens; simic implements it with the telemetry emitters.

    Called on the training thread, so each method is quick; it gets finished host arrays and
    touches neither the device nor what it is given.
    """

    def on_round_start(self, round_index: int, members: int) -> None:
        """Before the first step of a round."""
        ...

    def on_slot_events(self, round_index: int, step: int, payload: SlotPayload) -> None:
        """Seeds of some members were born, moved, judged or removed; once per step and kind."""
        ...

    def on_step(self, record: StepRecord) -> None:
        """At the end of each step, after `store`."""
        ...

    def on_round_end(self, rollout: Rollout[object]) -> None:
        """After the last step of a round, before `update`."""
        ...


@runtime_checkable
class SinkProtocol(Protocol):
    """Where events go: a file, a console, a screen. Called by the hub's writer thread alone."""

    def emit(self, event: TelemetryEvent) -> None:
        """Take one event; may buffer."""
        ...

    def flush(self) -> None:
        """Make what was taken so far readable by others."""
        ...

    def close(self) -> None:
        """Flush and let go; called once, at the end of the run."""
        ...
