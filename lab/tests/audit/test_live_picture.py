"""Live policies in the picture: trained at its prices, comparable with marks from records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from audit_support import live_policies
from esper_lab.audit import report
from esper_lab.audit.bench import Bench
from esper_lab.audit.leaderboard import BUILT_IN
from esper_lab.audit.live import LiveRun, LiveSettings
from esper_lab.audit.live_picture import collect_live_picks
from esper_lab.audit.live_report import compare_live
from esper_lab.audit.live_rows import LiveKind, live_path, read_live
from esper_lab.audit.picks import collect_picks
from esper_lab.audit.regrets import RegretSettings
from support import refused

ONE_HOST = LiveSettings(draws=2, picture_hosts=1)
NAMES = ("regression", "closed_loop_fill")


def shown(small, folder: Path, settings=ONE_HOST, names=NAMES) -> LiveRun:
    return LiveRun(folder, small.audit, live_policies(names), settings)


@pytest.fixture(scope="module")
def folder(small, tmp_path_factory) -> Path:
    """Cases first, as by a version without pictures; then the episodes of the picture."""
    path = tmp_path_factory.mktemp("live")
    before = shown(small, path, replace(ONE_HOST, picture_hosts=0))
    before.run(small.runner())
    kept = live_path(path, "regression").read_bytes()
    run = shown(small, path)
    assert [piece.episodes for piece in run.missing()] == [3] * 4, "three prices on one host"
    run.run(small.runner())
    assert live_path(path, "regression").read_bytes() == kept
    assert shown(small, path).missing() == []
    return path


def test_episodes_have_the_prices_of_the_picture_and_no_caps(small, folder):
    bench = Bench(small.audit)
    prices = collect_picks(bench, {}).prices
    for name in NAMES:
        rows, _ = read_live(live_path(folder, name, LiveKind.PICTURE))
        np.testing.assert_array_equal(rows.price_N, prices * 2)
        assert rows.context_N.tolist() == [0, 0, 0, 1, 1, 1]
        assert not rows.host_N.any()
        assert np.isinf(rows.params_cap_N).all()
        assert np.isinf(rows.macs_cap_N).all()
    both = shown(small, folder / "other", LiveSettings(draws=2)).shown_cases(1)
    assert both.host_N.tolist() == [0, 1] * 3
    np.testing.assert_array_equal(both.observed.price_N, np.repeat(prices, 2))


def test_a_policy_trained_on_few_hosts_has_its_mark_over_all(small, folder):
    """Live regression is the recorded regression, whose mark is a mean over both hosts."""
    bench = Bench(small.audit)
    known = collect_picks(bench, {"regression": BUILT_IN["regression"]}).picks[:3]
    found = collect_live_picks(folder, bench)
    assert found.left_out == ()
    trained = [pick for pick in found.picks if pick.name == "regression (live)"]
    for mine, recorded in zip(trained, known, strict=True):
        assert mine.price == recorded.price
        assert mine.params == pytest.approx(recorded.params)
        assert mine.test == pytest.approx(recorded.test, abs=1e-6)
        assert mine.compute == pytest.approx(recorded.compute, rel=1e-6)
    rows, _ = read_live(live_path(folder, "regression", LiveKind.PICTURE))
    as_trained = [rows.test_N[rows.draw_N == draw].mean() for draw in range(3)]
    assert as_trained != pytest.approx([pick.test for pick in known], abs=1e-3), "hosts differ"
    closed = [pick for pick in found.picks if pick.name == "closed_loop_fill"]
    assert [pick.price for pick in closed] == [pick.price for pick in known]
    assert closed[0].note == "fills all slots; prunes and stops"


def test_the_picture_is_no_part_of_the_gates(small, folder):
    found = compare_live(folder, small.audit)
    assert (found.cases, found.contexts) == (4, 2)
    assert [gate.policy for gate in found.gates] == ["closed_loop_fill"]


def test_what_cannot_be_drawn_is_named_in_the_report(small, folder, monkeypatch):
    drawn = []
    monkeypatch.setattr(report, "collect_picks", lambda *_, **__: None)
    monkeypatch.setattr(report, "draw_scores", lambda *_: None)
    monkeypatch.setattr(report, "draw_frontier", lambda _, __, extra: drawn.extend(extra))
    path = live_path(folder, "closed_loop_fill", LiveKind.PICTURE)
    kept = path.read_bytes()
    try:
        path.write_bytes(kept[:-9])
        made = report.write_report(folder, small.audit, RegretSettings(draws=2, searches=(2,)))
    finally:
        path.write_bytes(kept)
    assert f"Not in the picture\n\n{path} is damaged" in made.text
    assert {pick.name for pick in drawn} == {"regression (live)"}
    assert made.live is not None


def test_other_hosts_prices_and_contexts_are_one_line(small, folder):
    assert "hosts is 1 there and 2 here" in refused(
        lambda: shown(small, folder, replace(ONE_HOST, picture_hosts=2))
    )
    assert "picture_hosts=-1" in refused(lambda: LiveSettings(picture_hosts=-1))
    bench = Bench(small.audit)
    other = Bench(small.audit, replace(bench.terms, price=replace(bench.terms.price, high=9.0)))
    assert "at other prices" in collect_live_picks(folder, other).left_out[0]
    bench.context_C = bench.context_C[:1]
    assert "all contexts" in collect_live_picks(folder, bench).left_out[0]
