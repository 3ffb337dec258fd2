"""What the terminal interface shows of a run, at the sizes people have."""

from __future__ import annotations

import asyncio
import math
import os
import re
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from esper.karn import views
from esper.karn.tui.formats import state_text
from esper.karn.tui.reader import RunShot
from esper.karn.tui.run_screen import PanelStrip
from esper.karn.tui.stage_marks import STAGE_MARKS
from esper.karn.views.curves import CurvePoint
from esper.leyline.stages import SeedStage
from esper.leyline.statistics import Estimate
from tui_support import ShotApp, screen_text, training_shot

SNAPSHOTS = Path(__file__).parent / "snapshots"
SMALL, LEAST, LARGE = (80, 24), (120, 34), (200, 60)
RENEW = "ESPER_RENEW_SNAPSHOTS"
"""Set to write the snapshots anew, then look at them."""

Check = Callable[[ShotApp, Any], Coroutine[Any, Any, str]]


def shown(shot: RunShot, size: tuple[int, int], keys: tuple[str, ...] = ()) -> str:
    """Text of a run on a terminal of this size, after some keys."""

    async def look() -> str:
        app = ShotApp(shot)
        async with app.run_test(size=size) as pilot:
            while app.screen.shot is None:  # the runs below it are listed, too
                await pilot.pause(0.01)
            await pilot.press(*keys)
            await pilot.pause()
            await pilot.wait_for_scheduled_animations()
            return screen_text(app)

    return asyncio.run(look())


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_training_run_looks_as_committed(size):
    keys = ("3",) if size == SMALL else ()
    found = f"{shown(training_shot(), size, keys)}\n"
    kept = SNAPSHOTS / f"train_{size[0]}x{size[1]}.txt"
    if RENEW in os.environ:
        kept.write_text(found)
    assert found == kept.read_text(), f"{kept} differs; {RENEW}=1 pytest writes it anew"


def test_states_differ_in_style_and_the_chosen_panel_is_inverted():
    styles = {state: str(state_text(state).style) for state in views.RunState}
    assert all(styles.values())
    assert styles[views.RunState.RUNNING] != styles[views.RunState.FAILED]

    async def look() -> list[str]:
        app = ShotApp(training_shot())
        async with app.run_test(size=SMALL) as pilot:
            while app.screen.shot is None:
                await pilot.pause(0.01)
            await pilot.press("3")
            await pilot.pause()
            line = app.screen.query_one(PanelStrip).render_line(0)
            return [part.text.strip() for part in line if part.style and part.style.reverse]

    assert asyncio.run(look()) == ["3 Lives"]


def test_large_terminal_shows_every_panel_at_once():
    text = shown(training_shot(), LARGE)
    for title in ("Learning curve", "Members", "Life lines", "Policy", "Budget", "Events"):
        assert title in text
    assert "8 of 10 rounds" in text
    assert "37.0 member-steps/s" in text
    assert "KL divergence 0.1, above 0.05" in text


def test_one_round_is_the_best_unless_rounds_do_not_compare():
    """Also of a run that was killed before its first checkpoint, which has the best score."""
    shot = training_shot()
    killed = replace(shot.summary, best_score=None)
    assert "best 0.635 in round 8" in shown(replace(shot, summary=killed), LARGE)
    varied = replace(killed, ranked=False)
    assert "in round" not in shown(replace(shot, summary=varied), LARGE)


def test_the_least_terminal_with_all_panels_shows_whole_numbers_and_names():
    shot = training_shot()
    held = replace(shot.members[0].slots[0], stage="FOSSILIZED", blueprint="conv_heavy")
    slots = tuple(replace(held, slot=f"r0c{i}") for i in range(3))
    member = replace(shot.members[0], slots=slots, score=0.1234, val_accuracy=0.5678)
    seed = replace(shot.seeds[0], blueprint="conv_heavy")
    text = shown(replace(shot, members=(member,) * 2, seeds=(seed,)), LEAST)
    for words in ("0.123 0.568", "F conv_heavy F conv_heavy F conv_heavy", "0 r0c0 conv_heavy ",
                  "explained variance", "training score"):  # fmt: skip
        assert words in text, words
    curve = replace(grow_shot().curves[0], recipe="rate 0.0316, augmentation flip+shift")
    networks = shown(replace(grow_shot(), curves=(curve,)), LEAST)
    for words in ("test  val. curve params width", "0.900 0.800", "M your model", "flip+shift"):
        assert words in networks, words


def test_before_the_first_round_has_ended_panels_say_what_is_under_way():
    shot = replace(training_shot(), rounds=(), members=(), speeds=())
    text = " ".join(shown(shot, LARGE).split())
    assert "2 training b 1 blending" in text
    assert text.count("step 7 of 20 of round 9") == 3, "title, curve and members"


@pytest.mark.parametrize(("key", "word"), [("3", "training"), ("6", "no event is recorded yet")])
def test_small_terminal_shows_one_panel_by_number(key, word):
    text = shown(training_shot(), SMALL, (key,))
    assert word in text
    assert all(len(line) <= SMALL[0] for line in text.splitlines())
    assert "q Quit" in text


def test_events_are_sentences_newest_first():
    payload = {"member_N": [3], "slot_N": [1], "blueprint_N": [1], "params_N": [308]}
    events = tuple(
        views.EventLine(kind, 1, step, 1.0, payload)
        for kind, step in (("SEED_GERMINATED", 2), ("THROUGHPUT", None), ("SEED_FOSSILIZED", 11))
    )
    text = shown(replace(training_shot(), events=events), SMALL, ("6",))
    newest = "round 2 step 12, member 3: conv_light in r0c1 made permanent, +308 parameters"
    oldest = "round 2 step 3, member 3: conv_light in r0c1 germinated, +308 parameters"
    words = " ".join(text.replace("│", " ").split())
    times = re.sub(r"\d\d:\d\d:\d\d ", "", words)
    assert f"{newest} {oldest}" in times, "nothing is cut off, nothing is between them"


def test_life_lines_read_without_colour():
    lines = shown(training_shot(), SMALL, ("3",)).splitlines()
    (line,) = [one for one in lines if "norm" in one]
    assert line.split()[-1] == "ggttttbbbbhhhhhh" + "F" * 24  # two columns a step
    assert len(set(STAGE_MARKS.values())) == len(SeedStage)


@pytest.mark.parametrize(
    ("state", "word"),
    [(views.RunState.KILLED, "Its process was killed"), (views.RunState.FAILED, "Ended by an")],
)
def test_ended_run_says_so_and_how_to_continue(state, word):
    text = " ".join(shown(training_shot(state), LARGE).split())
    assert word in text
    assert "Resume with: esper train ppo --resume runs/digits__ppo__0" in text


def test_names_of_runs_are_never_markup():
    shot = training_shot()
    odd = replace(shot.summary, name="[bold]x[/nothing]", task="[red]")
    assert "[bold]x[/nothing]" in shown(replace(shot, summary=odd), SMALL)


def grow_shot() -> RunShot:
    summary = replace(training_shot().summary, kind=views.RunKind.GROW, unit="training runs",
                      state=views.RunState.FINISHED, verdict="conv_light helps")  # fmt: skip
    points = tuple(
        views.FrontierPoint(str(i), ("", "conv_light" if i else ""), "x0.5",
                            "grown" if i else "given", 100 * (i + 1), 900,
                            Estimate(0.7 + i / 10, 0.6, 0.9), 0.8, True, i == 0, i == 2)
        for i in range(3)
    )  # fmt: skip
    curve = views.NetworkCurve("2", ("", "conv_light"), "x0.5", "grown", "", 0.03, "rate 0.03", 300,
                               900, True, ())  # fmt: skip
    return RunShot(summary, frontier=points, curves=(curve,))


def test_search_shows_frontier_and_pick():
    size = SMALL
    text = shown(grow_shot(), size)
    assert "◆ pick" in text
    assert "conv_light helps" in text
    networks = shown(grow_shot(), size, ("2",))
    assert "empty, conv_light" in networks
    assert "empty, conv_light; rate 0.03" in shown(grow_shot(), LARGE)


def test_scores_that_are_not_judged_are_called_validation_scores():
    shot = grow_shot()
    points = tuple(replace(one, score=Estimate(math.nan, math.nan, math.nan), is_pick=False)
                   for one in shot.frontier)  # fmt: skip
    curve = replace(shot.curves[0], points=(CurvePoint(1.0, 0.8, math.nan, math.nan),))
    text = shown(replace(shot, frontier=points, curves=(curve,)), SMALL)
    assert "validation score so far" in text
    assert "test score" not in text


def test_comparison_draws_intervals_on_one_scale():
    summary = replace(training_shot().summary, kind=views.RunKind.COMPARE, unit="policies")
    unknown = Estimate(float("nan"), float("nan"), float("nan"))
    policies = tuple(
        views.Contender(name, name, name == "wait", 4, Estimate(at, at - 0.1, at + 0.1), unknown,
                        unknown, unknown, 500.0, 3e3, 1.0, 2.0)
        for name, at in (("ppo", 0.8), ("wait", 0.6))
    )  # fmt: skip
    shot = RunShot(summary, contenders=policies)
    lines = shown(shot, SMALL).splitlines()
    first, second = (
        [one for one in lines if "├" in one and name in one] for name in ("ppo", "wait")
    )
    assert first[0].index("●") > second[0].index("●")
    assert "reference" in second[0]
    assert any("minus wait" in line for line in lines)


def test_interface_never_imports_torch():
    code = (
        "import sys; import esper.karn.tui.app, esper.scripts.tui; sys.exit('torch' in sys.modules)"
    )
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0


def test_a_search_has_its_log_with_rungs_and_what_is_unusual():
    summary = views.RunSummary(Path("grown"), "grown", views.RunKind.GROW, views.RunState.FINISHED)
    log = (views.LogLine("#0 planned", elapsed=0.0, round=0),
           views.LogLine("#7 diverged", elapsed=75.0, round=2, unusual=True))  # fmt: skip
    lines = shown(RunShot(summary, log=log), SMALL, ("4",)).splitlines()
    (newest,) = [line for line in lines if "#7 diverged" in line]
    (oldest,) = [line for line in lines if "#0 planned" in line]
    assert newest.split() == ["1", "min", "15", "s", "rung", "2", "#7", "diverged"]
    assert lines.index(newest) < lines.index(oldest), "newest first"
