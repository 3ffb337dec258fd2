"""Do the estimators keep their promises? Conventions of scikit-learn: test_checks.py."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris, make_regression
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from torch import nn

from esper.growing.progress import ProgressPrinter
from esper.growing.recipes import WEIGHT_DECAY as DECAY_OF_GROW
from esper.growing.run import GrowRun
from esper.growing.trainers.in_process import process_trainer
from esper.sklearn import GrowingClassifier, GrowingRegressor
from grow_support import every_batch
from support import refused

X, Y = (part[::3] for part in load_iris(return_X_y=True))
NAMES = np.array(["setosa", "versicolor", "virginica"])


def quick(kind=GrowingClassifier, **options):
    """An estimator that trains its model once, for a few epochs."""
    settings = {"host_runs": 1, "epochs": 5, "random_state": 0, "device": "cpu"}
    return kind(**(settings | options))


def good(kind=GrowingClassifier, **options):
    """An estimator that learns 50 samples in a second."""
    return quick(kind, **({"host_runs": None, "epochs": 40} | options))


@pytest.fixture(scope="module")
def fitted():
    return good().fit(X, NAMES[Y])


@pytest.fixture(scope="module")
def regression():
    return make_regression(60, 4, n_targets=2, noise=1.0, random_state=0)


# ---- what it predicts --------------------------------------------------------------------------


def test_string_labels_come_back(fitted):
    assert fitted.classes_.tolist() == NAMES.tolist()
    assert set(fitted.predict(X)) <= set(NAMES)
    assert fitted.score(X, NAMES[Y]) > 0.9


def test_the_plain_network_gives_the_probabilities(fitted):
    logits = fitted.model_(torch.tensor(X, dtype=torch.float32))
    probabilities = logits.softmax(dim=1).detach().numpy()
    np.testing.assert_allclose(fitted.predict_proba(X), probabilities, atol=1e-5)
    np.testing.assert_allclose(np.exp(fitted.predict_log_proba(X)), probabilities, atol=1e-5)
    assert (NAMES[probabilities.argmax(axis=1)] == fitted.predict(X)).all()


def test_networks_are_chosen_by_the_metric_that_is_named(fitted):
    assert fitted.result_.info.metric == "explained"
    assert quick(metric="f1_macro").fit(X, Y).result_.info.metric == "f1_macro"


def test_the_plain_network_is_read_without_esper(fitted, tmp_path):
    file = tmp_path / "model.pkl"
    file.write_bytes(pickle.dumps(fitted.model_))
    code = (
        f"import pickle, sys, torch; model = pickle.load(open({str(file)!r}, 'rb')); "
        f"print(model(torch.zeros(2, 4)).shape[1], any(n.startswith('esper') for n in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3", "False"]


def test_a_prediction_does_not_depend_on_the_other_samples(fitted):
    together = fitted.predict_proba(X)
    alone = np.concatenate([fitted.predict_proba(x[None]) for x in X[::10]])
    assert (together[::10] == alone).all()


def test_the_same_random_state_gives_the_same_predictions_bit_for_bit():
    first, second, other = (quick(host_runs=3, random_state=s).fit(X, Y) for s in (3, 3, 4))
    assert (first.predict_proba(X) == second.predict_proba(X)).all()
    assert (first.predict_proba(X) != other.predict_proba(X)).any()


def test_large_offsets_and_constant_features_do_no_harm():
    moved = np.column_stack([X + 2.0**20, np.full(len(X), 0.1)])
    same = np.column_stack([X, np.full(len(X), 0.1)])
    predicted = [quick().fit(x, Y).predict_proba(x) for x in (moved, same)]
    np.testing.assert_allclose(*predicted, atol=1e-3)


def test_numbers_are_predicted_in_their_units(regression):
    x, y_NK = regression
    y = 1e3 * y_NK[:, 0] + 1e6
    fitted = quick(GrowingRegressor, epochs=60).fit(x, y)
    assert fitted.predict(x).shape == (len(x),)
    assert fitted.score(x, y) > 0.5


def test_targets_keep_their_shape_and_units(regression):
    x, y_NK = regression
    both = good(GrowingRegressor).fit(x, y_NK)
    scaled = good(GrowingRegressor).fit(x, 1e3 * y_NK + 1e6)
    assert both.predict(x).shape == y_NK.shape
    assert both.score(x, y_NK) > 0.5
    np.testing.assert_allclose(scaled.predict(x), 1e3 * both.predict(x) + 1e6, rtol=1e-4)


def test_a_sample_of_weight_0_counts_as_if_it_were_absent():
    wrong = np.arange(len(X)) % 5 > 1
    labels = np.where(wrong, (Y + 1) % 3, Y)
    weighted = quick().fit(X, labels, sample_weight=1.0 - wrong)
    absent = quick().fit(X[~wrong], Y[~wrong], sample_weight=np.ones((~wrong).sum()))
    assert (weighted.predict_proba(X) == absent.predict_proba(X)).all()


def test_a_large_weight_counts_more():
    weighted = good().fit(X, Y, sample_weight=np.where(Y == 1, 50.0, 1.0))
    plain = good().fit(X, Y)
    assert weighted.predict_proba(X)[:, 1].mean() > plain.predict_proba(X)[:, 1].mean() + 0.05


def test_refit_trains_on_the_samples_that_were_held_out(monkeypatch):
    sizes = list[int]()

    def noting(task):
        sizes.append(len(task.train))
        return process_trainer(task)  # on a GPU, the one that captures

    monkeypatch.setattr("esper.growing.refit.process_trainer", noting)
    held = quick(refit=False).fit(X, Y)
    assert not sizes
    inputs = torch.tensor(X)
    assert torch.equal(held.model_(inputs), held.result_.model(inputs))
    again = quick().fit(X, Y)
    assert sizes == [len(X)]
    assert not torch.equal(again.model_(inputs), held.model_(inputs))
    assert torch.equal(again.result_.model(inputs), held.model_(inputs))


def test_a_fit_ends_in_the_minutes_it_has():
    began = time.monotonic()
    grown = quick(host_runs=None, epochs=10_000, minutes=0.1).fit(X, Y)
    assert time.monotonic() - began < 30, "a run of so many epochs takes minutes"
    assert grown.result_.info.budget.host_runs is None


def test_the_network_of_the_search_is_kept_if_there_is_no_time_to_train_it_again(monkeypatch):
    asked = []

    def late(run, record, samples, until):
        asked.append(until - time.monotonic())

    monkeypatch.setattr(GrowRun, "refit", late)
    grown = quick(minutes=1.0).fit(X, Y)
    assert 0 < asked[0] < 60
    inputs = torch.tensor(X)
    assert torch.equal(grown.model_(inputs), grown.result_.model(inputs))


# ---- parameters --------------------------------------------------------------------------------


def test_a_clone_has_the_parameters_and_no_fit(fitted):
    made = clone(fitted)
    assert made.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        made.predict(X)


def test_the_cap_on_parameters_holds_and_other_widths_use_it():
    x, y = load_iris(return_X_y=True)
    grown = quick(host_runs=6, params=150).fit(x, y)
    assert max(network.params for network in grown.result_.frontier) <= 150
    assert sum(p.numel() for p in grown.model_.parameters()) == grown.result_.best.params
    assert "x2" in grown.result_.info.variants
    assert 2 * grown.result_.host.params > 140, "twice as wide uses what the cap allows"


def test_a_model_of_your_own_is_fitted_into_a_cap_below_it():
    def model(features, outputs):
        return nn.Sequential(nn.Linear(features, 9), nn.Tanh(), nn.Linear(9, outputs))

    grown = quick(model=model, params=40, host_runs=3).fit(X[:50], Y[:50])
    assert grown.result_.host.params == 5 * 9 + 10 * 3
    assert sum(p.numel() for p in grown.model_.parameters()) <= 40


def test_a_model_of_your_own_is_grown():
    built = []

    def model(features, outputs):
        built.append((features, outputs))
        return nn.Sequential(nn.Linear(features, 5), nn.Tanh(), nn.Linear(5, outputs))

    grown = quick(model=model).fit(X, Y)
    assert grown.result_.info.weight_decay == DECAY_OF_GROW["adamw"]
    assert set(built) == {(4, 3)}
    assert grown.result_.host.params == 5 * 5 + 6 * 3
    instance = model(4, 3)
    before = [p.clone() for p in instance.parameters()]
    estimator = quick(model=instance)
    assert estimator.fit(X, Y).model is instance
    assert all(map(torch.equal, before, instance.parameters()))


def test_the_default_model_has_the_regularisers_of_the_page_or_what_is_given(fitted):
    assert fitted.result_.info.weight_decay == 0.3
    assert dict(fitted.result_.info.settings)["label_smoothing"] == "0.10000000000000001"
    assert quick(weight_decay=0).fit(X, Y).result_.info.weight_decay == 0


def test_pipelines_and_cross_validation_work():
    scores = cross_val_score(make_pipeline(StandardScaler(), good()), X, NAMES[Y], cv=2)
    assert min(scores) > 0.7


def test_a_grid_over_the_cap_finds_one():
    search = GridSearchCV(quick(), {"params": [60, 600]}, cv=2).fit(X, Y)
    assert search.best_params_["params"] in (60, 600)
    most = search.best_params_["params"]
    assert sum(p.numel() for p in search.best_estimator_.model_.parameters()) <= most


# ---- what it keeps -----------------------------------------------------------------------------


def test_a_pickle_predicts_the_same_and_keeps_the_result(fitted):
    again = pickle.loads(pickle.dumps(fitted))
    assert (again.predict_proba(X) == fitted.predict_proba(X)).all()
    assert str(again.result_) == str(fitted.result_)
    assert again.result_.pick(params=10_000).model(torch.tensor(X[:2])).shape == (2, 3)


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path)
    grown = quick().fit(X, Y)
    assert [path.name for path in tmp_path.rglob("*")] == ["temporary"]
    assert "run folder" not in str(grown.result_)
    with pytest.raises(ValueError, match="give folder= to the estimator"):
        grown.result_.report("report.html")


def test_a_folder_keeps_the_run(tmp_path):
    grown = quick(folder=tmp_path).fit(X, Y)
    (run,) = tmp_path.iterdir()
    assert {"result.json", "report.html"} <= {path.name for path in run.iterdir()}
    assert str(run) in str(grown.result_)
    assert grown.result_.table().rows


def test_an_interrupted_fit_returns_the_best_so_far(monkeypatch):
    def interrupt(self, search, running):
        if running[0].trained == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ProgressPrinter, "on_tick", interrupt)
    every_batch(monkeypatch)
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        assert quick().fit(X, Y).predict(X).shape == Y.shape


# ---- mistakes ----------------------------------------------------------------------------------

MISTAKES = [
    ({"model": 3}, {}, "model=3: give None, an nn.Module, or a function"),
    ({"params": 10}, {}, "params=10: the smallest network for 4 features and 3 outputs has 11"),
    ({"params": "many"}, {}, "budget params='many': give a number"),
    ({"host_runs": -1}, {}, "budget host_runs=-1: must be above 0"),
    ({"minutes": 1e-6}, {}, "minutes=1e-06: it took "),
    ({"minutes": -1}, {}, "budget minutes=-1: must be above 0"),
    ({"metric": "accurasy"}, {}, "metric 'accurasy'"),
    ({"categorical": "city"}, {}, "categorical='city': name columns of a table, as in ['city']"),
    ({"categorical": [4]}, {}, "unknown column '4' of categorical="),
    ({"epochs": 0}, {}, "epochs=0: give a finite number above 0"),
    ({"weight_decay": -1}, {}, "weight_decay=-1: give a number of 0 or more, or 'auto'"),
    ({"validation_fraction": 1.0}, {}, "validation_fraction=1.0: give a number between 0 and 1"),
    ({"device": "tpu"}, {}, "device 'tpu'"),
    ({}, {"y": np.zeros(len(Y), int)}, "y has 1 class, 0: a classifier needs samples of two"),
    ({}, {"X": X[::17], "y": [0, 1, 2]}, "y has 3 classes in 3 samples: too few to hold some out"),
    ({}, {"sample_weight": (Y == 0).astype(float)}, "sample_weight leaves samples of less than"),
    ({"model": lambda i, o: nn.Linear(7, 3)}, {}, "its first Linear takes 7"),
]


@pytest.mark.parametrize(("options", "data", "message"), MISTAKES, ids=lambda v: str(v)[:30])
def test_a_mistake_is_one_line(options, data, message):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        quick(**options).fit(**({"X": X, "y": Y} | data))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("kind", "samples"), [(GrowingClassifier, 4), (GrowingRegressor, 3)])
def test_a_handful_of_samples_is_enough(kind, samples):
    y = np.arange(samples) % 2 if kind is GrowingClassifier else X[:samples, 0]
    assert len(quick(kind).fit(X[:samples], y).predict(X)) == len(X)


def test_a_column_of_text_is_named():
    class Frame:
        """As much of a pandas data frame as is used."""

        columns = ("age", "city")
        shape = (3, 2)

        def to_numpy(self):
            return np.array([[1.0, "Rome"], [2.0, "Oslo"], [3.0, "Rome"]], dtype=object)

        def __array__(self, dtype=None, copy=None):
            return self.to_numpy().astype(dtype or object)

    line = refused(lambda: quick().fit(Frame(), [0, 1, 0]))
    assert line.startswith("X: column 'city' holds text such as 'Rome'; categorical='auto' encod")


@pytest.mark.parametrize("kind", [GrowingClassifier, GrowingRegressor])
def test_columns_of_text_are_encoded_on_request(kind):
    city = np.array(["Rome", "Oslo", "Lima"], dtype=object)[Y]
    table = {"size": X[:, 0], "city": city}
    y = Y if kind is GrowingClassifier else Y.astype(float)
    estimator = kind(categorical="auto", host_runs=1, epochs=20, random_state=0).fit(table, y)
    assert estimator.score(table, y) > 0.8, "the city decides"
    assert estimator.n_features_in_ == 2
    again = pickle.loads(pickle.dumps(estimator))
    new = {"size": [0.0, 1.0], "city": [None, "Bonn"]}
    assert np.isfinite(again.predict(new)).all()
    encoded = again.result_.encode(new)
    assert encoded.tolist() == [[0, 1, 0, 0, 0], [1, 0, 0, 0, 0]]
    line = refused(lambda: again.predict({"city": ["Rome"]}))
    assert line == "X: no column 'size', which train has; they have 'city'"


def test_categorical_columns_work_in_a_pipeline_and_a_grid():
    city = np.array(["Rome", "Oslo", "Lima"], dtype=object)[Y]
    table = np.column_stack([X[:, 0].astype(object), city])
    pipeline = Pipeline([("rows", "passthrough"), ("grown", quick(epochs=20))])
    search = GridSearchCV(pipeline, {"grown__categorical": [np.array([1])]}, cv=2).fit(table, Y)
    assert search.best_score_ > 0.8, "the city decides"
    assert clone(search.best_estimator_)[-1].categorical.tolist() == [1]


def test_a_target_that_never_changes_is_one_line():
    with pytest.raises(ValueError, match="y is constant, 1 in all samples") as caught:
        quick(GrowingRegressor).fit(X, np.ones(len(X)))
    assert "\n" not in str(caught.value)


CHEAP_CHECKS = (
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
    "check_estimators_unfitted",
    "check_fit2d_1sample",
    "check_fit1d",
    "check_estimator_sparse_tag",
    "check_complex_data",
)
"""Checks of scikit-learn that take less than a second; all of them: test_checks.py."""


@pytest.mark.parametrize("kind", [GrowingClassifier, GrowingRegressor])
@pytest.mark.parametrize("name", CHEAP_CHECKS)
@pytest.mark.filterwarnings("ignore")
def test_conventions_of_scikit_learn_hold(kind, name):
    getattr(estimator_checks, name)(kind.__name__, quick(kind, epochs=2))
