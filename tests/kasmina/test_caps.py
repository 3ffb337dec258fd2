"""Caps on parameters and MACs are reserved when a seed starts, and never exceeded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.kasmina.lifecycle.caps import Caps
from esper.leyline import BlendStyle, LifecycleOp, SeedStage, VetoReason
from support import batch, bring_to, good_signals, make_population, refused


@pytest.fixture
def population():
    made = make_population(3, "loop")
    made.forward(batch(3, 0)[0])
    return made


def costs_of(population):
    return population.seed_sizes.table(population.probe)


def test_the_table_of_costs_is_that_of_real_seeds(population):
    costs = costs_of(population)
    for s, k in np.argwhere(population.network.fits_SK):
        population.reset(0)
        before = population.parameters_E()[0], population.macs_E()[0]
        population.plant([0], int(s), int(k))
        grown = population.parameters_E()[0] - before[0], population.macs_E()[0] - before[1]
        assert grown == (costs.params_SK[s, k], costs.macs_SK[s, k])
        population.reset(0)
        population.plant([0], int(s), int(k), style=BlendStyle.GATE)
        assert population.parameters_E()[0] - before[0] == grown[0] + costs.gate_params_S[s]


def test_a_cap_below_the_host_is_refused(population):
    costs, free = costs_of(population), np.full(3, np.inf)
    low = np.array([np.inf, costs.host_params - 1, np.inf])
    message = refused(lambda: Caps(costs, low, free))
    assert "parameter cap" in message
    assert "of member 1" in message
    assert str(costs.host_params) in message
    assert "MAC cap" in refused(lambda: Caps(costs, free, np.zeros(3)))


def test_a_cap_at_the_host_leaves_no_seed_legal(population):
    life, costs = population.lifecycle, costs_of(population)
    life.caps = Caps(costs, [costs.host_params, np.inf, np.inf], [np.inf] * 3)
    veto_ES = life.veto(LifecycleOp.GERMINATE)
    assert (veto_ES[0] == VetoReason.OVER_CAP).all()
    assert (veto_ES[1:] == VetoReason.NONE).all()
    assert "OVER_CAP" in refused(lambda: population.germinate([0], "r0c0", "conv_light"))


def test_incubating_seeds_and_the_costliest_style_are_reserved(population):
    """Room for two seeds with a gate each: a third is over the cap, whatever the others weigh."""
    life, costs = population.lifecycle, costs_of(population)
    kind = population.blueprints.index("conv_light")
    room = costs.params_SK[:2, kind].sum() + costs.gate_params_S[:2].sum()
    life.caps = Caps(costs, np.full(3, costs.host_params + room), np.full(3, np.inf))
    bring_to(population, SeedStage.TRAINING, [0], "r0c0", "conv_light", style=BlendStyle.GATE)
    assert life.fits_ESK()[0, 1, kind]
    bring_to(population, SeedStage.TRAINING, [0], "r0c1", "conv_light", style=BlendStyle.GATE)
    assert not life.fits_ESK()[0, 2].any() or costs.params_SK[2].min() == 0
    assert life.fits_ESK()[1, 2, kind] == (
        costs.params_SK[2, kind] + costs.gate_params_S[2] <= room
    )


@settings(max_examples=15)
@given(st.integers(0, 2**32), st.floats(0.0, 1.0))
def test_random_growth_never_exceeds_a_cap(seed, place):
    population = make_population(3, "loop")
    population.forward(batch(3, 0)[0])
    life, costs, rng = population.lifecycle, costs_of(population), np.random.default_rng(seed)
    full = costs.fullest(life.fits_SK)
    caps = [low + place * (high - low) for low, high in
            zip((costs.host_params, costs.host_macs), full, strict=True)]  # fmt: skip
    life.caps = Caps(costs, np.full(3, caps[0]), np.full(3, caps[1]))
    for _ in range(25):
        e, s = (int(rng.integers(n)) for n in life.stage_ES.shape)
        kinds = np.flatnonzero(life.fits_ESK()[e, s])
        if life.veto(LifecycleOp.GERMINATE)[e, s] == VetoReason.NONE and kinds.size:
            style = list(BlendStyle)[rng.integers(len(BlendStyle))]
            population.germinate([e], s, int(rng.choice(kinds)), style=style)
        elif life.veto(LifecycleOp.PRUNE)[e, s] == VetoReason.NONE:
            population.prune([e], s)
        population.begin_step()
        population.end_step(good_signals(population))
        params_E, macs_E = costs.reserved(life.blueprint_ES, life.style_ES)
        assert (params_E <= caps[0]).all()
        assert (macs_E <= caps[1]).all()
        assert (population.parameters_E() <= params_E).all()
