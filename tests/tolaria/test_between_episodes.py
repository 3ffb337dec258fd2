"""Nothing of an episode's compute is left in the next one; budgets and contexts are the round's."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from context_support import EMPTY, Planner, fixed_budget, planned_engine
from engine_support import small_engine, small_task
from esper.leyline import VARIED, Range
from esper.tamiyo.baselines import StaticTopology
from esper.tasks.contexts import chance_of, draw_members, draw_round, train_samples
from esper.tolaria.compute_clock import ComputeClock
from esper.tolaria.step_training import StepTrainer

NOBODY = np.zeros(2, dtype=bool)
COST = np.array([1.0, 1.7])
BARE = np.full((1, 3), EMPTY)


@pytest.mark.parametrize("before", [0.5, 3.0])
def test_a_clock_that_ran_is_after_its_reset_like_a_new_one(before):
    used, new = (ComputeClock(2, batches_per_step=3, steps=4) for _ in range(2))
    used.reset(before)
    for _ in range(3):
        used.advance(COST, NOBODY)
    used.reset(2.0)
    new.reset(2.0)
    for _ in range(4):
        assert used.trained_E.tolist() == new.trained_E.tolist()
        assert used.runs_E.tolist() == new.runs_E.tolist()
        assert used.share_E.tolist() == new.share_E.tolist()
        assert used.advance(COST, NOBODY).tolist() == new.advance(COST, NOBODY).tolist()


def test_compute_is_counted_in_runs_of_the_host_and_its_share_in_budgets():
    clock = ComputeClock(2, batches_per_step=3, steps=4)
    clock.reset(2.0)
    for step in range(1, 5):
        clock.advance(np.array([1.0, 2.0]), NOBODY)
        assert clock.runs_E.tolist() == [step / 2, step / 2]
        assert clock.share_E.tolist() == [step / 4, step / 4]


def test_a_step_trains_on_the_batches_after_those_trained_on():
    clock, asked = ComputeClock(2, batches_per_step=4, steps=2), []
    clock.reset(1.0)
    trainer = SimpleNamespace(
        env=SimpleNamespace(model=SimpleNamespace(lifecycle=SimpleNamespace(stopped_E=NOBODY))),
        context=SimpleNamespace(clock=clock, cost_E=lambda: np.array([1.0, 2.0])),
        batches=SimpleNamespace(batches=lambda first_E, *_: asked.append(first_E.tolist())),
        buffers=None,
    )
    for step in range(2):
        _, active_ME = StepTrainer._next_batches(trainer, step)  # type: ignore[arg-type]
        assert active_ME.sum(axis=0).tolist() == [4, 2]
    assert asked == [[0, 0], [4, 2]]


@pytest.mark.parametrize("budget", [0.5, 2.0])
def test_every_episode_spends_its_budget_whatever_the_last_one_spent(budget):
    engine = planned_engine(fixed_budget(budget), members=1, episode_length=2, batches_per_step=2)
    for _ in range(2):
        outcome = engine.run_rollout(Planner(BARE)).outcome
        assert outcome.flops_ratio_E.tolist() == [budget]
        assert engine.context.clock.trained_E.tolist() == [4 * budget]


def test_without_a_compute_clock_every_episode_costs_its_own_topology():
    """Once the first planted seed, then nothing, then the seed again."""
    engine = small_engine(small_task(episode_length=2, batches_per_step=1), members=1)
    kinds = ([[2, EMPTY, EMPTY]], BARE, [[2, EMPTY, EMPTY]])
    policies = [StaticTopology(np.array(kind)) for kind in kinds]
    first, host, again = [engine.run_rollout(p).outcome.flops_ratio_E[0] for p in policies]
    assert host == 1.0
    assert first == again > 1.0


def test_a_round_has_its_own_contexts_and_what_is_hidden_has_a_seed_of_its_own():
    spec = replace(VARIED, budget=Range(1.0, 2.0), data_share=Range(0.3, 0.9))
    engine = planned_engine(spec, hidden_seed=99)
    state = engine.context
    data = state.data
    for seed, round_index in ((5, 3), (5, 4)):
        assert state.begin_round(seed, round_index)
        limits = state.limits
        expected = draw_round(spec, state.task, seed, round_index, limits.fullest_cost, 99)
        assert state.round == expected
        members = draw_members(spec, seed, round_index, np.arange(3), limits.costs, limits.fits_SK)
        assert state.members == members
        found = state.round_data()
        assert (found.seed, found.round_index, found.context) == (99, round_index, expected)
        assert state.samples == train_samples(state.task, data, expected) < len(data.train)
        assert state.chance == chance_of(state.task, expected)
        assert state.clock.budget == expected.budget
    assert state.round.label_map is not None, "else chance is the task's"
