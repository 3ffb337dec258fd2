"""Policies that plant a topology in the plan phase and then wait.

What is planted is part of the network from step 0, exactly as in a static network, and what exceeds
a member's caps is left out, in slot order.

Shape letters: E members, S slots.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from esper.leyline.actions import ActionHead, ActionSpec, LifecycleOp
from esper.leyline.arrays import Ints
from esper.leyline.masks import ActionMasks
from esper.leyline.protocols import RewardProtocol
from esper.leyline.records import PolicyDecision
from esper.leyline.signals import NO_BLUEPRINT, TrainingSignals
from esper.tamiyo.baselines import StatelessPolicy, StaticTopology
from esper.tamiyo.scripted import build_actions
from esper.tamiyo.topology_table import TopologyTable


def plan_actions(obs: TrainingSignals, masks: ActionMasks, wanted_ES: Ints) -> ActionSpec:
    """PLANT the wanted blueprint in the slot to decide on, where that is legal; WAIT elsewhere."""
    slot, member_E = obs.plan_slot, np.arange(len(masks.op_EO))
    wanted_E = wanted_ES[:, slot]
    kind_E = np.where(wanted_E == NO_BLUEPRINT, 0, wanted_E)
    legal_E = masks.op_EO[:, LifecycleOp.PLANT] & masks.slot_EOS[:, LifecycleOp.PLANT, slot]
    legal_E &= masks.blueprint_ESK[member_E, slot, kind_E] & (wanted_E != NO_BLUEPRINT)
    op_E = np.where(legal_E, int(LifecycleOp.PLANT), int(LifecycleOp.WAIT))
    return build_actions(op_E, np.full_like(op_E, slot), {ActionHead.BLUEPRINT: kind_E})


class PlannedTopology(StatelessPolicy):
    """Plants a topology in the plan phase, as far as the caps allow, then always waits.

    `topology`: as for `StaticTopology`, which does the same without a plan phase and without caps.
    """

    def __init__(
        self, topology: str | Mapping[str, str] | Ints, reward: RewardProtocol | None = None
    ) -> None:
        super().__init__(reward)
        self._static = StaticTopology(topology)

    def wanted(self, obs: TrainingSignals) -> Ints:
        """Blueprint index `[E, S]` to plant; `NO_BLUEPRINT`: none."""
        slots = obs.slots
        return self._static.planted(len(slots.stage_ES), slots.slot_ids, slots.blueprints)

    def act(
        self, obs: TrainingSignals, masks: ActionMasks, policy_state: None
    ) -> tuple[PolicyDecision, None]:
        """Return PLANT or WAIT in the plan phase, WAIT in every step."""
        actions = ActionSpec.wait(len(masks.op_EO))
        if obs.planning:
            actions = plan_actions(obs, masks, self.wanted(obs))
        return PolicyDecision.deterministic(actions), None


class TablePolicy(PlannedTopology):
    """Plants the topology that a table has for the member's price."""

    def __init__(self, table: TopologyTable, reward: RewardProtocol | None = None) -> None:
        StatelessPolicy.__init__(self, reward)
        self.table = table

    def wanted(self, obs: TrainingSignals) -> Ints:
        """Blueprint index `[E, S]` to plant at each member's price."""
        slots = obs.slots
        return self.table.wanted(obs.context.price_E, slots.slot_ids, slots.blueprints)
