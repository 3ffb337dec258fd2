"""Reports and vetoes are kept while the slots stay as they are, and any change of them is seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from esper.kasmina.costs.slot_reporter import SlotReporter
from esper.kasmina.lifecycle.caps import Caps
from esper.kasmina.population import Population
from esper.leyline import LifecycleOp, SeedStage
from esper.leyline.actions import AlphaMode
from esper.leyline.signals import SlotReports
from support import KINDS, batch, bring_to, good_signals, make_population

STAGES = (SeedStage.TRAINING, SeedStage.BLENDING, SeedStage.HOLDING)


def grown() -> Population:
    """Three members with a seed each, in stages of their own; every rule has something to read."""
    population = make_population(members=3)
    population.forward(torch.zeros(1, 2, 1, 8, 8))
    for member in reversed(range(3)):
        bring_to(population, STAGES[member], [member], "r0c1")
    population.begin_step()
    population.end_step(good_signals(population))
    life = population.lifecycle
    assert life.legal_ops()[0, :, LifecycleOp.ADVANCE].any(), "G2 is open"
    life.mode_ES[1] = AlphaMode.HOLD  # G3 waits for alpha alone
    life.action_space = "full"
    life.caps = caps_for(population, seeds=1)
    return population


def caps_for(population: Population, seeds: int) -> Caps:
    """Room for so many more of the smallest seeds in each member."""
    assert population.probe is not None
    life, costs = population.lifecycle, population.seed_sizes.table(population.probe)
    params_E, _ = costs.reserved(life.blueprint_ES, life.style_ES)
    free = Caps(costs, np.full(3, np.inf), np.full(3, np.inf))
    smallest = free.seed_params_SK[life.fits_SK].min()
    return Caps(costs, params_E + seeds * smallest, np.full(3, np.inf))


def fresh_reports(population: Population) -> SlotReports:
    names = population.slots, population.blueprints
    reporter = SlotReporter(*names, population.seed_sizes)
    return reporter.reports(population.lifecycle, population.probe)


def require_current(population: Population) -> None:
    """What is kept equals what is computed anew."""
    life = population.lifecycle
    assert population.slot_reports() == fresh_reports(population)
    anew = life.copy()  # has found nothing yet
    assert np.array_equal(life.vetoes(), anew.vetoes())
    for op in LifecycleOp:
        assert np.array_equal(life.veto(op), anew.veto(op))


def changes(name: str, values: np.ndarray) -> tuple[object, ...]:
    """Other plausible values of an array of a lifecycle."""
    if name == "stage_ES":
        return SeedStage.HOLDING, SeedStage.DORMANT
    if values.dtype == np.bool_:
        return True, False
    if values.dtype == np.float32:
        return 0.25, 1.0, 0.0, np.nan, np.inf
    return 2, 1, 0


@pytest.mark.parametrize("name", sorted(make_population(members=1).lifecycle.arrays()))
def test_a_write_into_any_array_of_the_lifecycle_is_seen(name):
    population = grown()
    require_current(population)
    array = population.lifecycle.arrays()[name]
    for value in changes(name, array):
        array[...] = value
        require_current(population)


def test_settings_of_the_lifecycle_are_seen():
    population = grown()
    life = population.lifecycle
    require_current(population)
    life.caps = caps_for(population, seeds=0)
    require_current(population)
    life.config = replace(life.config, embargoed_steps=9, min_prune_age=9)
    require_current(population)
    life.action_space = "grow"
    require_current(population)
    life.planning = True
    require_current(population)


def test_reports_are_one_object_until_the_slots_change():
    population = grown()
    first = population.slot_reports()
    assert population.slot_reports() is first
    before = first.steps_in_stage_ES.copy()
    population.begin_step()
    population.end_step(good_signals(population))
    later = population.slot_reports()
    assert later is not first
    assert np.array_equal(first.steps_in_stage_ES, before)
    require_current(population)


def test_vetoes_cannot_be_written_into():
    life = grown().lifecycle
    with pytest.raises(ValueError, match="read-only"):
        life.veto(LifecycleOp.PRUNE)[0, 0] = 0
    legal = life.legal_ops()
    legal[...] = False
    assert life.legal_ops().any()


def test_a_copy_of_a_lifecycle_does_not_follow_it():
    population = grown()
    life, copied = population.lifecycle, population.lifecycle.copy()
    legal = life.legal_ops()
    population.prune([2], "r0c1")
    assert not np.array_equal(life.legal_ops(), legal)
    assert np.array_equal(copied.legal_ops(), legal)


def test_a_population_without_blueprints_has_empty_slots():
    made = KINDS["cnn"]
    population = Population(made.host, made.slots, [], 3)
    population.train_rows(population.train_plan(padded=True), *batch(3))
    reports = population.slot_reports()
    assert not reports.params_ES.any()
    assert not reports.macs_ES.any()
    life = population.lifecycle
    assert set(np.flatnonzero(life.legal_ops().any(axis=(0, 1)))) == {LifecycleOp.WAIT}
