"""Entropy is annealed over episodes, counted in PPO updates."""

import math

import pytest

from esper.leyline import EsperError
from esper.simic.agent.schedule import Schedule
from esper.simic.training.runner import run_ppo_updates
from esper.simic.training.schedules import calculate_entropy_anneal_steps
from ppo_support import K, S, agent, fill


@pytest.mark.parametrize(
    ("episodes", "members", "updates", "steps"),
    [
        (100, 10, 1, 10),
        (100, 16, 1, 7),  # 6.25 rounds: the last one counts whole
        (100, 16, 3, 21),
        (1, 64, 1, 1),
        (0, 8, 2, 0),
    ],
)
def test_anneal_steps_are_rounds_times_updates(episodes, members, updates, steps):
    assert calculate_entropy_anneal_steps(episodes, members, updates) == steps


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((-1, 4, 1), "episodes=-1"),
        ((10, 0, 1), "members=0: must be 1 or more"),
        ((10, 4, 0), "ppo_updates_per_batch=0: must be 1 or more"),
    ],
)
def test_impossible_counts_are_refused(arguments, complaint):
    with pytest.raises(EsperError, match=complaint):
        calculate_entropy_anneal_steps(*arguments)


def test_the_coefficient_arrives_when_the_episodes_are_over():
    """5 members, 15 episodes, 2 updates a round: rounds 0 to 2 anneal, round 3 is at the end."""
    members, updates = 5, 2
    steps = calculate_entropy_anneal_steps(15, members, updates)
    it = agent(entropy=Schedule(0.06, 0.0, steps=steps), epochs=1)
    rollout, seen = it.make_buffer(3, members, S, K), []
    for round_index in range(4):
        fill(it, rollout, round_index)
        seen.append(run_ppo_updates(it, updates, rollout, it.obs_normalizer).entropy_coef)
    assert seen == pytest.approx([0.05, 0.03, 0.01, 0.0], abs=1e-12)


def test_a_schedule_is_a_line_and_then_flat():
    line = Schedule(0.1, 0.5, steps=4)
    assert [line.at(n) for n in (0, 1, 2, 4, 100)] == pytest.approx([0.1, 0.2, 0.3, 0.5, 0.5])
    assert Schedule(0.1).at(1000) == 0.1


def test_a_schedule_over_the_run_needs_its_length():
    line = Schedule(0.1, 0.5, steps="run")
    assert [line.at(n, 4) for n in (0, 1, 4, 100)] == pytest.approx([0.1, 0.2, 0.5, 0.5])
    with pytest.raises(EsperError, match="the run's length is not known here"):
        line.at(0)


BAD = [
    {"start": 0.1, "steps": -1},
    {"start": 0.1, "steps": "always"},
    {"start": math.nan},
    {"start": 0.1, "end": math.inf, "steps": 3},
]


@pytest.mark.parametrize("bad", BAD)
def test_a_schedule_without_sense_is_refused(bad):
    with pytest.raises(EsperError, match="must be"):
        Schedule(**bad)
