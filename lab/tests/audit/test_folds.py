"""What is learnt from some contexts is judged on others: which planner sees what, case by case."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from audit_synthetic import made_audit
from esper_lab.audit import regrets
from esper_lab.audit.cases import Options, final_means
from esper_lab.audit.planners import RegressionPlanner
from esper_lab.audit.regrets import RegretSettings, _Computation

CONTEXTS, DRAWS = 7, 3
SETTINGS = RegretSettings(draws=DRAWS, searches=(), folds=3, stops=False)


@pytest.fixture
def computed() -> _Computation:
    """Contexts that can be told apart by the number of samples that a planner sees."""
    audit = made_audit(contexts=CONTEXTS, hosts=4, slots=1, steps=2, noise=0.05)
    known = replace(audit.contexts, samples_C=1000 + np.arange(CONTEXTS))
    audit = replace(audit, contexts=known)
    return _Computation(audit, SETTINGS, Options.trained_to_the_end(audit.info))


class Spy(RegressionPlanner):
    """Remembers what it is made from, and predicts the number of the context that it is shown."""

    made: list[Spy]

    def __init__(self, observed, finals) -> None:
        self.trained_C = observed.samples_N - 1000
        self.accuracy_CJ = finals.accuracy_CJ
        self.asked: list[np.ndarray] = []
        self.made.append(self)

    def rank(self, observed):
        return 100.0 + self.accuracy(observed)

    def accuracy(self, observed):
        self.asked.append(observed.samples_N - 1000)
        return np.repeat((observed.samples_N - 1000.0)[:, None], self.accuracy_CJ.shape[1], axis=1)


def test_every_prediction_comes_from_a_planner_that_never_saw_its_context(computed, monkeypatch):
    monkeypatch.setattr(Spy, "made", [], raising=False)
    monkeypatch.setattr(regrets, "_planner_makers", lambda *_: {"one": Spy, "regression": Spy})
    choose = final_means(computed.audit, np.array([0, 1]), computed.options)
    rank_NJ, regressed_CJ = computed._held_out(choose)
    for planner in Spy.made:
        asked = {int(c) for one in planner.asked for c in one}
        trained = set(planner.trained_C.tolist())
        assert not asked & trained
        assert asked | trained == set(range(CONTEXTS))
        np.testing.assert_array_equal(planner.accuracy_CJ, choose.accuracy_CJ[planner.trained_C])
    assert len(Spy.made) == 2 * SETTINGS.folds
    np.testing.assert_array_equal(regressed_CJ[:, 0], np.arange(CONTEXTS))
    for ranked_NJ in rank_NJ.values():
        np.testing.assert_array_equal(ranked_NJ[:, 0], 100 + np.repeat(np.arange(CONTEXTS), DRAWS))


def test_each_half_of_the_hosts_chooses_once_and_judges_once(computed, monkeypatch):
    asked = []
    monkeypatch.setattr(computed, "_one_way", lambda *way: asked.append(way) or {})
    computed.contenders()
    (first, second), (third, fourth) = [[half.tolist() for half in way] for way in asked]
    assert sorted(first + second) == [0, 1, 2, 3]
    assert (third, fourth) == (second, first)


@pytest.mark.parametrize(("noise", "weight"), [(0.0, 1.0), (0.5, 0.5), (3.0, 0.0)])
def test_shrinking_weighs_by_the_noise_of_the_mean_over_hosts(computed, monkeypatch, noise, weight):
    """`noise`: variance of the mean over two hosts, in that of the means around the regression."""
    choose = final_means(computed.audit, np.array([0, 1]), computed.options)
    own_CJ = choose.accuracy_CJ - choose.accuracy_CJ.mean(axis=1, keepdims=True)
    regressed_CJ = own_CJ + 0.1 * np.sign(np.arange(own_CJ.size).reshape(own_CJ.shape) % 2 - 0.5)
    between_hosts = np.sqrt(noise * 0.01 * 2)
    monkeypatch.setattr(computed, "host_spread", lambda: (np.nan, between_hosts))
    found_NJ = computed._shrunk(choose, regressed_CJ, hosts=2)
    mixed_CJ = weight * own_CJ + (1 - weight) * regressed_CJ
    context_N = np.repeat(np.arange(CONTEXTS), DRAWS)
    rent_NJ = computed.observed.price_N[:, None] * choose.rent_CJ[context_N]
    np.testing.assert_allclose(found_NJ, mixed_CJ[context_N] - rent_NJ, atol=1e-12)
