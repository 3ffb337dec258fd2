"""Minibatch metrics are aggregated by one declared reducer each."""

import math
from dataclasses import fields

import pytest

from esper.leyline import EsperError
from esper.leyline.payloads import PPOUpdateMetrics
from esper.simic.telemetry.aggregation import REDUCERS, aggregate_ppo_metrics

HEADS = 8


def row(**changes):
    """All figures at 1, the heads' entropies too."""
    full = dict.fromkeys(REDUCERS, 1.0) | {"head_entropy": (1.0,) * HEADS}
    return full | changes


def test_every_figure_has_one_reducer():
    assert list(REDUCERS) == [f.name for f in fields(PPOUpdateMetrics)]


@pytest.mark.parametrize(
    ("key", "values", "expected"),
    [
        ("policy_loss", (1.0, 2.0, 6.0), 3.0),
        ("approx_kl", (0.1, 0.3, 0.2), 0.3),
        ("ratio_min", (0.9, 0.5, 0.7), 0.5),
        ("ratio_max", (1.1, 1.5, 1.2), 1.5),
        ("learning_rate", (0.3, 0.2, 0.1), 0.1),
        ("explained_variance", (0.1, 0.2, 0.3), 0.3),
        ("epochs_run", (4, 4, 1), 9),
        ("early_stopped", (False, False, True), True),
        ("grad_norm", (1.0, 2.0, math.nan), 1.5),
    ],
)
def test_each_key_is_reduced_by_its_rule(key, values, expected):
    found = getattr(aggregate_ppo_metrics([row(**{key: v}) for v in values]), key)
    assert found == pytest.approx(expected)
    assert type(found) is {"epochs_run": int, "early_stopped": bool}.get(key, float)


def test_heads_are_averaged_over_rows_where_they_counted():
    rows = [row(head_entropy=(x, *(math.nan,) * 7)) for x in (1.0, math.nan, 3.0)]
    found = aggregate_ppo_metrics(rows).head_entropy
    assert found[0] == 2.0
    assert all(math.isnan(x) for x in found[1:])


def test_rows_may_hold_different_figures():
    first = row()
    later = {key: first.pop(key) for key in ("epochs_run", "early_stopped")}
    assert aggregate_ppo_metrics([first, first, later]).epochs_run == 1


def test_an_unknown_key_is_an_error():
    with pytest.raises(EsperError, match=r"'polcy_loss'.*did you mean 'policy_loss'"):
        aggregate_ppo_metrics([row(polcy_loss=1.0)])


def test_a_missing_figure_is_an_error():
    incomplete = row()
    del incomplete["approx_kl"]
    with pytest.raises(EsperError, match="no row holds approx_kl"):
        aggregate_ppo_metrics([incomplete])
