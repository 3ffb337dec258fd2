"""The report of a training run: whole, self-contained, escaped; every plot also a table."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from esper.karn import views
from esper.karn.report.growth_picture import growth_picture
from esper.karn.report.life_lines import life_lines
from esper.karn.report.network_picture import before_and_after
from esper.karn.report.page import page, write_page
from esper.karn.report.sections import MAX_ROWS, _as_table
from esper.leyline.statistics import Estimate
from esper.plotting.frontier_plot import Dot, frontier_plot
from esper.plotting.html import STYLE
from esper.plotting.line_plot import Series, line_plot, score_scale
from esper.plotting.numbers import interval
from esper.scripts import report, show
from esper.storage.sealed_json import read_document, seal

EVIL = "<script>alert(1)</script>"


class Checker(HTMLParser):
    """Elements are closed in order, ids are unique, figures are followed by tables."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def run(ppo) -> Path:
    return ppo


@pytest.fixture(scope="module")
def text(run) -> str:
    return page(run)


def test_the_page_is_well_formed_and_loads_nothing(text):
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    assert not re.search(r"(src|href)=|url\(|<script|@import", text)
    assert "default-src 'none'" in unescape(text)
    assert len(text) < 3_000_000


def test_every_plot_is_also_a_table(text):
    for part in text.split("<section>")[1:]:
        assert part.count("<svg") == 0 or "<table" in part, part[:80]
    assert text.count("<svg") >= 7


def test_it_says_what_the_views_say(run, text):
    last = views.read_rounds(run)[-1]
    assert interval(last.score) in text
    for life in views.read_seeds(run):
        assert life.blueprint in text
    assert "Life lines of seeds" in text


def test_names_are_escaped(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    info = read_document(tmp_path / "run" / "run.json")
    info["task"] = EVIL
    info["sessions"][-1] |= {"end": "FAILED", "failure": EVIL}
    (tmp_path / "run" / "run.json").write_text(json.dumps(seal(info)))
    found = page(tmp_path / "run")
    assert EVIL not in found
    assert "&lt;script&gt;" in found


def test_a_run_without_events_has_a_page(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "events")
    (tmp_path / "run" / "events.jsonl").unlink()
    assert "Learning curve" in page(tmp_path / "run")


def test_commands_write_and_show(run, tmp_path, capsys):
    assert report.main([str(run), "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    shutil.copytree(run, tmp_path / "run")
    assert write_page(tmp_path / "run") == tmp_path / "run" / "report.html"
    capsys.readouterr()
    assert show.main([str(run)]) == 0
    assert "score" in capsys.readouterr().out.splitlines()[0]
    assert show.main([str(run), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rounds"]) == 3


# ---- pictures ----------------------------------------------------------------------------------


def spans(drawn: str) -> list[float]:
    return [float(width) for width in re.findall(r'<rect[^>]* width="([\d.]+)"', drawn)]


def test_a_life_line_is_as_long_as_its_stages(run):
    life = views.seed_growth(views.read_seeds(run, 0, 1), ())[0]
    one = replace(life, stages=(views.StageSpan("TRAINING", 2, 6),))
    drawn = life_lines([one], [one.slot], length=8)
    assert spans(drawn)[0] == pytest.approx((740 - 76) * 4 / 8, abs=0.1)
    assert "training" in drawn
    still = replace(life, stages=(views.StageSpan("HOLDING", 4, None),))
    assert spans(life_lines([still], [one.slot], length=8))[0] == pytest.approx(332, abs=0.1)


def test_the_best_member_is_drawn_with_its_intervals_and_told_in_sentences(run, monkeypatch):
    every = (views.read_growth(run, at, member) for at in range(3) for member in range(2))
    growth = next(one for one in every if one.happened)
    monkeypatch.setattr(views, "read_growth", lambda _: growth)
    sections = unescape(page(run)).split("<section>")
    (part,) = [one for one in sections if f"How member {growth.member} grew" in one]
    for one in growth.happened:
        assert f"<td>{one.what}</td>" in part
    assert part.count("<tr") == 1 + len(growth.happened)
    seed = replace(views.seed_growth(views.read_seeds(run, 0, 2), ())[0], slot=growth.slots[0])
    sure = tuple(views.Measurement(at, 0.05, 0.01) for at in (1, 2))
    drawn = growth_picture(replace(growth, seeds=(replace(seed, measured=sure),)))
    assert drawn.count("band") == 1
    assert "band" not in growth_picture(replace(growth, seeds=(seed,)))
    assert "no seed" in growth_picture(replace(growth, seeds=()))


def test_life_lines_of_nothing_say_why():
    assert "no seed" in life_lines([], ["r0c0"])


def test_a_hopeless_interval_does_not_flatten_the_rest():
    found = score_scale([Estimate(0.5, -90.0, 90.0), Estimate(0.6, 0.55, 0.65)], 100.0, 0.0)
    assert found is not None
    assert found.high - found.low < 1.0


def test_the_frontier_joins_what_no_smaller_one_beats():
    dots = [Dot(str(i), 100.0 * (i + 1), Estimate(v, v, v), "static")
            for i, v in enumerate((0.5, 0.4, 0.9))]  # fmt: skip
    (line,) = re.findall(r'<polyline points="([^"]+)"', frontier_plot(dots, "score"))
    assert len(line.split()) == 2
    assert "no network" in frontier_plot([], "score")


def test_a_network_shows_its_seeds_where_they_are():
    drawn = before_and_after(("a", "b"), ("", "conv"), "before", "after")
    assert "2 slots, 1 of them with a seed" in drawn
    assert drawn.count(">conv<") == 1


def test_one_round_is_a_point_and_none_is_a_sentence():
    one = Series("score", ((1.0, Estimate(0.5, 0.4, 0.6)),))
    assert "<circle" in line_plot([one], "round", "score", "label")
    assert "nothing was recorded" in line_plot([], "round", "score", "label")


def test_kinds_of_policies_have_a_look_that_both_themes_show():
    dots = [Dot(kind, 100.0, Estimate(0.5, 0.4, 0.6), kind) for kind in ("host", "front", "static")]
    plot = frontier_plot(dots, "score")
    for kind in ("host", "front", "static"):
        assert f'class="{kind}"' in plot
        assert re.search(rf"\.{kind} {{ stroke: var\(--[a-z]+\);", STYLE), kind


@pytest.mark.parametrize(
    ("low", "high", "arrows"), [(0.45, 0.55, 0), (-9.0, 0.55, 1), (-9.0, 9.0, 2)]
)
def test_arrow_where_an_interval_leaves_the_axis(low, high, arrows):
    wide = Estimate(0.5, low, high)
    dots = [Dot("a", 100.0, wide, "front"), Dot("b", 200.0, Estimate(0.6, 0.55, 0.65), "front")]
    (path, *_) = re.findall(r'<path d="([^"]+)" class="front bar"', frontier_plot(dots, "score"))
    assert path.count("L") == 2 * arrows, "two strokes each"
    band = Series("a", tuple((float(at), wide) for at in range(3)))
    found = "".join(re.findall(r'<path d="([^"]+)"', line_plot([band], "round", "score", "label")))
    assert found.count("L") == 2 * arrows, "one of each side of a band that is cut"


def test_long_tables_are_thinned_and_say_so():
    drawn = _as_table("Rounds", ("round",), [(f"row {i}",) for i in range(5 * MAX_ROWS)])
    assert drawn.count(">row ") == MAX_ROWS
    assert f">row {5 * MAX_ROWS - 1}<" in drawn
    assert "2,000 rows" in drawn
