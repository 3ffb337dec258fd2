"""What a reader takes from a live record, and which records it ignores."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from esper.karn import views
from esper.karn.views.live import read_live, under_way
from esper.leyline.codec import to_json
from esper.scripts import show
from esper.storage.folder_lock import FolderLock, lock_holder
from esper.storage.live import STALE_SECONDS, LiveRecord
from esper.storage.run_files import LIVE
from search_folder import ROWS, search_folder

RECORD = LiveRecord(
    "training", share=0.25, seconds_left=40.0, score=0.8, done=3, total=9, running=2
)


@pytest.fixture
def run(tmp_path):
    """A search that runs."""
    run = search_folder(tmp_path / "run", ROWS[:1], has_result=False)
    lock = FolderLock(run)
    yield run
    lock.release()


def keep(run: Path, **changes: object) -> None:
    given = {"session": lock_holder(run), "written": time.time()} | changes
    (run / LIVE).write_text(json.dumps(to_json(replace(RECORD, **given))))


def test_a_run_says_how_far_it_is_between_two_records(run):
    assert views.run_summary(run).under_way == ""
    keep(run)
    found = views.run_summary(run)
    assert found.under_way == (
        "training: 3 of 9 runs done, 2 under way, best validation score 0.8000"
    )
    assert (found.progress, found.seconds_left) == (0.25, 40.0)


def test_show_says_how_long_the_rest_takes(run):
    keep(run, seconds_left=75.0)
    found = dict(show._under_way(views.run_summary(run)))
    assert found["time left"] == "about 1 min 15 s"
    assert found["now"].startswith("training: 3 of 9 runs done")


def test_an_amount_of_minutes_is_a_duration(run):
    found = replace(views.run_summary(run), unit="minutes", done=0.63, total=10.0)
    assert found.amount == "38 s of 10 min 0 s"
    assert replace(found, state=views.RunState.FINISHED).amount == "38 s"
    assert replace(found, unit="rounds", done=2, total=3).amount == "2 of 3 rounds"


@pytest.mark.parametrize(
    "changes",
    [
        {"session": '{"pid": 1, "host": "other", "since": "before"}'},
        {"age": 2 * STALE_SECONDS},
        {"age": -2 * STALE_SECONDS},
        {"step": -1},
        {"stages": (("<b>", 1),)},
    ],
)
def test_a_record_of_another_session_or_an_old_or_odd_one_is_ignored(run, changes):
    keep(run)
    assert read_live(run) is not None
    if "age" in changes:
        changes = {"written": time.time() - changes["age"]}
    keep(run, **changes)
    assert read_live(run) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"doing": 1}', "9" * 10_000])
def test_a_damaged_record_is_ignored(run, content):
    (run / LIVE).write_text(content)
    assert views.run_summary(run).under_way == ""


def test_what_a_killed_run_left_is_not_shown(tmp_path):
    run = search_folder(tmp_path / "run", ROWS[:1], has_result=False)
    lock = FolderLock(run)
    keep(run)
    lock.release()  # as the kernel does for kill -9
    found = views.run_summary(run)
    assert (found.state, found.live) == (views.RunState.KILLED, None)


def test_text_of_a_record_cannot_command_a_terminal(run):
    keep(run, doing="train\x1b[31m")
    found = read_live(run)
    assert found is not None
    assert "\x1b" not in under_way(found)


def test_what_moves_is_seen_without_reading_the_records_again(run):
    cursor = views.RunCursor(run)
    cursor.poll()
    assert not cursor.poll().moved
    keep(run)
    update = cursor.poll()
    assert (update.moved, update.changed) == (True, False)
    assert not cursor.poll().moved


def test_rounds_that_are_under_way_move_the_bar(run, monkeypatch):
    keep(run, share=0.5)
    summary = replace(views.run_summary(run), done=2.0, total=8.0, pace=10.0)
    assert summary.progress == 0.5
    assert summary.seconds_left == 40.0
    no_clock = replace(RECORD, share=0.5, seconds_left=float("nan"))
    assert replace(summary, live=no_clock).seconds_left == pytest.approx(40.0)
    assert replace(summary, live=None).progress == 0.25
