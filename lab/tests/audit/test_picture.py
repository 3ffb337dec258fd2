"""Pictures and tables of an audit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from audit_synthetic import made_audit
from esper.leyline.statistics import Estimate
from esper_lab.audit.leaderboard import Row
from esper_lab.audit.picture import KINDS, draw_scores, kind_of
from esper_lab.audit.regrets import Gate, RegretSettings, compute_regrets
from esper_lab.audit.tables import (
    gaps_table,
    gate_verdict,
    gates_table,
    leaderboard_table,
    noise_text,
    price_table,
    regrets_table,
    search_table,
)

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def audit():
    return made_audit(contexts=6, noise=0.01)


@pytest.fixture(scope="module")
def regrets(audit):
    return compute_regrets(audit, RegretSettings(draws=2, searches=(1, 4), folds=2))


def test_the_picture_of_scores_is_written(regrets, tmp_path):
    draw_scores(tmp_path / "scores.png", regrets)
    assert (tmp_path / "scores.png").read_bytes().startswith(PNG)


def test_every_contender_is_of_one_kind(regrets):
    kinds = {name: kind_of(name) for name in regrets.contenders}
    assert set(kinds.values()) == set(KINDS)
    assert kinds["best_stop"] == kinds["oracle"] != kinds["table_stop"]
    assert len({kinds[name] for name in ("table", "table_stop", "table_kept", "asha:4")}) == 4


def test_tables_name_every_contender(audit, regrets):
    text = regrets_table(regrets)
    for name in regrets.contenders:
        assert f"\n{name} " in text
    assert "asha:27" in search_table(regrets)
    assert "best - table >= 0.02" in gates_table(regrets.gates)
    assert price_table(regrets, audit.info).count("\n") == 12
    assert "`best` loses +" in noise_text(regrets)


@pytest.mark.parametrize(
    ("margin", "verdict"),
    [((0.03, 0.025, 0.04), "pass"), ((0.03, 0.01, 0.04), "pass ?"), ((0.01, 0.0, 0.03), "fail ?"),
     ((0.01, 0.0, 0.015), "fail"), ((0.01, np.nan, np.nan), "fail ?")],
)  # fmt: skip
def test_a_verdict_whose_interval_holds_both_is_marked(margin, verdict):
    found = Estimate(*margin)
    assert gate_verdict(Gate("table", 0.02, found, found, found)) == verdict


def test_leaderboard_marks_what_looks_into_the_records():
    some = Estimate(0.5, 0.4, 0.6)
    rows = [Row("oracle", some, some, 1.0, 2.0, 300.0, 0.25, 960, True)]
    assert leaderboard_table(rows).splitlines()[1].split()[0] == "oracle*"


def test_gaps_on_several_records_are_averaged():
    some = Estimate(0.5, 0.4, 0.6)
    row = Row("table", some, some, 0.25, 2.0, 300.0, 0.0, 32, False)
    lines = gaps_table({"a": [row], "b": [replace(row, gap_closed=0.75)]}).splitlines()
    assert lines[0].split() == ["gap", "closed", "a", "b", "mean"]
    assert lines[1].split() == ["table", "+0.25", "+0.75", "+0.50"]
