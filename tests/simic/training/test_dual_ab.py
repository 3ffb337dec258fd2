"""`dual_ab`: same hosts, same start, and only scores are compared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ttest_rel

from esper.leyline.codec import read_record, to_json
from esper.leyline.seeds import EVALUATION_SEEDS
from esper.simic.rewards.config import RewardConfig
from esper.simic.training.dual_ab import Difference, DualAB, Pair, dual_ab
from loop_support import tiny_config, tiny_task, tiny_trainer
from support import refused

SCORE, SHAPED = RewardConfig(), RewardConfig(mode="shaped", stage_weight=0.3)


def compared(a: RewardConfig, b: RewardConfig, rounds: int = 2, **settings):
    config = tiny_config(rounds=rounds)
    return dual_ab(config, a, b, spec=tiny_task(), **({"evaluation_envs": 3} | settings))


@pytest.mark.slow
def test_a_reward_against_itself_differs_by_exactly_nothing():
    found = compared(SHAPED, SHAPED)
    (pair,) = found.pairs
    assert not pair.learning_UE.any()
    assert not pair.judged_N.any()
    assert found.learning() == Difference(0.0, 0.0, 0.0, 4, "members")
    assert found.judged() == Difference(0.0, 0.0, 0.0, 3, "members")


@pytest.fixture(scope="module")
def two():
    reported = []
    found = compared(SCORE, SHAPED, on_round=lambda *news: reported.append(news))
    return found, reported


def test_both_start_alike_and_go_in_lockstep(two):
    """Before the first update no pay has had a say: the first round is the same, bit for bit."""
    found, reported = two
    (pair,) = found.pairs
    assert pair.score_a_UE.shape == pair.score_b_UE.shape == (2, 4)
    assert not pair.learning_UE[0].any()
    assert pair.learning_UE[1].any(), "then they part"
    assert [(repeat, round_index) for repeat, round_index, _ in reported] == [(0, 0), (0, 1)]
    assert reported[1][2] == (pair.score_a_UE[1].mean(), pair.score_b_UE[1].mean())


def test_each_arm_is_the_run_it_would_have_been_alone(two):
    (pair,) = two[0].pairs
    for reward, score_UE in ((SCORE, pair.score_a_UE), (SHAPED, pair.score_b_UE)):
        alone = tiny_trainer(replace(tiny_config(rounds=2), reward=reward)).run()
        np.testing.assert_array_equal(np.stack([r.score_E for r in alone]), score_UE)


@pytest.mark.slow
def test_scores_are_those_of_whole_episodes_however_often_is_learnt():
    """Updates in the middle of an episode add no rows: a score there is not the episode's."""
    config = tiny_config(rounds=2, rollout_steps=3)
    found = dual_ab(config, SCORE, SHAPED, spec=tiny_task(), evaluation_envs=2)
    (pair,) = found.pairs
    assert pair.score_a_UE.shape == pair.score_b_UE.shape == (2, 4)
    history = tiny_trainer(config).run()
    np.testing.assert_array_equal(pair.score_a_UE[-1], history[-1].score_E)


def test_the_record_outlasts_a_file(two):
    found = two[0]
    again = read_record(DualAB, to_json(found), "dual_ab")
    assert again.pairs == found.pairs
    assert (again.reward_a, again.reward_b) == (SCORE, SHAPED)


def of_pairs(*differences: list[float]) -> DualAB:
    pairs = []
    for seed, judged in enumerate(differences):
        b = np.array(judged)
        pairs.append(Pair(seed, np.zeros((1, len(b))), b[None], np.zeros(len(b)), b))
    return DualAB(SCORE, SHAPED, 7, tuple(pairs))


def test_the_interval_of_one_seed_is_that_of_a_paired_t_test_over_members():
    values = [0.1, -0.02, 0.05, 0.2, 0.0]
    found = of_pairs(values)
    expected = ttest_rel(values, np.zeros(5)).confidence_interval(0.95)
    for said in (found.judged(), found.learning()):
        assert (said.low, said.high) == pytest.approx((expected.low, expected.high))
        assert (said.mean, said.count, said.over) == (pytest.approx(0.066), 5, "members")


def test_with_several_seeds_a_training_is_one_value_however_many_members_it_had():
    found = of_pairs([0.1, 0.3], [0.0, 0.2], [0.4, 0.4]).judged()
    expected = ttest_rel([0.2, 0.1, 0.4], np.zeros(3)).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert (found.count, found.over) == (3, "training seeds")


def test_what_cannot_be_compared_is_refused():
    assert "repeats=0" in refused(lambda: compared(SCORE, SHAPED, repeats=0))
    assert "evaluation_envs=0" in refused(lambda: compared(SCORE, SHAPED, evaluation_envs=0))
    said = refused(lambda: compared(SCORE, SHAPED, repeats=3, evaluation_seed=2))
    assert "seeds 0 to 2" in said


def test_a_seed_kept_for_evaluation_is_refused_before_the_first_is_trained_on():
    reported = []
    last_before = replace(tiny_config(rounds=1), seed=EVALUATION_SEEDS[0] - 1)
    said = refused(
        lambda: dual_ab(
            last_before, SCORE, SHAPED, repeats=2, spec=tiny_task(),
            on_round=lambda *news: reported.append(news),
        )
    )  # fmt: skip
    assert f"seed {EVALUATION_SEEDS[0]}" in said
    assert reported == []
