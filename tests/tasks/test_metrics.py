"""Metrics are scikit-learn's, over the whole part; errors and differences are those of samples."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from torch import Tensor, nn

import esper
from esper.tasks.measuring import (
    RESAMPLES,
    constant_score,
    difference,
    judge,
    kept_outputs,
    measure,
)
from esper.tasks.metric_forms import Metric
from esper.tasks.metrics import METRICS, make_metric
from esper.tasks.objectives import make_training_loss, with_sample_weights
from grow_support import quick_search
from support import refused

PART = 90
"""Samples; more than one batch of 32."""


def metric_for(name, targets: Tensor, outputs: Tensor, loss="auto", **options) -> Metric:
    made = make_training_loss(loss, targets=targets, output_shape=outputs.shape[1:], **options)
    return make_metric(name, made, targets, targets)


def scored(metric: Metric, outputs: Tensor, targets: Tensor) -> float:
    kept_N, _ = kept_outputs(metric, lambda some: outputs[some], targets, batch_size=32)
    return metric.value(kept_N, targets)


def draw(seed: int, kind: str) -> tuple[Tensor, Tensor]:
    """Outputs with ties, and targets that hold every class."""
    generator = torch.Generator().manual_seed(seed)
    shape = {"two": (2,), "binary": (1,), "many": (4,), "labels": (3,), "numbers": (3,)}[kind]
    outputs = (torch.randn(PART, *shape, generator=generator) * 4).round() / 4
    if kind == "numbers":
        return outputs, outputs * 0.3 + torch.randn(PART, 3, generator=generator)
    if kind == "labels":
        return outputs, (torch.rand(PART, 3, generator=generator) < 0.3).long()
    classes = 4 if kind == "many" else 2
    labels = torch.randint(classes, (PART,), generator=generator)
    labels[:classes] = torch.arange(classes)
    return outputs, labels


def probabilities(outputs: Tensor) -> np.ndarray:
    return outputs.double().softmax(dim=1).numpy()


def yes(outputs: Tensor) -> np.ndarray:
    """Probability of class 1 of two."""
    if outputs.shape[1] == 1:
        return outputs.double().sigmoid()[:, 0].numpy()
    return probabilities(outputs)[:, 1]


def labelled(outputs: Tensor) -> np.ndarray:
    return (yes(outputs) > 0.5 if outputs.shape[1] == 1 else outputs.argmax(1).numpy()) + 0


OVR = {"multi_class": "ovr", "average": "macro"}
BY_LABELS = {
    "accuracy": sk.accuracy_score,
    "balanced_accuracy": sk.balanced_accuracy_score,
    "f1_macro": partial(sk.f1_score, average="macro"),
}
REFERENCES = {
    **{(name, kind): lambda o, y, f=f: f(y, labelled(o))
       for name, f in BY_LABELS.items() for kind in ("two", "binary", "many")},
    **{("f1", kind): lambda o, y: sk.f1_score(y, labelled(o)) for kind in ("two", "binary")},
    **{("roc_auc", kind): lambda o, y: sk.roc_auc_score(y, yes(o)) for kind in ("two", "binary")},
    **{("average_precision", kind): lambda o, y: sk.average_precision_score(y, yes(o))
       for kind in ("two", "binary")},
    **{("log_loss", kind): lambda o, y: sk.log_loss(y, yes(o)) for kind in ("two", "binary")},
    ("roc_auc", "many"): lambda o, y: sk.roc_auc_score(y, probabilities(o), **OVR),
    ("average_precision", "many"): lambda o, y: sk.average_precision_score(y, probabilities(o)),
    ("log_loss", "many"): lambda o, y: sk.log_loss(y, probabilities(o)),
    ("perplexity", "many"): lambda o, y: math.exp(sk.log_loss(y, probabilities(o))),
    ("accuracy", "labels"): lambda o, y: sk.accuracy_score(y, o > 0),
    ("label_accuracy", "labels"): lambda o, y: 1 - sk.hamming_loss(y, o > 0),
    ("f1_macro", "labels"): lambda o, y: sk.f1_score(y, o > 0, average="macro", zero_division=0),
    ("roc_auc", "labels"): lambda o, y: sk.roc_auc_score(y, o),
    ("average_precision", "labels"): lambda o, y: sk.average_precision_score(y, o),
    ("r2", "numbers"): lambda o, y: sk.r2_score(y, o),
    ("mae", "numbers"): lambda o, y: sk.mean_absolute_error(y, o),
    ("rmse", "numbers"): lambda o, y: sk.root_mean_squared_error(y, o),
}  # fmt: skip


def test_every_metric_has_its_reference():
    assert {name for name, _ in REFERENCES} == set(METRICS)


@pytest.mark.parametrize(("name", "kind"), REFERENCES)
@settings(max_examples=15)
@given(seed=st.integers(0, 10_000))
def test_it_is_what_scikit_learn_computes(name, kind, seed):
    outputs, targets = draw(seed, kind)
    metric = metric_for(name, targets, outputs)
    wanted = REFERENCES[name, kind](outputs.double(), targets.double())
    assert scored(metric, outputs, targets) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(("name", "kind"), REFERENCES)
def test_a_sample_that_counts_twice_is_a_sample_that_is_there_twice(name, kind):
    """What the bootstrap relies on."""
    outputs, targets = draw(3, kind)
    metric = metric_for(name, targets, outputs)
    count_N = np.random.default_rng(0).integers(0, 3, PART)
    count_N[:4] = 1
    index = torch.from_numpy(np.repeat(np.arange(PART), count_N))
    kept_N, _ = kept_outputs(metric, lambda some: outputs[some], targets)
    found = metric.values(kept_N, targets, count_N[None].astype(float))
    assert found[0] == pytest.approx(scored(metric, outputs[index], targets[index]), abs=1e-9)


def test_r2_is_that_of_the_part_and_not_of_the_training_mean():
    """Shifted targets: with the mean of train as the constant it would be 0.99."""
    train, part = torch.zeros(50), torch.linspace(9.0, 11.0, 50)
    train[:25] = 0.1
    made = make_training_loss("mse", targets=train, output_shape=(1,))
    metric = make_metric("auto", made, train, train)
    outputs = part[:, None] + 0.5
    assert metric.name == "r2"
    assert scored(metric, outputs, part) == pytest.approx(sk.r2_score(part, outputs))
    assert scored(metric, part[:, None], torch.full((50,), 3.0)) == 0.0, "as scikit-learn has it"
    far = 1e8 + part.double()  # sums of squares would have lost the spread
    assert scored(metric, far[:, None], far) == pytest.approx(sk.r2_score(far, far.float()))


@pytest.mark.parametrize("layout", ["last", "first"])
def test_tokens_count_each_and_ignored_ones_do_not(layout):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 6, 5, generator=generator)
    labels = torch.randint(5, (40, 6), generator=generator)
    labels[:10, 2:] = -100  # sequences of different lengths
    outputs = logits if layout == "last" else logits.movedim(-1, 1)
    held = labels != -100
    flat, wanted = logits[held], labels[held]
    for name, reference in {
        "accuracy": sk.accuracy_score(wanted, flat.argmax(1)),
        "perplexity": math.exp(sk.log_loss(wanted, probabilities(flat))),
        "f1_macro": sk.f1_score(wanted, flat.argmax(1), average="macro"),
        "roc_auc": sk.roc_auc_score(wanted, probabilities(flat), **OVR),
    }.items():
        metric = metric_for(name, labels, outputs)
        assert scored(metric, outputs, labels) == pytest.approx(reference, abs=1e-6), name


def test_weights_of_samples_and_classes_are_the_losses_own():
    outputs, labels = draw(1, "many")
    plain = metric_for("log_loss", labels, outputs)
    weights = torch.rand(PART)
    targets = with_sample_weights(labels, weights)
    loss = {"loss": "cross_entropy", "weighted": True, "class_weights": [1.0, 2.0, 3.0, 4.0]}
    for name in ("accuracy", "log_loss", "f1_macro", "roc_auc"):
        made = metric_for(name, targets, outputs, **loss)
        alone = metric_for(name, labels, outputs)
        assert scored(made, outputs, targets) == pytest.approx(scored(alone, outputs, labels))
    seen = []
    own = metric_for(lambda o, y: seen.append(y) or 1.0, targets, outputs, **loss)
    scored(own, outputs, targets)
    assert torch.equal(seen[0], labels), "as they were given"
    assert not plain.higher_is_better


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("f1", "many", "metric 'f1' is for two classes, the model has 4: give metric='f1_macro'"),
        ("accuracy", "numbers", "metric 'accuracy': not for loss 'mse'; give r2, mae, rmse, exp"),
        ("rmse", "many", "metric 'rmse': not for loss 'cross_entropy'; give accuracy, balanced_a"),
        ("r2_score", "many", "unknown metric 'r2_score': did you mean 'r2'?"),
        ("AUC", "many", "unknown metric 'AUC': did you mean 'roc_auc'?"),
        ("acuracy", "many", "unknown metric 'acuracy': did you mean 'accuracy'? valid: auto, acc"),
        ("log_loss", "labels", "metric 'log_loss': not for loss 'multilabel'; give accuracy"),
    ],
)
def test_a_metric_that_does_not_fit_is_one_line(name, kind, words):
    outputs, targets = draw(0, kind)
    assert words in refused(lambda: metric_for(name, targets, outputs))


def test_a_part_for_which_it_is_not_defined_is_refused_before_training():
    outputs, labels = draw(0, "many")
    auc = metric_for("roc_auc", labels, outputs)
    line = refused(lambda: auc.check(labels.clamp(max=2), "test"))
    assert "metric 'roc_auc': test needs samples with and without class 3" in line
    outputs, numbers = draw(0, "numbers")
    r2 = metric_for("r2", numbers, outputs)
    assert "val has 1 sample" in refused(lambda: r2.check(numbers[:1], "val"))


# ---- errors and differences ----------------------------------------------------------------------


def test_a_mean_has_the_textbook_error_and_the_bootstrap_agrees():
    outputs, labels = draw(0, "two")
    accuracy = metric_for("accuracy", labels, outputs)
    found = judge(accuracy, lambda some: outputs[some], labels)
    p = found.value
    assert found.error == pytest.approx(math.sqrt(p * (1 - p) / (PART - 1)))
    own = metric_for(lambda o, y: float((o.argmax(1) == y).float().mean()), labels, outputs)
    by_bootstrap = judge(own, lambda some: outputs[some], labels)
    assert by_bootstrap.value == pytest.approx(p)
    assert by_bootstrap.error == pytest.approx(found.error, rel=0.15)


def test_the_bootstrap_repeats_itself_and_shrinks_with_the_samples():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (3600,), generator=generator)
    outputs = torch.randn(3600, 2, generator=generator)
    f1 = metric_for("f1", labels, outputs)
    few = judge(f1, lambda some: outputs[:225][some], labels[:225])
    many = judge(f1, lambda some: outputs[some], labels)
    assert many.resampled_W is not None
    assert len(many.resampled_W) == RESAMPLES
    assert many.error == judge(f1, lambda some: outputs[some], labels).error
    assert few.error / many.error == pytest.approx(4.0, rel=0.2)


@pytest.mark.parametrize("name", ["accuracy", "f1", "log_loss"])
def test_differences_are_paired_over_the_samples(name):
    """Networks that err on the same samples differ by less than their errors suggest."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (400,), generator=generator)
    one = torch.randn(400, 2, generator=generator)
    other = one.clone()
    other[:20] = -one[:20]
    metric = metric_for(name, labels, one)
    a, b = (judge(metric, lambda some, o=o: o[some], labels) for o in (one, other))
    apart = difference(a, b)
    assert apart.value == pytest.approx(a.value - b.value)
    assert apart.low <= apart.value <= apart.high
    assert apart.high - apart.low < 0.5 * 1.96 * 2 * math.hypot(a.error, b.error)
    same = difference(a, a)
    assert (same.value, same.low, same.high, same.samples) == (0.0, 0.0, 0.0, 400)


def test_outputs_that_are_not_finite_have_no_score():
    outputs, labels = draw(0, "two")
    outputs[7, 1] = math.nan
    accuracy = metric_for("accuracy", labels, outputs)
    assert math.isnan(judge(accuracy, lambda some: outputs[some], labels).value)
    own = metric_for(lambda o, y: sk.roc_auc_score(y, o[:, 1]), labels, outputs)
    assert math.isnan(measure(own, outputs, labels).value), "it is not called"


# ---- the user's own ------------------------------------------------------------------------------


def f1_of_class_1(outputs: Tensor, targets: Tensor) -> Tensor:
    found = outputs.argmax(1)
    return 2.0 * (found * targets).sum() / (found + targets).sum()


def test_an_own_metric_is_called_once_on_the_whole_part_and_keeps_its_name():
    outputs, labels = draw(0, "two")
    calls = []

    def counted(o, y):
        calls.append(len(y))
        return f1_of_class_1(o, y)

    own = metric_for(counted, labels, outputs)
    wanted = sk.f1_score(labels, outputs.argmax(1))
    assert scored(own, outputs, labels) == pytest.approx(wanted, abs=1e-6)
    assert (own.name, calls) == ("counted", [PART])
    assert metric_for(partial(sk.f1_score, average="macro"), labels, outputs).name == "f1_score"
    assert judge(own, lambda some: outputs[some], labels).error > 0


def test_numbers_of_an_own_metric_for_each_sample_are_averaged():
    outputs, targets = draw(0, "numbers")
    own = metric_for(lambda o, y: -(o - y).abs(), targets, outputs)
    found = judge(own, lambda some: outputs[some], targets)
    assert found.value == pytest.approx(-sk.mean_absolute_error(targets, outputs))
    assert found.sample_N is not None


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda o, y: None, "metric own returns a NoneType: return a number"),
        (lambda o, y: o.missing, "metric own fails: AttributeError at test_metrics.py"),
    ],
)
def test_an_own_metric_that_fails_is_one_line_before_anything_trains(function, words, tmp_path):
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    line = refused(lambda: esper.grow(model, (x, (x[:, 0] > 0).long()), metric=function,
                                      folder=tmp_path, verbose=False))  # fmt: skip
    assert words in line
    assert not list(tmp_path.iterdir())


# ---- a constant ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "wanted"),
    [
        ("accuracy", "many", lambda y: np.bincount(y).max() / PART),
        ("f1", "two", lambda y: sk.f1_score(y, np.ones(PART))),
        ("f1", "binary", lambda y: sk.f1_score(y, np.ones(PART))),
        ("roc_auc", "many", lambda y: 0.5),
        ("log_loss", "many", lambda y: sk.log_loss(y, np.tile(np.bincount(y) / PART, (PART, 1)))),
        ("r2", "numbers", lambda y: 0.0),
        ("mae", "numbers", lambda y: np.abs(y - np.median(y, axis=0)).mean()),
        ("explained", "many", lambda y: 0.0),
    ],
)
def test_the_best_constant_prediction_is_known(name, kind, wanted):
    outputs, targets = draw(0, kind)
    metric = metric_for(name, targets, outputs)
    found = constant_score(metric, targets, targets)
    assert found == pytest.approx(wanted(targets.numpy()), abs=1e-5)


# ---- what esper.grow prints ----------------------------------------------------------------------


def regression() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((120, 3)).astype(np.float32)
    return x, (5 + x[:, 0] + 0.3 * generator.standard_normal(120)).astype(np.float32)


def two_classes() -> tuple[np.ndarray, np.ndarray]:
    x, y = regression()
    return x, (y > 5.8).astype(np.int64)


def grown(folder, data, outputs: int, train=None, **settings) -> esper.GrowResult:
    """A search of two networks over in a moment, with a test part of 40 that it did not see."""
    x, y = data
    return quick_search(
        folder,
        lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, outputs)),
        [(x[:60], y[:60]) if train is None else train, (x[60:80], y[60:80]), (x[80:], y[80:])],
        esper.Budget(host_runs=3),
        **{"slots": 1, "widths": (0.5,), "epochs": 4, "lr": (0.01, 0.03)} | settings,
    )


def true_scores(result: esper.GrowResult, data, reference) -> list[tuple[float, float]]:
    """Validation and test scores of the networks that came back, by scikit-learn."""
    x, y = (torch.from_numpy(values) for values in data)
    networks = (*result.frontier, result.host)
    with torch.no_grad():
        return [tuple(float(reference(y[part].numpy(), n.model(x[part]).numpy()))
                      for part in (slice(60, 80), slice(80, None))) for n in networks]  # fmt: skip


@pytest.mark.parametrize(
    ("metric", "problem", "outputs", "reference"),
    [
        ("auto", regression, 1, sk.r2_score),
        ("mae", regression, 1, sk.mean_absolute_error),
        ("f1", two_classes, 2, lambda y, o: sk.f1_score(y, o.argmax(1))),
        (f1_of_class_1, two_classes, 2, lambda y, o: sk.f1_score(y, o.argmax(1))),
    ],
)
def test_what_is_printed_is_the_metric_of_the_networks_over_the_whole_part(
    tmp_path, metric, problem, outputs, reference
):
    data = problem()
    result = grown(tmp_path, data, outputs, metric=metric)
    wanted = true_scores(result, data, reference)
    networks = (*result.frontier, result.host)
    for network, (val, test) in zip(networks, wanted, strict=True):
        assert network.val_score == pytest.approx(val, abs=1e-5)
        assert network.test_score == pytest.approx(test, abs=1e-5)
        assert (network.record.test_se > 0) == (network.test_score != 0)
    best = min if metric == "mae" else max
    every = [row.score for row in result.table().rows if row.ended]
    assert result.best.val_score == best(every)
    assert result.pick(params=10**9).val_score == result.best.val_score
    name = "r2" if metric == "auto" else getattr(metric, "__name__", metric)
    assert f"test {name}" in str(result)
    assert (result.info.metric, result.info.higher_is_better) == (name, metric != "mae")


def test_of_a_stream_too(tmp_path):
    """One training batch of equal targets says nothing about their spread."""
    x, y = data = regression()
    order = np.argsort(y[:60])
    pairs = torch.utils.data.TensorDataset(*(torch.from_numpy(v[:60][order]) for v in (x, y)))
    train = torch.utils.data.DataLoader(pairs, batch_size=20)
    result = grown(tmp_path, data, 1, train=train, stream="always")
    wanted = true_scores(result, data, sk.r2_score)
    assert [n.test_score for n in (*result.frontier, result.host)] == pytest.approx(
        [test for _, test in wanted], abs=1e-5
    )
