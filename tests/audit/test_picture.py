"""Pictures and tables of an audit."""

from __future__ import annotations

import numpy as np
import pytest

from audit_synthetic import made_audit
from esper.audit.leaderboard import Row
from esper.audit.picture import (
    draw_scores,
    draw_topologies,
    pareto,
    price_groups,
    shown_contenders,
)
from esper.audit.regrets import Gate, RegretSettings, compute_regrets
from esper.audit.tables import (
    gate_verdict,
    gates_table,
    leaderboard_table,
    noise_text,
    price_table,
    regrets_table,
    search_table,
)
from esper.leyline.errors import EsperError
from esper.leyline.statistics import Estimate

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def audit():
    return made_audit(contexts=6, noise=0.01)


@pytest.fixture(scope="module")
def regrets(audit):
    return compute_regrets(audit, RegretSettings(draws=2, searches=(1, 4), folds=2))


def test_pictures_are_written(audit, regrets, tmp_path):
    draw_topologies(tmp_path / "one.png", audit, regrets, context=2)
    draw_scores(tmp_path / "scores.png", regrets)
    for name in ("one", "scores"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(PNG)
    with pytest.raises(EsperError, match="context 9"):
        draw_topologies(tmp_path / "no.png", audit, regrets, context=9)


def test_picks_are_shown_by_price_without_caps(regrets):
    everywhere = np.ones(6, dtype=np.bool_)
    low, medium, high = price_groups(regrets, everywhere)
    prices = regrets.price_CD
    assert prices[low].max() < prices[medium].min() <= prices[medium].max() < prices[high].min()
    assert not (regrets.capped_CD & (low | medium | high)).any()
    assert shown_contenders(regrets) == ["one", "table", "regression", "best", "asha:4"]


def test_frontier_leaves_out_what_has_no_record():
    assert pareto([1.0, 2.0, 3.0], [np.nan, 0.2, 0.3]) == [1, 2]


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
