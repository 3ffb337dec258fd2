"""How a member grew, in a real browser: chosen, scrubbed and read by keyboard alone."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from esper.karn import views
from web_support import CHROMIUM, REQUIRED, browser, server

pytestmark = pytest.mark.skipif(
    not REQUIRED and (CHROMIUM is None or find_spec("playwright") is None),
    reason="needs Chromium and playwright: make test-browser",
)

AXE = Path(os.environ.get("ESPER_NODE_MODULES", "node_modules")) / "axe-core" / "axe.min.js"


def opened(page, address: str, query: str = "") -> None:
    """The figure of a member is there."""
    page.goto(f"{address}runs/ppo{query}")
    page.locator("#story .network-plot svg").wait_for()


def shown_step(page) -> int:
    return int(page.locator("#story output").inner_text().split()[1])


def stages(page) -> list[str]:
    return [one.get_attribute("data-stage") for one in page.locator("#story .slot").all()]


def test_a_link_shows_the_same_member_and_round_to_everybody(runs):
    messages: list[str] = []
    with server(runs) as (address, _), browser(messages=messages) as page:
        opened(page, address)
        state = page.locator("#story .growth-state")
        best = views.read_growth(runs / "ppo")
        assert state.inner_text().startswith(f"Member {best.member}, step {best.now} of")
        assert "member=" not in page.url, "nothing was chosen yet"
        other = 1 - best.member
        page.locator("#story select").focus()
        page.keyboard.press("Home" if other == 0 else "End")
        page.get_by_text(f"Member {other}, step").wait_for()
        page.locator("#story .round").fill("1")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**?member={other}&round=1")
        link = page.url
        opened(page, address, link.partition("/runs/ppo")[2])
        assert state.inner_text().startswith(f"Member {other},")
        assert page.locator("#story select").input_value() == str(other)
        assert page.locator("#story .round").input_value() == "1"
        assert page.locator("#life-lines .chosen").count() > 0
        page.get_by_role("button", name="Newest").click()
        page.wait_for_url(f"**?member={other}")
        opened(page, address, "?member=99&round=x")
        assert state.inner_text().startswith("Member 1,"), "the last one"
    assert messages == []


def test_slots_fill_along_the_slider_as_the_records_say(runs):
    messages: list[str] = []
    growth = views.read_growth(runs / "ppo", 1, 0)
    assert growth.seeds
    assert len(growth.rates) == growth.now
    with server(runs) as (address, _), browser(messages=messages) as page:
        opened(page, address, "?member=0")
        slider = page.get_by_label("Step of the episode")
        slider.focus()
        page.keyboard.press("Home")
        for step in range(growth.now + 1):
            assert shown_step(page) == step
            assert f"+{growth.added_params[step]:,} parameters" in (
                page.locator("#story .growth-state").inner_text()
            )
            rate = f"learning rate {growth.rates[step - 1].host:.3g}" if step else "learning rate"
            said = page.locator("#story .growth-state").inner_text()
            assert (rate in said) == bool(step)
            held = {
                seed.slot: span.stage
                for seed in growth.seeds
                for span in seed.stages
                if span.first <= step and (span.end is None or step < span.end)
            }
            assert stages(page) == [held.get(slot, "DORMANT") for slot in growth.slots]
            page.keyboard.press("ArrowRight")
        assert page.locator("#story .rate").count() == 1, "seeds have the same rate"
        happened = page.locator("#story .happened-one")
        assert happened.count() == len(growth.happened)
        happened.first.focus()
        page.keyboard.press("Enter")
        first = growth.happened[0].step
        assert shown_step(page) == (0 if first is None else first + 1)
        page.locator("#story .life").first.focus()
        assert growth.seeds[0].blueprint in page.locator("#story .seed-readout").inner_text()
    assert messages == []


def test_play_goes_to_the_end_and_stops_where_no_motion_is_wanted_it_goes_by_changes(runs):
    growth = views.read_growth(runs / "ppo", 1, 0)
    changes = sorted({(one.step or 0) + 1 for one in growth.happened if one.step is not None})
    with server(runs) as (address, _), browser() as page:
        opened(page, address, "?member=0")
        button = page.locator("#story .play")
        button.focus()
        page.keyboard.press("Enter")
        assert "Pause" in button.inner_text()
        page.locator("#story .play", has_text="Play").wait_for()
        assert shown_step(page) == growth.now
        page.emulate_media(reduced_motion="reduce")
        page.locator("#story .play", has_text="Next change").wait_for()
        page.get_by_label("Step of the episode").fill("0")
        for step in changes:
            button.click()
            assert shown_step(page) == step
            page.wait_for_timeout(50)


@pytest.mark.skipif(not REQUIRED and not AXE.exists(), reason="needs axe-core: make test-browser")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_passes_axe_and_fits_a_phone(runs, scheme):
    ask = "axe.run('#story').then(found => found.violations.map(one => one.id + one.nodes[0].html))"
    wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    with server(runs) as (address, _):
        for width in (390, 1280):
            with browser(width, scheme) as page:
                opened(page, address)
                page.evaluate(AXE.read_text())
                assert page.evaluate(ask) == []
                assert not page.evaluate(wide)
