"""The plan phase: before the first step, every slot is planted or left empty.

There is one decision per slot, in execution order, with the slot forced by the masks. The policy
sees the fresh hosts. All but the last decision have reward 0; the last one pays the change of score
that planting caused, so that rewards still sum to the final minus the host's score.

Shape letters: E members, S slots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from esper.leyline.actions import ActionHead, LifecycleOp
from esper.leyline.arrays import Bools, Doubles
from esper.leyline.masks import ActionMasks
from esper.leyline.protocols import EngineListener, PlanListener, PolicyProtocol
from esper.leyline.records import PlanRecord
from esper.leyline.signals import TrainingSignals
from esper.tamiyo.masks import build_masks
from esper.tolaria.action_execution import execute_actions
from esper.tolaria.env_state import ParallelEnvState
from esper.tolaria.episode import EpisodeTracker
from esper.tolaria.policy_checks import checked_decision, checked_rewards


class PlanPhase:
    """The plan phase of one episode, decision by decision.

    `observe`: the observation for a slot. `rescore`: validates the members again, as the new
    baseline of the first step, and returns their scores.
    """

    def __init__(
        self,
        env: ParallelEnvState,
        observe: Callable[[int], TrainingSignals],
        rescore: Callable[[], Doubles],
        episode: EpisodeTracker,
        frozen: Mapping[ActionHead, int],
    ) -> None:
        self._env, self._observe, self._rescore = env, observe, rescore
        self._episode, self._frozen = episode, frozen
        self._before_E = episode.score_TE[0].copy()
        self._planted = False
        self._observed: tuple[TrainingSignals, ActionMasks] | None = None
        self.slot = 0
        """The slot to decide on next."""
        env.model.lifecycle.planning = not self.done

    @property
    def done(self) -> bool:
        """Whether every slot is decided."""
        return self.slot == len(self._env.model.slots)

    def observe(self) -> tuple[TrainingSignals, ActionMasks]:
        """What the policy sees for the next decision, and what it may do."""
        if self._observed is None:
            life = self._env.model.lifecycle
            masks = plan_masks(life.legal_ops(), life.fits_ESK(), self.slot, self._frozen)
            self._observed = self._observe(self.slot), masks
        return self._observed

    def decide(
        self, client: PolicyProtocol[Any], listeners: Sequence[EngineListener] = ()
    ) -> PlanRecord:
        """Let the policy plant or leave the next slot."""
        env, (signals, masks) = self._env, self.observe()
        decision, env.lstm_hidden = checked_decision(client, signals, masks, env.lstm_hidden)
        nobody_E = np.zeros(env.members, dtype=np.bool_)
        result = execute_actions(env.model, decision.actions, signals, nobody_E, self._frozen)
        env.record_actions(decision.actions, result.outcome)
        planted_E = (decision.actions.op == LifecycleOp.PLANT) & result.outcome.executed
        self._planted = self._planted or bool(planted_E.any())
        self.slot, self._observed = self.slot + 1, None
        env.model.lifecycle.planning = not self.done
        after_E = self._score_planted() if self.done and self._planted else self._before_E
        inputs = self._episode.plan_inputs(
            signals, decision.actions, result.outcome, self._before_E, after_E
        )
        rewards = checked_rewards(client, inputs)
        env.epoch_rewards += rewards.total
        record = PlanRecord(signals, masks, decision, result.outcome, rewards)
        for listener in listeners:
            if isinstance(listener, PlanListener):
                listener.on_plan(record)
        return record

    def _score_planted(self) -> Doubles:
        """Make the members as planted the baseline of the first step; returns their scores."""
        after_E = self._rescore()
        self._episode.restart(self._env.model.slot_reports())
        self._env.governor.reset(self._episode.score_TE[0])
        return after_E


def plan_masks(
    legal_ESO: Bools, fits_ESK: Bools, slot: int, frozen: Mapping[ActionHead, int]
) -> ActionMasks:
    """Masks of one plan decision: WAIT, or PLANT in this slot."""
    elsewhere_S = np.arange(legal_ESO.shape[1]) != slot
    legal_ESO = legal_ESO.copy()
    legal_ESO[:, elsewhere_S] = False
    return build_masks(legal_ESO, fits_ESK, frozen)
