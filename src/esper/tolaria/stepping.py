"""Episodes that the caller drives decision by decision, instead of a policy client.

    stepper = EngineStepper(engine, reward)
    signals, masks = stepper.begin()                 fresh members
    done = stepper.act(ActionSpec.wait(members))     rewards, and what is observed next

A decision is one of the plan phase, if the contexts have one, or a step. Members, batches, scores
and rewards are those of `engine.run_rollout` with a policy that takes the same actions.

Shape letters: E members.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esper.leyline.actions import ActionOutcome, ActionSpec
from esper.leyline.arrays import Bools
from esper.leyline.errors import EsperError
from esper.leyline.masks import ActionMasks
from esper.leyline.payloads import EpisodeOutcome
from esper.leyline.protocols import RewardProtocol
from esper.leyline.records import PolicyDecision
from esper.leyline.rewards import RewardComponentsTelemetry
from esper.leyline.signals import TrainingSignals
from esper.tamiyo.baselines import StatelessPolicy
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.plan_phase import PlanPhase
from esper.tolaria.runtime import set_profile


@dataclass(frozen=True, slots=True, eq=False)
class Decided:
    """Result of one decision, and the observation of the next."""

    rewards: RewardComponentsTelemetry
    outcome: ActionOutcome
    rolled_back_E: Bools
    """The governor restored a snapshot of the member before this decision."""
    signals: TrainingSignals
    """What is observed next; after the last decision, the members as they ended."""
    masks: ActionMasks
    episode: EpisodeOutcome | None
    """Outcome of the episode after its last decision, else None."""


class _GivenActions(StatelessPolicy):
    """The policy client of an engine whose caller decides."""

    def __init__(self, reward: RewardProtocol, reads_activation_gradients: bool) -> None:
        super().__init__(reward)
        self.reads_activation_gradients = reads_activation_gradients
        self.actions: ActionSpec | None = None

    def act(
        self, obs: TrainingSignals, masks: ActionMasks, policy_state: None
    ) -> tuple[PolicyDecision, None]:
        """Return the actions that the caller gave."""
        assert self.actions is not None  # set by `EngineStepper.act`
        return PolicyDecision.deterministic(self.actions), None


class EngineStepper:
    """Drives one engine; the engine must not run rollouts at the same time."""

    def __init__(
        self,
        engine: VectorizedEngine,
        reward: RewardProtocol,
        reads_activation_gradients: bool = True,
    ) -> None:
        """`reads_activation_gradients`: measure the gradients at the slots; an extra pass."""
        self.engine = engine
        self._client = _GivenActions(reward, reads_activation_gradients)
        self._plan: PlanPhase | None = None
        self._observed: tuple[TrainingSignals, ActionMasks] | None = None

    @property
    def running(self) -> bool:
        """Whether a decision is awaited."""
        return self._observed is not None

    def begin(self) -> tuple[TrainingSignals, ActionMasks]:
        """Start the engine's current round with fresh members; returns the first observation.

        An episode that is under way is abandoned, and its round begins again.
        """
        engine, self._observed = self.engine, None
        engine.step = 0
        set_profile(engine.config.profile, engine.device)
        with engine.computing():
            engine.begin_episode(self._client)
            self._plan = engine.begin_plan()
        self._observed = self._observe()
        return self._observed

    def act(self, actions: ActionSpec) -> Decided:
        """Execute one action for each member; what is illegal is vetoed."""
        if self._observed is None:
            raise EsperError("no episode is under way: begin one first")
        self._observed = None  # an interrupted step cannot be resumed
        self._client.actions = actions
        set_profile(self.engine.config.profile, self.engine.device)
        decided = self._act_in_plan() if self._planning else self._act_in_step()
        if decided.episode is None:
            self._observed = decided.signals, decided.masks
        return decided

    @property
    def _planning(self) -> bool:
        return self._plan is not None and not self._plan.done

    def _observe(self) -> tuple[TrainingSignals, ActionMasks]:
        """The observation of the next decision; trains a step once the plan phase is done."""
        if self._plan is not None and not self._plan.done:
            with self.engine.computing():
                return self._plan.observe()
        return self.engine.observe_step()

    def _act_in_plan(self) -> Decided:
        assert self._plan is not None
        with self.engine.computing():
            record = self._plan.decide(self._client)
        nobody_E = np.zeros(self.engine.env.members, dtype=np.bool_)
        return Decided(record.rewards, record.outcome, nobody_E, *self._observe(), None)

    def _act_in_step(self) -> Decided:
        engine = self.engine
        record = engine.step_members(self._client)
        result, rolled_back_E = record.result, record.governor.rolled_back_E
        if engine.step < engine.spec.episode_length:
            return Decided(record.rewards, result.outcome, rolled_back_E, *self._observe(), None)
        episode = engine.outcome()
        engine.end_episode()
        engine.timer.collect()
        seen = result.post_action_signals, result.post_action_masks
        return Decided(record.rewards, result.outcome, rolled_back_E, *seen, episode)
