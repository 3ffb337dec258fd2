"""`make_reward`: names, invalid settings, baseline curve, state, custom rewards."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from esper.leyline.protocols import RewardProtocol
from esper.leyline.rewards import RewardComponentsTelemetry
from esper.simic.rewards.config import REWARD_MODES, RewardConfig
from esper.simic.rewards.factory import MODES, make_reward
from esper.simic.rewards.score import ScoreReward
from reward_support import EVERY, RULE, Story, pay, reward_of, step_inputs, totals
from support import refused

every = pytest.mark.parametrize(("mode", "family"), EVERY)


@pytest.fixture(scope="module")
def reported():
    return Story(np.random.default_rng(3), fossilize=True).play()


@every
def test_every_name_makes_a_reward(mode, family):
    assert isinstance(reward_of(mode, family), RewardProtocol)
    assert set(MODES) == set(REWARD_MODES)


def test_score_is_the_default_and_both_ways_to_it_agree(reported):
    plain = make_reward(RewardConfig(), RULE)
    assert isinstance(plain, ScoreReward)
    general = MODES["score"](RewardConfig(), RULE)
    assert np.array_equal(totals(pay(plain, reported)), totals(pay(general, reported)))


BAD = {
    "unknown reward mode 'scored': did you mean 'score'?": {"mode": "scored"},
    "unknown reward family 'los': did you mean 'loss'?": {"family": "los"},
    "reward rollback_penalty=-1: must be 0 or more": {"rollback_penalty": -1},
    "reward rent=nan": {"rent": float("nan")},
    "reward stage_weight=inf": {"stage_weight": float("inf")},
    "reward contribution_weight=-0.5": {"contribution_weight": -0.5},
    "reward advance=1.5: must be from 0 to 1": {"advance": 1.5},
}


@pytest.mark.parametrize("line", BAD)
def test_wrong_settings_are_refused_in_one_line(line):
    said = refused(lambda: RewardConfig(**BAD[line]))
    assert line in said
    assert "\n" not in said


# ---- the baseline curve -------------------------------------------------------------------


def test_the_curve_of_waiting_is_taken_off_and_telescopes(reported):
    curve = np.linspace(0.1, 0.7, len(reported) + 1) ** 2
    plain = pay(make_reward(RewardConfig(), RULE), reported)
    reduced = pay(make_reward(RewardConfig(), RULE, curve), reported)
    for t, (a, b) in enumerate(zip(plain, reduced, strict=True)):
        np.testing.assert_allclose(b.part("baseline"), curve[t] - curve[t + 1])
        np.testing.assert_allclose(b.total, a.total + curve[t] - curve[t + 1])
    difference = totals(plain).sum(axis=0) - totals(reduced).sum(axis=0)
    np.testing.assert_allclose(difference, curve[-1] - curve[0])


def test_a_host_that_follows_the_curve_gets_nothing_for_waiting():
    curve = [0.1, 0.4, 0.5]
    reward = make_reward(RewardConfig(), RULE, curve)
    for t in range(2):
        inputs = step_inputs(t, 2, score_E=curve[t + 1], score_before_E=curve[t])
        assert reward(inputs)[0][0] == pytest.approx(0, abs=1e-15)


def test_a_curve_that_diverged_is_refused():
    line = refused(lambda: make_reward(RewardConfig(), RULE, [0.1, float("nan")]))
    assert "baseline_curve[1] is nan" in line


# ---- episodes ----------------------------------------------------------------------


@every
def test_every_episode_starts_afresh(mode, family, reported):
    reward = reward_of(mode, family)
    first = totals(pay(reward, reported))
    pay(reward, reported[:20])
    assert np.array_equal(totals(pay(reward, reported)), first)


# ---- one's own ----------------------------------------------------------------------------


def accuracy_alone(inputs, /):
    """A reward in two lines: what docs/rewards.md shows."""
    parts = {"accuracy": inputs.accuracy_E - inputs.accuracy_before_E}
    components = RewardComponentsTelemetry.of(parts, inputs.members)
    return components.total, components


def test_a_function_is_a_reward(reported):
    assert isinstance(accuracy_alone, RewardProtocol)
    change = reported[-1].accuracy_E - reported[0].accuracy_before_E
    np.testing.assert_allclose(totals(pay(accuracy_alone, reported)).sum(axis=0), change)


# ---- the page about it ---------------------------------------------------------------------

PAGE = Path(__file__).parents[3] / "docs" / "rewards.md"


def test_the_page_runs_as_written_and_names_everything(reported):
    text = PAGE.read_text()
    names = {"__name__": "rewards_page"}
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), names)
    pay(names["accuracy_alone"], reported)
    assert totals(pay(names["reward"], reported)).any()
    for mode, family in EVERY:
        assert f"| `{mode}` |" in text
        assert f"`{family}`" in text
        for part in pay(reward_of(mode, family), reported[:1])[0].names:
            assert part in text, f"{part} of {mode} is not explained"
    for field in dataclasses.fields(RewardConfig):
        if field.name not in ("mode", "family"):
            assert f"`{field.name}`" in text
