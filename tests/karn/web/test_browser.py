"""The dashboard in a real browser, over a run that is being written and then killed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import time
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from esper.karn.report.page import page as report_page
from esper.karn.web.places import id_of
from esper.storage.folder_lock import FolderLock
from esper.storage.live import LiveFile, LiveRecord
from esper.storage.run_files import TEST_SAMPLES
from esper.storage.tags import change_tags
from search_folder import INFO, RESULT, ROWS, row, search_folder, write
from web_support import CHROMIUM, HOSTILE, REQUIRED, browser, comparison, server, train

pytestmark = pytest.mark.skipif(
    not REQUIRED and (CHROMIUM is None or find_spec("playwright") is None),
    reason="needs Chromium and playwright: make test-browser",
)

AXE = Path(os.environ.get("ESPER_NODE_MODULES", "node_modules")) / "axe-core" / "axe.min.js"
PATIENCE = 60_000
"""Milliseconds; a process imports torch before it trains."""


@pytest.fixture
def own(runs, tmp_path) -> Path:
    """A folder of runs of the test's own."""
    return shutil.copytree(runs, tmp_path / "runs", symlinks=True)


def wait_for_more(page, selector: str, n: int) -> None:
    """Wait for more than `n` elements; the policy of the pages forbids scripts of the test."""
    page.locator(selector).nth(n).wait_for(state="attached")


def test_list_run_live_curves_kill_compare_report(own):
    messages: list[str] = []
    run = train(own, rounds=100_000)
    try:
        with server(own) as (address, _), browser(messages=messages) as page:
            page.set_default_timeout(PATIENCE)
            page.goto(address)
            live = page.locator("tr", has=page.locator('[data-state="running"]'))
            live.get_by_role("link").first.click()
            page.locator("#score canvas").wait_for()
            assert "Running" in page.locator(".sentence").inner_text()

            page.locator("#score .toggle").click()
            wait_for_more(page, "#score tbody tr", 1)
            wait_for_more(page, "#score tbody tr", page.locator("#score tbody tr").count() + 1)
            page.locator("#score .toggle").click()
            before = page.locator("#score canvas").screenshot()
            deadline = time.monotonic() + PATIENCE / 1000
            while page.locator("#score canvas").screenshot() == before:
                assert time.monotonic() < deadline, "the curve does not move"
            curves = page.locator("#score .curves")
            curves.focus()
            page.keyboard.press("+")
            seen = curves.get_attribute("aria-label")
            zoom = re.search("Zoomed to .* to ", seen)
            while (found := curves.get_attribute("aria-label")) == seen:
                assert time.monotonic() < deadline, "no new round"
            assert zoom is not None, seen
            assert zoom[0] in found, "the zoom stays"
            page.keyboard.press("Escape")
            page.locator("#life-lines svg[role=img]").wait_for()
            assert page.locator("#log tbody tr").count() > 5

            os.kill(run.pid, signal.SIGKILL)
            run.wait()
            page.get_by_text("The process that wrote this run is gone").wait_for()
            assert page.locator(".run-head .state").inner_text().strip().endswith("killed")

            page.goto(address)
            boxes = page.locator("tbody tr input[type=checkbox]")
            page.get_by_label("Compare ppo").check()
            page.get_by_label("Compare synthetic__ppo").first.check()
            assert boxes.count() == 5
            page.get_by_role("link", name="Compare 2 selected").click()
            page.locator("#curves canvas").wait_for()
            wait_for_more(page, "#curves .legend li", 1)
            assert "is gone" in page.locator("main > .note").inner_text()

            page.goto(address)
            page.get_by_label("Report of ppo").click()
            page.get_by_role("heading", name="Report").wait_for()
            assert page.title() != "script ran"
    finally:
        run.kill()
        run.wait()
        assert run.stdout is not None
        run.stdout.close()
    # Chromium itself reports the script of the report page that its policy blocked.
    assert [m for m in messages if "/report" not in m and "sandboxed" not in m] == []


def test_a_search_is_followed_from_its_first_run_to_its_judgement(tmp_path):
    messages: list[str] = []
    run = search_folder(tmp_path / "runs" / "grown", ROWS[:1], has_result=False)
    lock = FolderLock(run)
    with server(tmp_path / "runs") as (address, _), browser(messages=messages) as page:
        page.goto(f"{address}runs/grown")
        networks = page.locator("#frontier .network")
        networks.first.wait_for()
        result = page.locator(".result-facts")
        assert "validation accuracy\n0.7" in result.inner_text()
        write(run / "search.json", {"rows": list(ROWS), "seconds": 12.0, "ended": ""})
        wait_for_more(page, "#frontier .network", 4)
        assert page.locator("#frontier .axis text", has_text="validation score (accuracy)").count()
        assert page.locator("#lineage .network").count() == 6, "one is not trained yet"
        assert page.locator('#frontier .network .mark[fill="var(--panel)"]').count() == 5, (
            "all are hollow"
        )
        assert page.locator("#frontier .network .mark[stroke-dasharray]").count() == 1, (
            "one is under way"
        )
        log = page.locator("#log tbody tr")
        assert "under way: 10 of 30 batches" in log.first.inner_text()
        assert log.last.inner_text().startswith("0 s"), "newest first"

        write(run / "result.json", RESULT)
        lock.release()
        page.locator(".sentence", has_text="Finished.").wait_for()
        assert page.locator('#frontier .network .mark[fill="var(--panel)"]').count() == 3, (
            "two are filled"
        )
        page.locator("#frontier select").first.select_option("test")
        assert page.locator("#frontier .axis text", has_text="test score (accuracy)").count()
        assert networks.count() == 2, "none without a test score is on its axis"

        (run / "search.json").write_text("{")
        page.get_by_text("Cannot be read").first.wait_for()
        assert "search.json" in page.locator(".sentence").inner_text()
        assert page.locator(".headline").inner_text() == RESULT["verdict"]
        assert "test accuracy\n0.85" in result.inner_text()
        assert networks.count() == 2
        assert "judged on test" in page.locator("#log").inner_text()
        assert "search.json" in page.locator("#lineage .problem").inner_text()
    assert messages == []


def test_what_is_under_way_moves_before_anything_is_recorded(tmp_path, runs):
    from playwright.sync_api import expect

    messages: list[str] = []
    search = search_folder(tmp_path / "runs" / "grown", ROWS[5:], has_result=False)
    training = shutil.copytree(runs / "ppo", tmp_path / "runs" / "ppo")
    now = {
        search: LiveRecord("training", share=0.06, running=1, total=1),
        training: LiveRecord("training", round=2, step=7, steps=24, stages=(("BLENDING", 3),)),
    }
    with contextlib.ExitStack() as held:
        for run in now:
            held.callback(FolderLock(run).release)
            held.enter_context(LiveFile(run, partial(now.__getitem__, run)))
        address, _ = held.enter_context(server(tmp_path / "runs"))
        page = held.enter_context(browser(messages=messages))
        page.goto(f"{address}runs/grown")
        page.get_by_text("0 of 1 runs done, 1 under way").wait_for()
        assert page.title() == "6 % grown - Esper"
        assert "The first network is being trained" in page.locator(".nothing-yet").inner_text()
        assert not page.locator("#frontier").is_visible(), "no empty plots"
        now[search] = replace(now[search], share=0.5)
        expect(page).to_have_title("50 % grown - Esper")
        assert page.locator(".run-progress progress").evaluate("bar => bar.value") == 0.5

        page.goto(f"{address}runs/ppo")
        page.get_by_text("step 7 of 24 of round 3").wait_for()
        assert page.locator(".stage-counts").inner_text().strip() == "3 blending"
        page.goto(address)
        page.get_by_text("step 7 of 24 of round 3").wait_for()
    assert messages == []


def test_a_network_is_found_pinned_and_left_by_keyboard_alone(tmp_path):
    run = search_folder(tmp_path / "runs" / "grown")
    with server(tmp_path / "runs") as (address, _), browser() as page:
        page.goto(f"{address}runs/grown")
        page.locator(".network").first.wait_for()
        sections = page.locator("main h2").all_inner_texts()
        assert sections == re.findall("<h2>(.*?)</h2>", report_page(run)), "as in the report"
        page.locator("#frontier select").last.select_option("seconds")
        page.locator("#frontier select").last.focus()
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        card = page.locator(".card")
        assert "your model" in card.inner_text()
        page.keyboard.press("End")
        for words in ("width x2, depth x0.5, norm", "0.85 ± 0.02", "+0.1 against your model", "300",
                      "1.5 [1.2, 2] ms", "30 batches of 16, shift", "#0 your model"):  # fmt: skip
            assert words in card.inner_text(), words
        page.keyboard.press("Enter")
        page.get_by_role("link", name="networks/0002.py").wait_for()
        assert ".pick()" in page.locator(".detail").inner_text()
        assert "import torch" in page.locator(".detail").inner_text()
        page.keyboard.press("Home")
        assert "your model" in card.locator("h3").inner_text()
        page.keyboard.press("Escape")
        assert not page.locator(".detail").is_visible()
        page.get_by_role("link", name="Esper").click()
        assert "test accuracy 0.8500" in page.locator("td.result").inner_text()


def test_a_run_shows_where_it_came_from_and_is_one_selection_in_all_plots(tmp_path):
    search_folder(tmp_path / "runs" / "grown")
    with server(tmp_path / "runs") as (address, _), browser() as page:
        page.goto(f"{address}runs/grown")

        def mark(figure: str, label: int):
            return page.locator(f'#{figure} .network[data-label="{label}"]')

        mark("lineage", 1).hover()
        card, family = page.locator(".card"), page.locator("#lineage .network.family")
        assert "From #0, rate 0.02." in card.inner_text()
        assert family.count() == 2, "itself and your model"
        assert page.locator("#lineage .edge.family").count() == 1
        mark("lineage", 2).click()
        assert mark("frontier", 2).get_attribute("aria-pressed") == "true"
        assert mark("best", 2).get_attribute("aria-pressed") == "true"
        page.get_by_role("link", name="networks/0002.py").wait_for()
        mark("lineage", 2).press("ArrowLeft")
        assert "The first run: your model" in card.inner_text()
        assert family.count() == 3, "all that came from it"
        page.keyboard.press("ArrowRight")
        assert "From #0, rate 0.02." in card.inner_text()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        assert page.locator('[aria-pressed="true"][data-label="2"]').count() == 0, "one at a time"
        mark("lineage", 5).focus()
        assert "Not started" in card.inner_text() or "Not trained yet" in card.inner_text()


def test_a_saved_lineage_names_rungs_and_networks_and_explains_its_marks(tmp_path):
    search_folder(tmp_path / "runs" / "grown")
    with server(tmp_path / "runs") as (address, _), browser() as page:
        page.goto(f"{address}runs/grown")
        page.locator("#lineage .network").first.wait_for()
        page.locator("#lineage .save summary").click()
        with page.expect_download() as saved:
            page.locator("#lineage .save button", has_text="SVG").click()
        root = ElementTree.parse(saved.value.path()).getroot()
        texts = [found.text for found in root.iter("{http://www.w3.org/2000/svg}text")]
        assert {"Lineage", "rung 0", "your model", "on the frontier"} <= set(texts)
        lanes = page.locator("#lineage .lane-names text > title").all_text_contents()
        assert len(set(lanes)) > 1
        titles = [found.text for found in root.iter("{http://www.w3.org/2000/svg}title")]
        assert set(lanes) <= set(titles), "the lanes are beside the runs"


def test_four_hundred_runs_stay_in_their_box(tmp_path):
    """The page never scrolls sideways, and a run that is pinned elsewhere is scrolled to."""
    rows = tuple(
        row(n, 100 + n % 40, 0.5 + n / 1000, rung=n // 50, topology=["", f"seed{n % 40}"],
            parent=n - 50 if n >= 50 else None)
        for n in range(400)
    )  # fmt: skip
    run = search_folder(tmp_path / "runs" / "grown", rows, has_result=False)
    write(run / "grow.json", INFO | {"fingerprint": 64 * "4"})
    (run / "report.html").write_text(report_page(run))
    inside = "node => [node.clientHeight, node.scrollHeight, node.scrollTop]"
    with server(tmp_path / "runs") as (address, _), browser(400) as page:
        page.goto(f"{address}runs/grown")
        wait_for_more(page, "#lineage .network", 399)
        box = page.locator("#lineage .lineage-box")
        height, whole, top = box.evaluate(inside)
        assert height <= 480 < whole
        page.locator('#frontier .network[data-label="399"]').press("Enter")
        assert box.evaluate(inside)[2] > top
        page_width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(page_width) == 0
        page.goto(f"{address}runs/grown/report")
        assert page.locator("section.tall svg").count() == 1
        assert page.evaluate(page_width) == 0, "nor does the report"


def test_a_link_to_the_list_shows_the_same_list(tmp_path):
    messages: list[str] = []
    for number, name in enumerate(("first", "second", "third")):
        run = search_folder(tmp_path / "runs" / name)
        write(run / "grow.json", INFO | {"seed": number, "epochs": 10.0 - number})
        if number:
            change_tags(run, add=["good", "<b>"])
    comparison(tmp_path / "runs" / "cmp")
    with server(tmp_path / "runs") as (address, _), browser(messages=messages) as page:
        page.goto(address)
        page.get_by_label("Compare third").check()
        page.get_by_label("Compare cmp").check()
        page.locator(".tools select").first.select_option("grow")
        page.get_by_label("Show runs tagged good").first.click()
        page.get_by_role("button", name="Columns").focus()
        page.keyboard.press("Enter")
        page.locator("fieldset").nth(1).wait_for()
        page.keyboard.type("epochs")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Space")
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.textContent") == "Columns"
        page.get_by_role("button", name="epochs", exact=True).click()
        page.locator("td.setting", has_text="8").wait_for()
        look = "[...document.querySelectorAll('table.runs tr, .bar, .chips')].map(n => n.innerText)"
        before = page.evaluate(look)
        assert page.locator("tbody .name a:first-child").all_inner_texts() == ["third", "second"]
        assert page.locator('[aria-sort="ascending"]').inner_text().startswith("epochs")
        assert "2 selected, 1 of them hidden by the filter" in before[-1]
        page.reload()
        page.locator("td.setting", has_text="8").wait_for()
        assert page.evaluate(look) == before
        assert page.get_by_label("Compare third").is_checked()
        assert page.locator(".tools select").first.input_value() == "grow"
        page.get_by_role("link", name="Compare 2 selected").click()
        page.locator(".run-card").nth(1).wait_for()
        page.go_back()
        page.locator("td.setting", has_text="8").wait_for()
        assert page.evaluate(look) == before
        page.goto(
            f"{address}?col=setting:__proto__&col=nothing&sort=constructor&kind=x&run=..%2Fup"
        )
        page.locator("tbody tr").nth(3).wait_for()
    assert messages == []


def test_five_hundred_runs_are_sorted_and_filtered_without_a_wait(tmp_path):
    first = search_folder(tmp_path / "runs" / "run-000")
    for number in range(1, 500):
        shutil.copytree(first, tmp_path / "runs" / f"run-{number:03d}", copy_function=os.link)
    with server(tmp_path / "runs") as (address, _), browser() as page:
        page.goto(address)
        page.locator("tbody tr").nth(499).wait_for()
        sort, find = page.get_by_role("button", name="run", exact=True), page.locator("#filter")
        began = time.monotonic()
        sort.click()
        sort.click()
        find.fill("run-12")
        page.locator("tbody tr").nth(10).wait_for(state="detached")
        assert time.monotonic() - began < 3.0
        assert page.locator("tbody tr").count() == 10
        find.fill("")
        page.mouse.wheel(0, 9000)
        page.get_by_label("Compare run-250").check()
        assert page.get_by_text("1 selected", exact=True).is_visible()
        assert page.get_by_role("link", name="Compare").last.evaluate(
            "n => n.getBoundingClientRect().bottom <= innerHeight"
        ), "in reach wherever the page is scrolled to"


def test_a_comparison_keeps_its_baseline_and_folds_equal_settings_away(tmp_path):
    messages: list[str] = []
    for number, name in enumerate(("one", "two")):
        run = search_folder(tmp_path / "runs" / name)
        write(run / "grow.json", INFO | {"budget": {"params": 500 + number}})
        np.save(run / TEST_SAMPLES, np.array([[1, 1, 1, number], [1, 0, 1, 0]], np.float32))
    with server(tmp_path / "runs") as (address, _), browser(messages=messages) as page:
        page.goto(f"{address}compare?run=one&run=two")
        page.get_by_role("heading", name="Differences to one").wait_for()
        row = page.locator(".difference").first.locator("tbody tr").nth(1)
        for words in ("two", "+0.25 [", "no clear difference", "paired: the same 4 test samples"):
            assert words in row.inner_text(), words
        beside = page.get_by_role("region", name="Runs side by side")
        assert beside.get_by_role("row", name="gain +").inner_text() == "gain\t+0.1\t+0.1"
        assert page.locator("#settings .nested:visible").all_inner_texts() == ["params"]
        assert page.locator("#settings td.changed:visible").all_inner_texts() == ["501"]
        page.locator("#settings summary").click()
        assert page.get_by_text("cross_entropy").is_visible()
        page.get_by_label("Baseline: two").check()
        page.get_by_role("heading", name="Differences to two").wait_for()
        page.reload()
        page.get_by_role("heading", name="Differences to two").wait_for()
        assert page.get_by_label("Baseline: two").is_checked()
        page.get_by_label("Remove one").click()
        page.wait_for_url("**/compare?run=two")
    assert messages == []


@pytest.mark.skipif(not REQUIRED and not AXE.exists(), reason="needs axe-core: make test-browser")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_of_a_search_pass_axe_and_fit_a_phone(tmp_path, scheme):
    for name in ("grown", "other"):
        change_tags(search_folder(tmp_path / "runs" / name), add=["good"])
    compared = "compare?run=grown&run=other"
    ask = "axe.run().then(found => found.violations.map(one => one.id + one.nodes[0].html))"
    wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    for width in (390, 1280):
        with server(tmp_path / "runs") as (address, _), browser(width, scheme) as page:
            for path, part in (
                ("", "td.result"),
                ("?tag=good&sort=name&col=gain&col=result", "td.result"),
                (compared, ".difference"),
                ("runs/grown", ".network"),
                ("nowhere", "h1"),
            ):
                page.goto(address + path)
                page.locator(part).first.wait_for()
                if path == "runs/grown":
                    page.locator(".network .mark").first.click()
                    page.get_by_role("heading", name="Training loss").wait_for()
                if path.startswith("?"):
                    assert page.get_by_text("+0.1", exact=True).count() == 2
                    page.get_by_role("button", name="Columns").click()
                    page.locator("fieldset").nth(1).wait_for()
                page.evaluate(AXE.read_text())
                assert page.evaluate(ask) == [], path
                assert not page.evaluate(wide), path


def test_an_empty_folder_offers_the_demo(tmp_path):
    with server(tmp_path) as (address, _), browser() as page:
        page.goto(address)
        page.get_by_text("esper grow --demo").wait_for()


def test_names_with_markup_are_text_everywhere(own):
    messages: list[str] = []
    with server(own) as (address, _), browser(messages=messages) as page:
        page.on("dialog", lambda dialog: messages.append(f"dialog {dialog.message}"))
        page.goto(address)
        page.get_by_role("link", name="onerror", exact=False).first.click()
        page.locator("#score canvas").wait_for()
        assert "<img src=x onerror" in page.locator("h1").inner_text()
        assert page.locator("main img").count() == 0
        page.goto(f"{address}compare?run={id_of(HOSTILE)}&run=ppo")
        page.locator("#curves .legend li").nth(1).wait_for()
        assert page.locator("main img").count() == 0
    assert messages == []


def test_every_plot_is_also_a_table_by_keyboard_alone(own):
    messages: list[str] = []
    with server(own) as (address, _), browser(messages=messages) as page:
        page.goto(f"{address}runs/ppo")
        page.locator("#score canvas").wait_for()
        page.locator("#life-lines svg[role=img]").wait_for()
        for figure in page.locator("section.figure:visible:has(.toggle)").all():
            button = figure.locator(".toggle")
            button.focus()
            page.keyboard.press("Enter")
            assert figure.locator("table tbody tr").count() > 0, figure.get_attribute("id")
            page.keyboard.press("Enter")
            assert button.get_attribute("aria-pressed") == "false"
        page.locator("#score .curves").focus()
        page.keyboard.press("End")
        assert page.locator("#score .readout").inner_text().startswith("round 2")
    assert messages == []


def test_curves_zoom_together_hide_series_and_are_saved(own):
    messages: list[str] = []
    with server(own) as (address, _), browser(messages=messages) as page:
        page.goto(f"{address}runs/ppo")
        page.locator("#score canvas").wait_for()
        page.locator("#score .curves").focus()
        page.keyboard.press("End")
        tips = page.locator(".tip:visible")
        assert tips.count() > 3, "all curves over rounds say what is there"
        assert all(tip.startswith("round 2") for tip in tips.all_inner_texts())
        page.keyboard.press("+")
        for name in ("#score", "#accuracy"):
            page.locator(f"{name} .small", has_text="Zoom out").wait_for()
            label = page.locator(f"{name} .curves").get_attribute("aria-label")
            assert "Zoomed to 1.5 to 2" in label
        page.emulate_media(color_scheme="dark")
        assert "Zoomed to 1.5" in page.locator("#score .curves").get_attribute("aria-label")
        page.locator("#accuracy .small", has_text="Zoom out").click()
        assert "Zoomed" not in page.locator("#score .curves").get_attribute("aria-label")

        entry = page.locator("#score .legend button", has_text="best member")
        entry.focus()
        page.keyboard.press("Enter")
        assert entry.get_attribute("aria-pressed") == "false"
        page.locator("#score .curves").focus()
        page.keyboard.press("End")
        assert "best member" not in page.locator("#score .readout").inner_text()

        for figure, kind, begins in (
            ("#score", "CSV", b"round,mean of members,"),
            ("#score", "PNG", b"\x89PNG"),
            ("#life-lines", "SVG", b"<svg"),
            ("#life-lines", "PNG", b"\x89PNG"),
        ):
            page.locator(f"{figure} .save summary").click()
            with page.expect_download() as saved:
                page.locator(f"{figure} .save button", has_text=kind).click()
            assert saved.value.suggested_filename.endswith(f".{kind.lower()}")
            assert Path(saved.value.path()).read_bytes().startswith(begins), (figure, kind)
    assert messages == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_phone(own, scheme):
    wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    with server(own) as (address, _), browser(400, scheme) as page:
        for path in ("", "runs/ppo", "runs/cmp", "compare?run=ppo&run=cmp"):
            page.goto(address + path)
            page.locator("main table, main svg, main canvas").first.wait_for()
            assert not page.evaluate(wide), path
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(251, 251, 249)" if scheme == "light" else "rgb(20, 24, 26)")


def test_a_page_opens_with_the_token_alone(own, tmp_path):
    (tmp_path / "token").write_text("0123456789abcdef")
    (tmp_path / "token").chmod(0o600)
    argv = ("--token-file", str(tmp_path / "token"))
    with server(own, *argv) as (address, _), browser() as page:
        address = address.partition("?")[0]
        assert page.goto(address).status == 401
        page.goto(f"{address}?token=0123456789abcdef")
        page.get_by_role("link", name="ppo", exact=True).wait_for()
        assert "token" not in page.url
        page.get_by_role("link", name="ppo", exact=True).click()
        page.locator("#score canvas").wait_for()  # the socket has the cookie, too


def test_a_reader_makes_an_axis_logarithmic_and_undoes_it(own):
    messages: list[str] = []
    with server(own) as (address, _), browser(messages=messages) as page:
        page.goto(f"{address}runs/ppo")
        page.locator("#speed canvas").wait_for()
        button = page.locator("#speed button", has_text="Log scale")
        button.focus()  # its ring lies over the plot
        linear = page.locator("#speed canvas").screenshot()
        for pressed in ("true", "false"):
            page.keyboard.press("Enter")
            assert button.get_attribute("aria-pressed") == pressed
            drawn = page.locator("#speed canvas").screenshot()
            assert (drawn == linear) is (pressed == "false")
        assert page.locator("#score button:visible", has_text="Log scale").count() == 0
    assert messages == []


def test_the_page_says_calmly_that_the_server_is_gone(own):
    with browser() as page:
        with server(own) as (address, _):
            page.goto(f"{address}runs/ppo")
            page.locator("#score canvas").wait_for()
        page.get_by_text("esper serve does not answer").wait_for()
        assert page.locator("#score canvas").is_visible()
