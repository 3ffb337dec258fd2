"""The heuristic in contexts: plans by a table, prunes what it planted, stops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from esper.kasmina import Population
from esper.leyline import LifecycleOp, ScoreConstants, SeedStage
from esper.tamiyo import HeuristicPolicy
from esper.tamiyo.heuristic import PATIENCE_STEPS, PROBATION_STEPS, STOP_AFTER
from esper.tamiyo.topology_table import TableRow, TopologyTable
from esper.tolaria.plan_phase import plan_masks
from heuristic_support import charged, heuristic, worth
from support import CNN_BLUEPRINTS, make_population
from tamiyo_support import Drive, fixed_context, masks_of, observe

PRUNE, WAIT = LifecycleOp.PRUNE, LifecycleOp.WAIT

TABLE = TopologyTable(
    "any", (TableRow(1.0, ("r0c0=norm", "r0c2=conv_light")), TableRow(9.0, ("r0c1=norm",)))
)


def planned(policy: HeuristicPolicy, population: Population, price_E: list[float]) -> Any:
    """Let a policy plan all slots; returns its state."""
    life = population.lifecycle
    state = policy.initial_state(population.members)
    life.action_space, life.planning = "full", True
    context = fixed_context(population.members, price_E=np.array(price_E), plans=True)
    for slot in range(len(population.slots)):
        obs = observe(population, 0, plan_slot=slot, context=context)
        masks = plan_masks(life.legal_ops(), life.fits_ESK(), slot, {})
        decision, state = policy.act(obs, masks, state)
        for member in np.flatnonzero(decision.actions.op == LifecycleOp.PLANT):
            population.plant(
                int(member), slot, int(decision.actions.blueprint[member]), prunable=True
            )
    life.planning = False
    return state


def test_the_plan_is_that_of_the_table_at_the_members_price():
    population = make_population(3)
    planned(heuristic(table=TABLE), population, [0.5, 1.0, 1.1])
    norm, light, none = CNN_BLUEPRINTS.index("norm"), CNN_BLUEPRINTS.index("conv_light"), -1
    cheap, dear = [norm, none, light], [none, norm, none]
    assert population.lifecycle.blueprint_ES.tolist() == [cheap, cheap, dear]
    stages = population.lifecycle.stage_ES
    assert set(stages.flatten()) == {SeedStage.PLANTED, SeedStage.DORMANT}


def test_without_a_table_nothing_is_planted():
    population = make_population(2)
    planned(heuristic(), population, [0.5, 2.0])
    assert (population.lifecycle.stage_ES == SeedStage.DORMANT).all()


@pytest.mark.parametrize(
    ("contribution", "price", "pruned"),
    [
        (0.05, 0.4, False),
        (0.05, 0.6, True),
        (0.15, 1.0, False),
        (0.15, 2.0, True),
        (-0.1, 0.0, True),
    ],
)
def test_a_planted_seed_goes_if_its_contribution_stays_below_its_rent(contribution, price, pruned):
    """The only seed in the output doubles the host: c_p = 0.1 times the price."""
    table = TopologyTable("any", (TableRow(9.0, ("r0c1=norm",)),))
    policy = charged(table=table)
    population = make_population(1, slots=("r0c1",))
    state = planned(policy, population, [price])
    drive = Drive(policy, population, worth(contribution))
    drive.state = state
    drive.run(20, context=fixed_context(1, price_E=np.array([price])))
    expected = [(PROBATION_STEPS - 1, 0)] if pruned else []
    assert drive.did(PRUNE) == expected, "after probation, once patience is over"


def test_a_planted_seed_that_earns_its_rent_in_between_is_kept():
    table = TopologyTable("any", (TableRow(9.0, ("r0c1=norm",)),))
    policy = charged(table=table)
    population = make_population(1, slots=("r0c1",))
    drive = Drive(policy, population, worth(0.05))
    drive.state = planned(policy, population, [1.0])
    for step in range(30):
        drive.signals = worth(0.05 if step % (PATIENCE_STEPS + 1) else 0.15)
        drive.run(1)
    assert drive.did(PRUNE) == []


def stopping(**changes: Any) -> LifecycleOp:
    """The operation in step 30 of 40, when it is too late for a seed."""
    population = make_population(1)
    life = population.lifecycle
    life.action_space = "full"
    life.trained_E[:] = True
    flat = np.full((1, 5), 0.5, dtype=np.float32)
    facts = {
        "episode_length": 40,
        "val_accuracy_history_EL": flat,
        "val_accuracy_slope_E": np.zeros(1, dtype=np.float32),
        "plateau_steps_E": np.array([20]),
        "context": fixed_context(1, ScoreConstants(c_f=0.01), spent_E=np.array([0.5])),
    }
    policy = heuristic()
    obs = observe(population, 30, **(facts | changes))
    decision, _ = policy.act(obs, masks_of(population), policy.initial_state(1))
    return LifecycleOp(decision.actions.op[0])


def test_training_stops_where_its_slope_is_worth_less_than_its_compute():
    assert stopping() is LifecycleOp.STOP
    rising = np.linspace(0.5, 0.54, 5, dtype=np.float32)[None]
    slope_E = np.array([0.01], dtype=np.float32)
    assert stopping(val_accuracy_history_EL=rising, val_accuracy_slope_E=slope_E) is WAIT
    assert stopping(plateau_steps_E=np.array([STOP_AFTER - 1])) is WAIT, "it may still be noise"
    noisy = np.array([[0.5, 0.52, 0.48, 0.52, 0.48]], dtype=np.float32)
    assert stopping(val_accuracy_history_EL=noisy) is WAIT, "the slope is not known well enough"
    free = fixed_context(1, spent_E=np.array([0.5]))
    assert stopping(context=free) is WAIT, "compute costs nothing"
