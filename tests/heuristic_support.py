"""The heuristic in tests: seeds that double the host, contributions as wanted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from esper.leyline import ScoreConstants
from esper.leyline.signals import NO_BLUEPRINT
from esper.tamiyo import HeuristicConfig, HeuristicPolicy
from esper.tamiyo.topology_table import TopologyTable
from esper.tasks.scoring import added
from support import CNN_BLUEPRINTS, good_signals


def heuristic(
    blueprints: tuple[str, ...] = CNN_BLUEPRINTS, table: TopologyTable | None = None
) -> HeuristicPolicy:
    return HeuristicPolicy(HeuristicConfig(blueprints, table))


def members(*values: bool) -> np.ndarray:
    return np.array(values, dtype=np.bool_)


ERROR = 0.01


class Doubling(HeuristicPolicy):
    """Sees seeds with as many parameters as the host has, which a population that does not train
    does not build: the price of the only one in the output is c_p."""

    c_p = 0.1

    def act(self, obs, masks, policy_state):
        standing_ES = obs.slots.blueprint_ES != NO_BLUEPRINT
        slots = replace(obs.slots, params_ES=np.where(standing_ES, 100, 0))
        over_E = added(slots.alpha_ES, slots.params_ES) / 100
        price = ScoreConstants(c_p=self.c_p, c_m=0.0, c_f=0.0)
        context = replace(obs.context, constants=price)
        over_E = over_E.astype(np.float32)
        seen = replace(obs, slots=slots, params_over_host_E=over_E, context=context)
        return super().act(seen, masks, policy_state)


def worth(contribution: float):
    """Signals under which every seed contributes that much."""

    def signals(population):
        good = good_signals(population)
        return replace(
            good,
            contribution_ES=np.full_like(good.contribution_ES, contribution),
            contribution_se_ES=np.full_like(good.contribution_se_ES, ERROR),
        )

    return signals


def charged(c_p: float = 0.1, table: TopologyTable | None = None) -> HeuristicPolicy:
    policy = Doubling(heuristic(table=table).config)
    policy.c_p = c_p
    return policy
