"""The report is one page that holds, tells and escapes everything."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from esper.growing.budget import Budget
from esper.growing.folder import GrowFolder, GrowInfo
from esper.growing.result import GrowResult, NetworkRecord, ResultRecord
from esper.growing.runs import Recipe, Row, Table
from esper.karn.report.sections import MAX_ROWS
from esper.plotting.svg_axes import Scale, nice_ticks
from esper.storage.run_files import GROW_SCHEMA

EVIL = '<script>alert("1")</script>&'
NAN = math.nan


def info(**changes: object) -> GrowInfo:
    plain = GrowInfo(
        schema=GROW_SCHEMA,
        name=EVIL,
        created="2026-01-01 00:00:00",
        model=f"Net{EVIL}",
        fingerprint="f" * 64,
        architecture="a" * 64,
        notes=("val: 20% of train", EVIL),
        loss="cross_entropy",
        metric="accuracy",
        topology="vector",
        slots=("r0c0", "r0c1"),
        places=("after first", f"after {EVIL}"),
        variants=("", "x2"),
        variant_places=(("after first", f"after {EVIL}"), ("after first", f"after {EVIL}")),
        blueprints=("mlp", "norm"),
        host_params=100,
        host_macs=90,
        batch_size=16,
        epochs=3.0,
        length=30,
        optimizer="adamw",
        rates=(0.001, 0.01),
        runs=5.0,
        seed=0,
        device="cpu",
        budget=Budget(params=1000, host_runs=5),
        versions=(("esper", "0.1.0"),),
        train_macs=270,
        constant_score=float("nan"),
        amp=False,
        output="null",
        weight_decay=0.01,
        clip=1.0,
        full_length=30,
        higher_is_better=True,
        settings=(("inherit", "False"),),
    )
    return replace(plain, **changes)


RECIPE = Recipe("adamw", 0.01, 0.01, 1.0, 16, 30)


def network(number: int, params: int, score: float, topology=("", ""), origin="given", **more):
    found = NetworkRecord(
        number, "", topology, origin, RECIPE, params, params, score, score, 0.01, 1.0
    )
    return replace(found, **more)


HOST = network(0, 100, 0.8)
SMALL = network(2, 150, 0.85, ("", "norm"), "pruned")
PICK = network(5, 400, 0.9, ("mlp", "norm"), "grown")
STATIC = network(3, 700, 0.7, ("mlp", "mlp"), "seeds", test_score=NAN, test_se=NAN)
RECORD = ResultRecord(
    (SMALL, PICK), HOST, (replace(HOST, test_score=NAN), STATIC), 5, f"grown {EVIL}", 4.9, 71.0,
    complete=True,
)  # fmt: skip


def rows(count: int = 6) -> tuple[Row, ...]:
    """A table of runs: each network at three lengths, the last one in full where it was judged."""
    judged = {r.number: r for r in (HOST, SMALL, PICK, STATIC)}
    found: list[Row] = []
    for number in range(count):
        like = judged.get(number, replace(HOST, number=number, origin="seeds"))
        recipe = replace(RECIPE, lr=0.01 + 1e-6 * number, batches=30 if number in judged else 10)
        found.append(
            Row(number, 1, 0, like.topology, recipe, 0, like.origin, None, None, like.params,
                like.macs, 1.0, status="finished", trained=recipe.batches, score=like.val_score,
                at=number + 1.0)
        )  # fmt: skip
    return tuple(found)


def result(
    tmp_path: Path,
    record: ResultRecord = RECORD,
    about: GrowInfo | None = None,
    runs: Table | None = None,
) -> GrowResult:
    folder = GrowFolder.create(tmp_path, "run", 0)
    folder.write("grow.json", info() if about is None else about)
    folder.write("search.json", Table(rows()) if runs is None else runs)
    folder.write("result.json", record)
    folder.close()
    return GrowResult.load(folder.path)


def page(result: GrowResult) -> str:
    return result.report().read_text()


class Page(HTMLParser):
    """Checks that elements are closed in order, and collects them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), "an attribute twice"
        self.found.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words += data

    def all(self, *names: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.found if tag in names]


def test_page_tells_everything_and_is_well_formed(tmp_path):
    path = result(tmp_path).report(tmp_path / "new" / "page.html")
    text = path.read_text()
    found = Page(text)
    assert text.startswith("<!DOCTYPE html>")
    assert found.all("html") == [{"lang": "en"}]
    assert len(found.all("title", "h1", "main")) >= 3
    headings = [int(tag[1]) for tag, _ in found.found if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(headings))
    assert all(a["role"] == "img" and a["aria-label"] for a in found.all("svg"))
    assert all(a["scope"] in ("row", "col") for a in found.all("th"))
    assert len(found.all("caption")) == len(found.all("table")) > len(found.all("svg")) == 5
    assert found.words.index(RECORD.verdict) < found.words.index("Frontier")
    for words in ("validation only", "judged on test", "Best score so far", "4.90 of 5",
                  "why it was made", "1 min 11 s", "cpu", "esper 0.1.0", "val: 20% of train",
                  "esper export",
                  "1,000 parameters, 5 training runs of your", "GrowResult.load"):  # fmt: skip
        assert words in found.words, words


def test_page_loads_and_runs_nothing(tmp_path):
    text = page(result(tmp_path))
    assert "<script" not in text
    assert EVIL in Page(text).words, "names are shown as they are"
    assert not re.findall(r"(?:src=|href=|url\()", text)
    assert set(re.findall(r"https?://[^\"]*", text)) == {"http://www.w3.org/2000/svg"}
    assert "default-src &#x27;none&#x27;" in text


def coordinates(text: str) -> list[float]:
    words = re.findall(r' (?:x|y|x1|x2|y1|y2|cx|cy|points)="([^"]*)"', text)
    return [float(n) for word in words for n in re.split("[ ,]", word) if n]


@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        replace(RECORD, networks=(HOST,), pick=0, others=()),
        replace(RECORD, host=replace(HOST, test_se=NAN), complete=False),
        replace(RECORD, networks=(network(5, 400, -0.3),), host=network(0, 400, -0.3), others=()),
        replace(RECORD, networks=(PICK,), host=replace(HOST, test_score=NAN, val_score=NAN)),
        replace(RECORD, networks=(network(5, 10**9, 1.0),), others=(STATIC,)),
    ],
    ids=["grown", "host only", "interrupted", "one point", "nan", "wide"],
)
def test_every_outcome_can_be_drawn(record, tmp_path):
    text = page(result(tmp_path, record))
    Page(text)
    found = coordinates(text)
    assert len(found) > 20
    assert all(-50 <= value <= 800 for value in found), (min(found), max(found))
    assert ("interrupted" in text) == (not record.complete)


def test_long_searches_stay_below_a_megabyte(tmp_path):
    text = page(result(tmp_path, runs=Table(rows(3000))))
    assert len(text) < 1e6
    words = Page(text).words
    assert f"{MAX_ROWS} of 3,000 rows" in words


def test_many_places_with_long_names(tmp_path):
    count = 20
    places = tuple(f"after {'encoder.layers.' * 8}{n}" for n in range(count))
    about = info(
        places=places,
        variant_places=(places, places),
        slots=tuple(f"r0c{n}" for n in range(count)),
    )
    host = replace(HOST, topology=("",) * count)
    pick = replace(PICK, topology=("mlp",) * count)
    record = ResultRecord((pick,), host, (), 5, "grown", 1.0, 1.0, complete=True)
    found = Page(page(result(tmp_path, record, about, Table())))
    assert "nothing was recorded for this picture" in found.words
    assert found.words.count("mlp") >= count


def test_runs_of_the_same_network_are_one_curve_and_cut_ones_are_on_it(tmp_path):
    first = rows()[5]
    short = replace(
        first, number=6, trained=10, score=0.7, recipe=replace(first.recipe, batches=10)
    )
    cut = replace(first, trained=17, score=0.8, status="cut")
    planned = replace(first, number=7, status="planned", trained=0, score=NAN)
    about = replace(RECORD, complete=False)
    words = Page(page(result(tmp_path, about, runs=Table((cut, short, planned))))).words
    assert "0.33: 0.7, 0.57: 0.8" in words


def test_a_damaged_search_is_named_on_its_page(tmp_path):
    grown = result(tmp_path)
    (grown.folder / "search.json").write_text("{")
    assert "search.json is damaged" in Page(page(grown)).words


def test_notebooks_show_the_frontier(tmp_path):
    text = result(tmp_path)._repr_html_()
    found = Page(text)
    assert len(found.all("svg")) == 1
    assert found.words.startswith(RECORD.verdict)
    assert "<script" not in text


def test_scales_and_ticks():
    assert nice_ticks(0.11, 0.36) == [0.15, 0.2, 0.25, 0.3, 0.35]
    scale = Scale.over([100.0, 1e6], 0.0, 500.0, log=True)
    assert scale.ticks() == sorted(scale.ticks())
    assert 3 <= len(scale.ticks()) <= 8
    assert scale(100.0) < scale(1000.0) < scale(1e6)
    same = Scale.over([5.0], 0.0, 100.0, log=True)
    assert 0 < same(5.0) < 100


# ---- the table for people ------------------------------------------------------------------------


def wide(number: int, params: int, score: float, **more) -> NetworkRecord:
    return network(number, params, score, **{"variant": "x2", "origin": "width"} | more)


def table_of(tmp_path: Path, networks: tuple[NetworkRecord, ...], **about: object) -> list[str]:
    record = replace(RECORD, networks=networks, pick=5, others=())
    return str(result(tmp_path, record, info(**about))).splitlines()[2:-2]


def test_the_table_says_what_each_network_is_and_how_it_was_trained(tmp_path):
    recipe = replace(RECIPE, lr=0.003, augment="shift", batch_size=32, batches=60)
    recipe = replace(recipe, label_smoothing=0.1)
    grown = wide(5, 4000, 0.95, topology=("", "norm"), origin="grown", recipe=recipe)
    assert table_of(tmp_path, (grown,), places=("after a", "after b"),
                    variant_places=(("after a", "after b"),) * 2) == [
        "   network                  test accuracy  parameters   MACs  recipe",
        "   your model              0.8000 ±0.0100         100    100  3 epochs",
        ">  width x2, norm after b  0.9500 ±0.0100       4,000  4,000  12 epochs, rate 0.003, "
        "shift, batches of 32, smoothing 0.1, grown",
    ]  # fmt: skip


def test_what_is_no_better_than_a_smaller_network_or_a_constant_takes_no_line(tmp_path):
    """The pick and the user's model always do; the error is one standard error, 0.01."""
    close = [wide(2, 150, 0.809), wide(3, 160, 0.85), wide(4, 200, 0.86)]
    pick, behind = wide(5, 400, 0.855), wide(6, 500, 0.84)
    *rows, note = table_of(tmp_path, (*close, pick, behind))
    assert [re.findall(r"0\.\d+", row)[0] for row in rows[1:]] == ["0.8000", "0.8500", "0.8550"]
    assert note == "   3 more, within one standard error of a smaller network"
    (lines,) = [table_of(tmp_path / "c", (*close, pick), constant_score=0.809)]
    assert lines[-1] == (
        "   2 more, no better than a constant prediction or within one standard error of a "
        "smaller network"
    )
    lower = [replace(one, test_score=-one.test_score, val_score=-one.val_score) for one in close]
    *rows, note = table_of(tmp_path / "l", (*lower, pick), higher_is_better=False)
    assert len(rows) == 5
    assert note.startswith("   1 more")


def test_folded_networks_are_still_there(tmp_path):
    networks = (wide(2, 150, 0.801), wide(5, 400, 0.9))
    found = result(tmp_path, replace(RECORD, networks=networks))
    assert len(found.overview().rows) == 2
    assert "1 more" in Page(found._repr_html_()).words
    assert [one.params for one in found.frontier] == [150, 400]
    assert found.pick(params=200).params == 150
    assert len(found.table().rows) == 6


def test_the_report_has_the_code_of_the_pick(tmp_path):
    found = result(tmp_path)
    assert "Code of the pick" not in page(found)
    path = found.folder / "networks" / "0005.py"
    path.write_text("import torch  # <b>\n")
    assert "import torch  # <b>" in Page(page(found)).words
