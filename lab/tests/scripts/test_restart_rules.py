"""Rules of restarting are looked up as they would have played out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from audit_synthetic import Made, made_audit
from esper.leyline.errors import EsperError
from esper_lab.audit.records import Audit
from restart_rules import RestartRules, judge, table

CONFIG = RestartRules("made", draws=2000)
GAIN = 0.01


def ranked(**changes: object) -> Audit:
    """Host h is h hundredths better than the first, from the first step to the end."""
    audit = made_audit(Made(slots=1, steps=12, hosts=8, contexts=4), **changes)
    better_H11 = GAIN * np.arange(8)[:, None, None]
    records = audit.records
    flat = {
        name: np.broadcast_to(better_H11, records.accuracy_CHKT.shape).astype(np.float32)
        for name in ("accuracy_CHKT", "control_CHKT")
    }
    return replace(audit, records=replace(records, **flat))


def rows_of(audit: Audit, longer: Audit | None = None):
    return {row.name: row for row in judge(CONFIG, audit, longer)[1]}


@pytest.mark.parametrize(
    ("rule", "gain", "runs"),
    [
        ("best of 2 after step 4", 5.0 - 3.5, 1 + 4 / 12),  # E max of 2 of 0..7 is 5, mean 3.5
        ("best of 8 after step 1", 7.0 - 3.5, 1 + 7 / 12),
        ("best of 8 after step 12", 7.0 - 3.5, 8.0),
        ("asha over 8", 7.0 - 3.5, 1 + 4 * 2 / 12 + 2 * 3 / 12 + 6 / 12),
        ("oracle: best of 4 at the end", 6.2 - 3.5, 4.0),
    ],
)
def test_what_a_rule_keeps_and_spends(rule, gain, runs):
    row = rows_of(ranked())[rule]
    assert row.runs_C == pytest.approx(runs)
    assert row.gain_C.mean() == pytest.approx(GAIN * gain, abs=GAIN * 0.1)


def test_a_quantile_rule_begins_anew_below_the_quantile_at_most_three_times():
    # of the task: others are 0..7, the median 3.5, so a run passes with probability 1/2
    row = rows_of(ranked())["below quantile 0.5 of the task at step 4"]
    restarts = 1 / 2 + 3 / 14 + 1 / 14  # P(first below) + P(two below) + P(three below)
    assert row.runs_C.mean() == pytest.approx(1 + restarts * 4 / 12, abs=0.02)
    assert row.gain_C.mean() == pytest.approx(GAIN * 1.94, abs=GAIN * 0.15)


def test_a_rule_by_the_curve_sees_what_the_last_accuracy_does_not_show():
    audit = ranked()
    ends = audit.records.accuracy_CHKT
    blind = np.zeros_like(audit.records.control_CHKT)
    told = replace(audit.records, control_CHKT=blind, loss_CHKT=-ends)
    rows = rows_of(replace(audit, records=told))
    assert rows["best of 8 after step 4, by its curve"].gain_C == pytest.approx(3.5 * GAIN)
    assert rows["best of 8 after step 4"].gain_C.mean() < GAIN
    # what is to come is not seen
    late = np.where(np.arange(ends.shape[-1]) > 4, -ends, 0).astype(np.float32)
    rows = rows_of(replace(audit, records=replace(told, loss_CHKT=late)))
    assert rows["best of 8 after step 4, by its curve"].gain_C.mean() < GAIN


def test_a_forecast_is_not_fitted_to_the_context_that_it_is_for():
    audit = ranked()
    signs = np.array([-1, 1, 1, 1])[:, None, None, None]  # one context is the other way round
    turned = replace(audit.records, accuracy_CHKT=audit.records.accuracy_CHKT * signs)
    row = rows_of(replace(audit, records=turned))["best of 8 after step 4, by its curve"]
    assert row.gain_C[0] == pytest.approx(-3.5 * GAIN)


def test_compute_is_paid_at_the_price_of_the_task():
    audit = ranked()
    row = rows_of(audit)["best of 8 after step 12"]
    paid_C = row.gain_C - row.priced_C
    assert paid_C == pytest.approx(audit.info.constants.c_f * 7 * audit.contexts.budget_C)


def test_one_run_of_the_same_compute_is_interpolated_between_budgets():
    audit = ranked()
    doubled = replace(audit.contexts, budget_C=2 * audit.contexts.budget_C)
    more = replace(audit.records, accuracy_CHKT=audit.records.accuracy_CHKT + np.float32(0.03))
    rows = rows_of(audit, replace(audit, contexts=doubled, records=more))
    row = rows["best of 3 after step 4"]
    assert row.equal_C is not None
    longer = 0.03 * np.log2(1 + 2 * 4 / 12)
    assert row.gain_C - row.equal_C == pytest.approx(longer, abs=1e-6)
    beyond = rows["best of 8 after step 12"]
    assert beyond.equal_C is not None
    assert np.isnan(beyond.equal_C).all()
    assert table([beyond]).splitlines()[-1].endswith("|  |")


def test_a_longer_audit_of_other_contexts_is_refused():
    audit = ranked()
    other = replace(audit, contexts=replace(audit.contexts, groups_C=audit.contexts.groups_C + 1))
    with pytest.raises(EsperError, match="--longer: give an audit of the same task"):
        judge(CONFIG, audit, other)
