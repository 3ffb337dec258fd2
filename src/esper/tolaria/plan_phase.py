"""The plan phase: before the first step, every slot is planted or left empty.

There is one decision per slot, in execution order, with the slot forced by the masks. The policy
sees the fresh hosts. All but the last decision have reward 0; the last one pays the change of score
that planting caused, so that rewards still sum to the final minus the bare host's score.

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


def run_plan_phase(
    env: ParallelEnvState,
    client: PolicyProtocol[Any],
    observe: Callable[[int], TrainingSignals],
    rescore: Callable[[], Doubles],
    episode: EpisodeTracker,
    frozen: Mapping[ActionHead, int],
    listeners: Sequence[EngineListener],
) -> bool:
    """Let the policy plan all slots; return whether anything was planted.

    `observe`: the observation for a slot. `rescore`: validates the members again, as the new
    baseline of the first step, and returns their scores.
    """
    life, slots = env.model.lifecycle, len(env.model.slots)
    members, planted = env.members, False
    before_E = episode.score_TE[0].copy()
    life.planning = True
    for slot in range(slots):
        signals = observe(slot)
        masks = plan_masks(life.legal_ops(), life.fits_ESK(), slot, frozen)
        decision, env.lstm_hidden = checked_decision(client, signals, masks, env.lstm_hidden)
        nobody_E = np.zeros(members, dtype=np.bool_)
        result = execute_actions(env.model, decision.actions, signals, nobody_E, frozen)
        env.record_actions(decision.actions, result.outcome)
        planted_E = (decision.actions.op == LifecycleOp.PLANT) & result.outcome.executed
        planted = planted or bool(planted_E.any())
        last = slot == slots - 1
        if last:
            life.planning = False
        after_E = rescore() if last and planted else before_E
        inputs = episode.plan_inputs(signals, decision.actions, result.outcome, before_E, after_E)
        rewards = checked_rewards(client, inputs)
        env.epoch_rewards += rewards.total
        record = PlanRecord(signals, masks, decision, result.outcome, rewards)
        for listener in listeners:
            if isinstance(listener, PlanListener):
                listener.on_plan(record)
    life.planning = False
    return planted


def plan_masks(
    legal_ESO: Bools, fits_ESK: Bools, slot: int, frozen: Mapping[ActionHead, int]
) -> ActionMasks:
    """Masks of one plan decision: WAIT, or PLANT in this slot."""
    elsewhere_S = np.arange(legal_ESO.shape[1]) != slot
    legal_ESO = legal_ESO.copy()
    legal_ESO[:, elsewhere_S] = False
    return build_masks(legal_ESO, fits_ESK, frozen)
