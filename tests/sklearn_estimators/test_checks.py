"""scikit-learn's own checks of estimators, all of them."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from esper.sklearn import GrowingClassifier, GrowingRegressor

NOT_APPLICABLE = {
    "check_sample_weight_equivalence_on_dense_data": (
        "a weight scales the loss of a sample, it is not drawn more often: other samples are held "
        "out and batches differ, as in every network trained by batches"
    ),
}
"""Check -> why it cannot hold."""

ESTIMATORS = [
    GrowingClassifier(host_runs=1, epochs=20, device="cpu"),
    GrowingRegressor(host_runs=1, epochs=20, device="cpu"),
]


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=lambda estimator: NOT_APPLICABLE)
@pytest.mark.filterwarnings("ignore")  # checks give data that scikit-learn itself warns about
def test_an_estimator_keeps_the_conventions_of_scikit_learn(estimator, check):
    check(estimator)
