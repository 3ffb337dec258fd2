"""What an update reports: every key has one rule, the rules are these, and nothing else gets in."""

import math
from dataclasses import fields
from statistics import fmean

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from esper.leyline import ActionHead, EsperError
from esper.leyline.payloads import PPOUpdateMetrics
from esper.simic.telemetry.aggregation import REDUCERS, aggregate_ppo_metrics
from esper.simic.training.runner import run_ppo_updates
from ppo_support import K, S, agent, fill

NAMES = [f.name for f in fields(PPOUpdateMetrics)]
HEADS = len(ActionHead)

MEAN = ("policy_loss", "value_loss", "entropy", "clip_fraction", "ratio_mean", "grad_norm")
MAXIMA = ("approx_kl", "ratio_max")
SMALLEST = ("ratio_min",)
LAST = (
    "explained_variance", "value_mean", "value_std", "return_mean", "return_std",
    "advantage_mean", "advantage_std", "learning_rate", "entropy_coef", "exploration",
)  # fmt: skip
RULES = (
    dict.fromkeys(MEAN, fmean)
    | dict.fromkeys(MAXIMA, max)
    | dict.fromkeys(SMALLEST, min)
    | dict.fromkeys(LAST, lambda values: values[-1])
    | {"epochs_run": sum, "early_stopped": any}
)


def row(**changes):
    return dict.fromkeys(NAMES, 1.0) | {"head_entropy": (1.0,) * HEADS} | changes


def test_every_key_has_a_reducer_and_every_reducer_a_key():
    assert set(REDUCERS) == set(NAMES) == set(RULES) | {"head_entropy"}


REAL = [name for name in RULES if name not in ("epochs_run", "early_stopped")]


@pytest.mark.parametrize("name", REAL)
@settings(max_examples=25)
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=6))
@example([0.2, 0.9, 0.1, 0.4])
def test_figures_are_reduced_by_their_rule(name, values):
    found = getattr(aggregate_ppo_metrics([row(**{name: v}) for v in values]), name)
    assert found == pytest.approx(RULES[name](values), abs=1e-9)


@given(st.lists(st.integers(1, 9), min_size=1), st.lists(st.booleans(), min_size=1))
def test_epochs_add_up_and_one_stop_is_a_stop(epochs, stops):
    assert aggregate_ppo_metrics([row(epochs_run=n) for n in epochs]).epochs_run == sum(epochs)
    found = aggregate_ppo_metrics([row(early_stopped=x) for x in stops])
    assert found.early_stopped is any(stops)


@given(st.lists(st.floats(0, 3) | st.just(math.nan), min_size=1, max_size=6))
def test_a_head_is_averaged_where_it_counted(values):
    rows = [row(head_entropy=(1.0, v, *(1.0,) * (HEADS - 2))) for v in values]
    found = aggregate_ppo_metrics(rows).head_entropy
    known = [v for v in values if not math.isnan(v)]
    assert len(found) == HEADS
    assert found[0] == found[2] == 1.0
    assert found[1] == pytest.approx(fmean(known) if known else math.nan, nan_ok=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_key_that_is_missing_or_misspelt_is_an_error(name):
    lacking = row()
    figure = lacking.pop(name)
    with pytest.raises(EsperError, match=f"no row holds {name}"):
        aggregate_ppo_metrics([lacking])
    with pytest.raises(EsperError, match=f"'{name}x'.*did you mean '{name}'"):
        aggregate_ppo_metrics([row(**{f"{name}x": figure})])


def test_no_rows_are_an_error():
    with pytest.raises(EsperError, match="no row holds policy_loss"):
        aggregate_ppo_metrics([])


def test_a_real_update_reports_every_key_with_its_type():
    it = agent(target_kl=None, epochs=2)
    rollout = it.make_buffer(5, 4, S, K)
    fill(it, rollout)
    metrics = run_ppo_updates(it, 3, rollout, it.obs_normalizer)
    assert metrics.epochs_run == 6
    assert metrics.early_stopped is False
    assert metrics.learning_rate == it.config.learning_rate.at(0)
    assert metrics.ratio_min <= metrics.ratio_mean <= metrics.ratio_max
    assert len(metrics.head_entropy) == HEADS
    for field in fields(metrics):
        value = getattr(metrics, field.name)
        if field.type == "float":
            assert type(value) is float, field.name
            assert math.isfinite(value), field.name
