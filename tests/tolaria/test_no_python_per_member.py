"""Judging more members takes not one Python call more."""

from __future__ import annotations

from collections import Counter

import numpy as np

from call_support import differences, python_calls
from esper.kasmina import Population
from esper.kasmina.snapshot import finite_members
from esper.leyline import BlendStyle, SeedStage
from esper.tolaria.counterfactual_eval import CounterfactualConfig, attribute, plan_coalitions
from esper.tolaria.governor import GovernorConfig, TolariaGovernor
from support import bring_to, make_population, pass_step

SLOTS = ("r0c0", "r1c0", "r0c1", "r1c1", "r0c2")


def grown(members: int) -> Population:
    """The same mix of seeds whatever E is: half have two, half five."""
    population = make_population(members, slots=SLOTS)
    everyone, half = list(range(members)), list(range(members // 2))
    bring_to(population, SeedStage.FOSSILIZED, everyone, "r0c0", "conv_light")
    bring_to(population, SeedStage.HOLDING, everyone, "r0c1", "norm", style=BlendStyle.GATE)
    for slot in ("r1c0", "r1c1", "r0c2"):
        bring_to(population, SeedStage.HOLDING, half, slot, "norm")
    pass_step(population, train=True)
    return population


def judged(members: int) -> Counter[str]:
    """Calls of planning, attribution, review with rollbacks, snapshots."""
    population = grown(members)
    governor = TolariaGovernor(population, 0.2, GovernorConfig(snapshot_steps=1, min_window=1))
    ones = np.ones(members)
    governor.reset(ones)
    loss = np.where(np.arange(members) < members // 2, np.nan, 1.0)

    def work() -> None:
        finite_members(population)
        plan = plan_coalitions(population, CounterfactualConfig(budget=14), 0, 0, 0)
        totals = np.zeros(plan.table.rows)
        attribute(plan, totals, totals, totals, 10, totals)
        governor.review(0, ones, ones, ones, ones > 0, ones)
        governor.after_actions(0, ones > 0, ones)
        verdicts = governor.review(1, loss, loss, ones, ones > 0, ones)
        assert verdicts.seeds_pruned_E.sum() > 0

    return python_calls(work)


def test_calls_at_4_members_equal_calls_at_16():
    judged(4)  # warm: caches
    few, many = judged(4), judged(16)
    assert not differences(few, many)
    assert few.total() > 300, "the watch saw the work"
