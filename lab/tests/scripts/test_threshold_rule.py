"""Members begin anew below a quantile that depends on what is seen of their context."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import threshold_rule
from audit_synthetic import Made, made_audit
from esper.leyline.errors import EsperError
from threshold_rule import Below50At4, fitted

HOSTS = 9


@pytest.fixture
def curves(monkeypatch, tmp_path):
    """Accuracies that fall with the number of classes, spread evenly over hosts."""
    audit = made_audit(Made(slots=0, steps=6, hosts=HOSTS, contexts=12))
    middle_C = 1.0 - 0.1 * np.log2(audit.contexts.groups_C)
    spread_H = 0.01 * (np.arange(HOSTS) - HOSTS // 2)
    curve_CHKT = np.zeros_like(audit.records.control_CHKT)
    curve_CHKT[..., 4] = (middle_C[:, None] + spread_H)[..., None]
    records = replace(audit.records, control_CHKT=curve_CHKT)
    monkeypatch.setattr(
        threshold_rule, "read_audit", lambda folder: replace(audit, records=records)
    )
    monkeypatch.setenv("ESPER_CURVES", str(tmp_path))
    fitted.cache_clear()


def restarted(accuracy_E: list[float], groups: int, step: int = 3, began: int = 0, times: int = 0):
    """Which members the rule restarts, where that is legal."""
    count = len(accuracy_E)
    context = SimpleNamespace(
        budget=1.5, groups=groups, train_samples=500, learning_rate_E=np.ones(count),
        began_E=np.full(count, began), restarts_E=np.full(count, times),
    )  # fmt: skip
    rule = Below50At4()
    rule.restart = lambda where: where
    rule.first = lambda where: where
    signals = SimpleNamespace(context=context, step=step, val_accuracy_E=np.array(accuracy_E))
    return rule.act(signals, None).tolist()


@pytest.mark.parametrize("groups", [2, 4, 8])
def test_the_threshold_is_the_quantile_of_the_context(curves, groups):
    middle = 1.0 - 0.1 * np.log2(groups)
    assert restarted([middle - 0.005, middle + 0.005, np.nan], groups) == [True, False, True]


def test_only_members_that_are_due_begin_anew_and_at_most_three_times(curves):
    assert restarted([0.0], 2) == [True]
    assert restarted([0.0], 2, step=4) == [False]
    assert restarted([0.0], 2, step=7, began=4) == [True]
    assert restarted([0.0], 2, times=3) == [False]


def test_without_curves_one_line_says_what_to_give(monkeypatch):
    monkeypatch.delenv("ESPER_CURVES", raising=False)
    with pytest.raises(EsperError, match="ESPER_CURVES is not set: give the folder of an audit"):
        restarted([0.0], 2)
