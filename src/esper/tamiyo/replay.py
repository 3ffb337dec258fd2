"""Open-loop replay: the actions of one run, repeated on other hosts without looking at them.

    recorder = ActionRecorder()
    engine.run_rollout(policy, recorder)               the run to record
    other_engine.run_rollout(ReplayPolicy(recorder.recording))

A policy that reads the learning curve does worse when it is replayed; a calendar does not.

Shape letters: E members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from esper.leyline.actions import ActionHead, ActionSpec, LifecycleOp
from esper.leyline.errors import EsperError
from esper.leyline.masks import ActionMasks
from esper.leyline.protocols import EngineListener, RewardProtocol
from esper.leyline.records import PlanRecord, PolicyDecision, StepRecord
from esper.leyline.signals import TrainingSignals
from esper.tamiyo.baselines import StatelessPolicy
from esper.tamiyo.scripted import legal_members


@dataclass(frozen=True, slots=True)
class Recording:
    """Actions of one episode."""

    slots: tuple[str, ...]
    blueprints: tuple[str, ...]
    plan: tuple[ActionSpec, ...]
    """One per decision of the plan phase; empty without one."""
    steps: tuple[ActionSpec, ...]
    """One per step."""


class ActionRecorder(EngineListener):
    """Engine listener that records the actions of an episode."""

    def __init__(self) -> None:
        self._names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._plan: list[ActionSpec] = []
        self._steps: list[ActionSpec] = []

    @property
    def recording(self) -> Recording:
        """What was recorded of the last episode."""
        return Recording(*self._names, tuple(self._plan), tuple(self._steps))

    def on_round_start(self, round_index: int, members: int) -> None:
        """Forget the last episode."""
        self._plan.clear()
        self._steps.clear()

    def on_plan(self, record: PlanRecord) -> None:
        """Record a decision of the plan phase."""
        self._plan.append(record.decision.actions)

    def on_step(self, record: StepRecord) -> None:
        """Record the decision of a step."""
        slots = record.signals.slots
        self._names = slots.slot_ids, slots.blueprints
        self._steps.append(record.decision.actions)


class ReplayPolicy(StatelessPolicy):
    """Repeats a recording, member by member; an action that is not legal becomes WAIT."""

    def __init__(self, recording: Recording, reward: RewardProtocol | None = None) -> None:
        super().__init__(reward)
        self.recording = recording

    def act(
        self, obs: TrainingSignals, masks: ActionMasks, policy_state: None
    ) -> tuple[PolicyDecision, None]:
        """Return the recorded actions of this decision."""
        require_same_names("slots", self.recording.slots, obs.slots.slot_ids)
        require_same_names("blueprints", self.recording.blueprints, obs.slots.blueprints)
        index = obs.plan_slot if obs.planning else obs.step
        recorded = self.recording.plan if obs.planning else self.recording.steps
        if index >= len(recorded):
            what = "plan decisions" if obs.planning else "steps"
            raise EsperError(
                f"replay: recorded {len(recorded)} {what}, decision {index + 1} is missing; "
                f"record a run of the same task and contexts"
            )
        actions = recorded[index]
        if actions.members != len(masks.op_EO):
            raise EsperError(
                f"replay: recorded {actions.members} members, there are {len(masks.op_EO)}"
            )
        return PolicyDecision.deterministic(_waiting_if_illegal(masks, actions)), None


def _waiting_if_illegal(masks: ActionMasks, actions: ActionSpec) -> ActionSpec:
    """Return the actions with WAIT for members for which theirs is not legal."""
    legal_E = legal_members(masks, actions)
    op_E = np.where(legal_E, actions.op, int(LifecycleOp.WAIT))
    others = (np.where(legal_E, actions.of(head), 0) for head in list(ActionHead)[1:])
    return ActionSpec(op_E, *others)


def require_same_names(kind: str, recorded: Sequence[str], here: Sequence[str]) -> None:
    """Raise unless a recording has these slots or blueprints."""
    if tuple(recorded) != tuple(here):
        raise EsperError(
            f"replay: recorded with {kind} {', '.join(recorded)}, this host has "
            f"{', '.join(here)}; replay a run with the same {kind}"
        )
