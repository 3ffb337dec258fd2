"""The score by hand, its monotonicity, and its agreement with what a real population counts."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.kasmina.rows.rows import training_rows
from esper.leyline import SeedStage
from esper.leyline.prices import ScoreConstants
from esper.leyline.stages import LIVE_STAGES
from esper.tasks.scoring import (
    LIFE_STEPS,
    TrainingFlops,
    Upkeep,
    added,
    language_accuracy,
    live_mac_share,
    live_seeds,
    score,
    suffix_macs,
    upkeep,
)
from support import batch, bring_to, make_population, pass_step, refused

CONSTANTS = ScoreConstants(c_p=0.1, c_m=0.01, c_f=0.5)
P0, M0 = 100, 1000


def one(values: list[float], dtype: type = np.float32) -> np.ndarray:
    """A single member's slots as `[1, S]`."""
    return np.array([values], dtype=dtype)


def score_of(accuracy: float, alphas: list[float], params: list[int], macs: list[int]) -> float:
    arrays = one(alphas), one(params, np.int64), one(macs, np.int64)
    return float(score(np.array([accuracy]), *arrays, P0, M0, CONSTANTS)[0])


# ---- closed form -----------------------------------------------------------------------------


def test_score_by_hand():
    alpha_ES = np.array([[0, 0], [1, 0], [0.01, 1]], dtype=np.float32)
    params_ES = np.array([[100, 0], [100, 50], [100, 200]], dtype=np.int64)
    macs_ES = np.array([[9, 9], [7000, 9], [1000, 2000]], dtype=np.int64)
    accuracy_E, flops_E = np.array([0.5, 0.9, 0.75]), np.array([1.0, 1.0, 1.25])
    found = score(accuracy_E, alpha_ES, params_ES, macs_ES, P0, M0, CONSTANTS, flops_E)
    expected = [0.5, 0.9 - 0.1 * 1 - 0.01 * 3, 0.75 - 0.1 * 2 - 0.01 * 2 - 0.5 * 0.25]
    assert np.allclose(found, expected, rtol=0, atol=1e-12)
    assert found.dtype == np.float64


def test_a_member_without_seeds_scores_its_accuracy_exactly():
    assert score_of(0.1 + 0.2, [0, 0], [5, 5], [5, 5]) == 0.1 + 0.2


def test_members_do_not_touch_each_other():
    rng = np.random.default_rng(0)
    arrays = (
        rng.random(6),
        rng.random((6, 3)).astype(np.float32),
        rng.integers(1, 99, (6, 3)),
        rng.integers(1, 99, (6, 3)),
    )
    whole = score(*arrays, P0, M0, CONSTANTS)
    alone = [score(*(a[i : i + 1] for a in arrays), P0, M0, CONSTANTS)[0] for i in range(6)]
    assert whole.tolist() == alone


# ---- monotonicity ----------------------------------------------------------------------------

seeds = st.tuples(st.floats(0.001, 1), st.integers(1, 10**6), st.integers(1, 10**9))


@given(st.lists(seeds, min_size=1, max_size=6), st.integers(0, 5), st.floats(0, 1))
def test_a_seed_never_raises_the_score_and_removing_it_restores_it(grown, which, accuracy):
    alphas, params, macs = (list(column) for column in zip(*grown, strict=True))
    which %= len(grown)
    without = [0.0 if s == which else a for s, a in enumerate(alphas)]
    before = score_of(accuracy, without, params, macs)
    with_seed = score_of(accuracy, alphas, params, macs)
    assert with_seed < before
    gone = [0 if s == which else p for s, p in enumerate(params)]
    assert score_of(accuracy, without, gone, macs) == before


@given(st.lists(seeds, min_size=1, max_size=6), st.floats(0.001, 1))
def test_a_seed_is_counted_in_full_at_any_alpha(grown, other):
    alphas, params, macs = (list(column) for column in zip(*grown, strict=True))
    assert score_of(0.5, [other] * len(grown), params, macs) == score_of(0.5, alphas, params, macs)


# ---- against a real population ---------------------------------------------------------------


def reports_of(population):
    reports = population.slot_reports()
    return reports.alpha_ES, reports.params_ES, reports.macs_ES


@pytest.fixture
def grown():
    """Seeds in three stages: blended, incubating, permanent with a gate."""
    population = make_population(members=4)
    pass_step(population, train=True)
    bring_to(population, SeedStage.FOSSILIZED, [3], "r0c0", "conv_heavy", style=2)
    bring_to(population, SeedStage.HOLDING, [1, 3], "r0c1", "conv_light")
    bring_to(population, SeedStage.TRAINING, [2, 3], "r0c2", "attention")
    return population


def test_added_is_what_the_population_counts(grown):
    alpha_ES, params_ES, macs_ES = reports_of(grown)
    host = grown.network.host.parameters_per_member
    assert (added(alpha_ES, params_ES) + host == grown.parameters_E()).all()
    assert (added(alpha_ES, macs_ES) + grown.probe.host_macs == grown.macs_E()).all()
    dp = added(alpha_ES, params_ES)
    assert dp[0] == dp[2] == 0 < dp[1] < dp[3]


def test_a_seed_pruned_by_a_ramp_pays_until_its_alpha_is_0(grown):
    alpha_ES, params_ES, _ = reports_of(grown)
    full = added(alpha_ES, params_ES)[1]
    grown.prune([1], "r0c1", speed=3)
    paid, alphas = [], []
    for _ in range(4):
        pass_step(grown)
        alpha_ES, params_ES, _ = reports_of(grown)
        paid.append(float(added(alpha_ES, params_ES)[1]))
        alphas.append(float(alpha_ES[1, 1]))
    assert alphas[0] > alphas[1] > 0 == alphas[2]
    assert paid == [full, full, 0, 0]


def test_a_cycle_of_growing_and_pruning_restores_the_score_exactly(grown):
    def now() -> list[float]:
        arrays = reports_of(grown)
        return score(np.full(4, 0.6), *arrays, P0, M0, CONSTANTS).tolist()

    before = now()
    bring_to(grown, SeedStage.HOLDING, [0], "r0c0", "conv_heavy")
    assert now()[0] < before[0]
    grown.prune([0], "r0c0", speed=0)
    assert now() == before


# ---- accuracy --------------------------------------------------------------------------------


def test_language_accuracy_is_0_at_guessing_and_1_at_certainty():
    vocab = 65
    loss_E = np.array([math.log(vocab), 0.0, math.log(vocab) / 4])
    assert language_accuracy(loss_E, vocab).tolist() == [0.0, 1.0, 0.75]


def test_language_accuracy_stays_a_number_between_0_and_1():
    bad_E = np.array([99.0, np.nan, np.inf, -np.inf, -0.1], dtype=np.float32)
    assert language_accuracy(bad_E, 7).tolist() == [0.0, 0.0, 0.0, 0.0, 1.0]


# ---- upkeep ----------------------------------------------------------------------------------


def test_upkeep_is_paid_by_live_seeds_only():
    macs_ES = np.full((len(SeedStage), 1), 500, dtype=np.int64)
    stage_ES = np.array([[s] for s in SeedStage], dtype=np.int8)
    paid = upkeep(live_mac_share(stage_ES, macs_ES, M0), live_seeds(stage_ES), Upkeep())
    assert [SeedStage(s) for s in np.flatnonzero(paid)] == sorted(LIVE_STAGES)
    assert np.allclose(paid[paid > 0], Upkeep().cap / 2)


def test_upkeep_is_proportional_and_capped():
    rule = Upkeep(good_gain=0.14)
    assert math.isclose(rule.cap, 0.001)
    share_E, count_E = np.array([0.0, 0.25, 1.0, 50.0, 50.0]), np.array([0, 1, 1, 1, 2])
    expected = [0.0, 0.00025, 0.001, 0.001, 0.002]
    assert np.allclose(upkeep(share_E, count_E, rule), expected)


@given(st.floats(0, 100), st.floats(0, 100), st.integers(1, 5))
def test_one_more_live_seed_never_lowers_upkeep(share, more, count):
    share_E, count_E = np.array([share, share + more]), np.array([count, count + 1])
    few, many = upkeep(share_E, count_E, Upkeep())
    assert 0 <= few <= many


def test_a_normal_life_costs_at_most_a_tenth_of_a_good_seeds_gain():
    rule = Upkeep()
    dearest = upkeep(np.array([1e6]), np.array([1]), rule)[0] * LIFE_STEPS
    assert dearest <= 0.1 * rule.good_gain * (1 + 1e-12)


# ---- training FLOPs --------------------------------------------------------------------------

T_, B_, H_, D_ = SeedStage.TRAINING, SeedStage.BLENDING, SeedStage.HOLDING, SeedStage.DORMANT


def test_training_flops_by_hand():
    flops = TrainingFlops(3, host_macs=100, suffix_macs_S=np.array([60, 10]), episode_samples=20)
    stage_ES = np.array([[D_, D_], [T_, D_], [T_, B_]], dtype=np.int8)
    alpha_ES = np.array([[0, 0], [0, 0], [0, 0.5]], dtype=np.float32)
    macs_ES = np.array([[0, 0], [7, 0], [7, 5]], dtype=np.int64)
    flops.add(10, stage_ES, alpha_ES, macs_ES)
    shadow, shadow_under_a_seed = 3 * 7 + 2 * 60, 3 * 7 + 2 * (60 + 5)
    extra = [0, 10 * shadow, 10 * (3 * 5 + shadow_under_a_seed)]
    assert flops.extra_E.tolist() == extra
    assert np.allclose(flops.ratio_E, [1 + e / (3 * 100 * 20) for e in extra])


def test_at_the_end_the_ratio_is_all_flops_over_the_hosts():
    flops = TrainingFlops(1, 100, np.array([0]), episode_samples=30)
    for samples, alpha in ((10, 0.0), (10, 1.0), (10, 0.0)):
        flops.add(samples, one([H_ if alpha else D_], np.int8), one([alpha]), one([50], np.int64))
    assert math.isclose(flops.ratio_E[0], (300 * 30 + 150 * 10) / (300 * 30))


def test_waiting_pays_no_flops_back():
    flops = TrainingFlops(1, 100, np.array([0]), episode_samples=30)
    flops.add(10, one([B_], np.int8), one([0.5]), one([50], np.int64))
    spent = flops.ratio_E[0]
    flops.add(10, one([D_], np.int8), one([0]), one([0], np.int64))
    assert flops.ratio_E[0] == spent > 1
    flops.reset()
    assert (flops.ratio_E[0], flops.extra_E[0]) == (1, 0)


def test_a_seed_at_alpha_0_that_does_not_incubate_costs_nothing():
    flops = TrainingFlops(1, 100, np.array([0]), episode_samples=10)
    flops.add(10, one([SeedStage.GERMINATED], np.int8), one([0]), one([50], np.int64))
    assert flops.ratio_E[0] == 1


@pytest.mark.parametrize("kind", ["cnn", "transformer", "mlp", "batchnorm"])
def test_suffix_macs_are_those_of_the_host_behind_each_slot(kind):
    population = make_population(members=1, kind=kind)
    x, y = batch(1, kind=kind)
    population.evaluate(x, y)
    template = population.network.host.template.train()
    before = {name: value.clone() for name, value in template.state_dict().items()}
    suffix_S = suffix_macs(population, x[0])
    assert (np.diff(suffix_S) <= 0).all()
    assert 0 < suffix_S[-1] < suffix_S[0] < population.probe.host_macs
    assert all((value == before[name]).all() for name, value in template.state_dict().items())
    assert template.training


def test_suffix_macs_of_a_cnn_by_hand():
    population = make_population(members=1)
    x, _ = batch(1)
    conv_2, conv_3, head = 9 * 4 * 8 * 4 * 4, 9 * 8 * 16 * 2 * 2, 16 * 5
    assert suffix_macs(population, x[0]).tolist() == [conv_2 + conv_3 + head, conv_3 + head, head]


def test_rows_that_are_accounted_are_the_rows_that_train(grown):
    """One main row each, a shadow row per incubating seed, later seeds switched on in it."""
    table = training_rows(grown.lifecycle)
    incubating = grown.lifecycle.stage_ES == SeedStage.TRAINING
    assert table.shadow_R.sum() == incubating.sum() == 2
    assert (~table.shadow_R).sum() == grown.members


# ---- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda: ScoreConstants(c_p=-0.1), "c_p=-0.1"),
        (lambda: ScoreConstants(c_f=math.nan), "c_f=nan"),
        (lambda: Upkeep(good_gain=2.0), "good_gain=2.0"),
    ],
)
def test_what_cannot_be_scored_is_one_line(action, words):
    assert words in refused(action)
