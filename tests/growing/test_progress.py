"""A search is never silent: one bar on a terminal, plain lines elsewhere, and never both."""

from __future__ import annotations

import io
import json
import math
import os
import pty
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import nn

import esper
from esper.growing import api, live, outcome
from esper.growing.progress import Progress, ProgressPrinter
from esper.growing.trainers.job import Running
from search_support import row

SLOW = 0.5
"""Seconds that some phases are made to take."""
MAX_GAP = 0.4
BAR = re.compile(r"[━─]{5,} \d+ %  (\d+:\d\d left  )?")


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def grow(folder, **settings) -> esper.GrowResult:
    x = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)
    return esper.grow(
        mlp, (x, (x[:, 0] > 0).astype(np.int64)), budget=esper.Budget(host_runs=3), epochs=1,
        folder=folder, device="cpu", slots=1, widths=(), **settings,
    )  # fmt: skip


class Terminal:
    """A pseudo-terminal, and when something was written to it."""

    def __init__(self) -> None:
        self._mine, theirs = pty.openpty()
        self.stream = os.fdopen(theirs, "w", encoding="utf-8")
        self.written: list[tuple[float, str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            while data := os.read(self._mine, 1 << 16):
                self.written.append((time.monotonic(), data.decode(errors="replace")))
        except OSError:  # the other end was closed
            pass

    def close(self) -> str:
        """All that was written."""
        self.stream.close()
        self._reader.join(timeout=5)
        os.close(self._mine)
        return "".join(text for _, text in self.written)


@pytest.fixture
def terminal(monkeypatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(live, "TICK", 0.02)
    found = Terminal()
    yield found
    if not found.stream.closed:
        found.close()


def slowly(work: Callable[..., Any]) -> Callable[..., Any]:
    def slow(*given: Any, **named: Any) -> Any:
        time.sleep(SLOW)
        return work(*given, **named)

    return slow


def test_a_search_is_never_silent_on_a_terminal_from_call_to_return(
    terminal, tmp_path, monkeypatch
):
    """Reading, judging and the report take long here; each is announced as it goes on."""
    monkeypatch.setattr(api, "read_data", slowly(api.read_data))
    monkeypatch.setattr(outcome, "difference", slowly(outcome.difference))
    monkeypatch.setattr(esper.GrowResult, "report", slowly(esper.GrowResult.report))
    monkeypatch.setattr("sys.stderr", terminal.stream)
    called = time.monotonic()
    grow(tmp_path)
    returned = time.monotonic()
    text = terminal.close()
    times = [called, *(when for when, _ in terminal.written), returned]
    assert max(np.diff(times)) < MAX_GAP
    assert BAR.search(text)
    for phase in ("reading data", "judging on test", "writing the report"):
        assert phase in text
    assert text.rpartition("\n")[2].endswith("\r\x1b[K"), "the bar is gone at the end"
    lines = [line.rpartition("\r\x1b[K")[2] for line in text.split("\n")]
    assert not [line for line in lines if " runs" in line], "no line beside the bar"


@pytest.mark.parametrize("raised", [KeyboardInterrupt, ValueError])
def test_the_bar_ends_with_the_block_whatever_is_raised(raised, terminal):
    def interrupted() -> None:
        with ProgressPrinter(stream=terminal.stream).shown():
            time.sleep(0.1)
            raise raised

    with pytest.raises(raised):
        interrupted()
    assert "progress" not in {thread.name for thread in threading.enumerate()}
    assert terminal.close().endswith("\r\x1b[K")


def test_elsewhere_there_are_plain_lines_and_each_once(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(esper.GrowResult, "report", slowly(esper.GrowResult.report))
    monkeypatch.setattr(live, "TICK", 0.02)
    monkeypatch.setattr(live, "PLAIN_SECONDS", 0.1)
    grow(tmp_path)
    text = capsys.readouterr().err
    assert not re.search("[━\r\x1b]", text)
    lines = text.splitlines()
    assert all(lines)
    rung = [line for line in lines if line.startswith("training: 100 %")][-1]
    assert re.fullmatch(r"training: 100 %, 0 s left, best [01]\.\d{4}, (\d+) of \1 runs", rung)
    assert 2 <= len([line for line in lines if line.startswith("writing the report")]) <= 20


def test_the_terminal_may_go_away(terminal):
    with ProgressPrinter(stream=terminal.stream).shown():
        time.sleep(0.1)
        assert "starting" in terminal.close()
        time.sleep(0.1)


def search(*rows: Any) -> Any:
    return SimpleNamespace(
        table=SimpleNamespace(rows=rows, rungs=1),
        networks=SimpleNamespace(budget=esper.Budget()),
        ladder=SimpleNamespace(full=54),
        most_runs=10.0,
        clock=SimpleNamespace(seconds=30.0, limit=math.inf),
    )


@pytest.mark.parametrize("lower_is_better", [False, True])
def test_the_best_so_far_never_falls(lower_is_better):
    """A run that was cut may end worse than it was."""
    seen: list[Progress] = []
    printer = ProgressPrinter(False, seen.append)
    good, bad = (0.2, 0.9) if lower_is_better else (0.9, 0.2)
    cut = replace(row(0, good, status="cut"), lower_is_better=lower_is_better)
    for one in (cut, replace(cut, score=bad, status="finished")):
        printer.on_rung(search(one))
        printer.on_saved()
    assert [progress.best_score for progress in seen] == [good, good]


HALF = Progress(
    rung=1, runs_done=3, runs_planned=8, trained=900, best_score=0.91234, runs=5.0,
    budget_runs=10.0, seconds=60.0, budget_seconds=math.inf, round=1,
)  # fmt: skip


def test_time_left_is_by_the_clock_or_at_the_pace_so_far():
    assert str(HALF) == "50 %, 1 min 0 s left, best 0.9123, 3 of 8 runs"
    timed = replace(HALF, budget_runs=math.inf, budget_seconds=75.0)
    assert str(timed) == "80 %, 15 s left, best 0.9123, 3 of 8 runs"
    both = replace(HALF, budget_seconds=75.0)
    assert (both.share, both.seconds_left) == (0.8, 15.0)
    begun = replace(HALF, runs=0.1, best_score=math.nan)
    assert str(begun) == "1 %, 3 of 8 runs"


@contextmanager
def shown_at(progress: Progress) -> Iterator[ProgressPrinter]:
    printer = ProgressPrinter(True, stream=io.StringIO())
    printer._newest, printer._looked = progress, time.monotonic()
    printer.phase("training")
    yield printer


@pytest.mark.parametrize("columns", [10, 40, 60, 200])
def test_the_bar_fits_the_terminal(columns):
    with shown_at(HALF) as printer:
        line = printer._line(columns)
    assert len(line) <= columns
    assert line.startswith("training ")
    assert ("━" in line) == (columns >= 60)


def test_what_is_under_way_is_recorded_without_a_display_and_removed_at_the_end(
    tmp_path, monkeypatch
):
    from esper.storage import live as live_record

    contents: list[dict[str, Any]] = []
    monkeypatch.setattr(live_record, "WRITE_SECONDS", 0.001)
    monkeypatch.setattr(
        live_record, "replace_file", lambda path, content: contents.append(json.loads(content))
    )
    result = grow(tmp_path, verbose=False)
    assert contents[0]["session"]
    shares = [one["share"] for one in contents if one["total"]]
    assert shares
    assert shares == sorted(shares)
    assert 0.0 <= shares[0] <= shares[-1] <= 1.0
    assert not list(result.folder.glob("*live*"))


def test_runs_under_way_are_counted_without_a_display(tmp_path):
    printer = ProgressPrinter(False)
    file = printer.written_to(tmp_path)
    printer.on_tick(search(row(0, 0.9), row(1, 0.5)), [Running(1, 20, 54)])
    found = file._make()
    assert (found.running, found.done, found.total, found.score) == (1, 1, 2, 0.9)
    assert 0.0 < found.share < 1.0
    assert found.seconds_left > 0.0


def test_what_a_run_under_way_scores_is_not_the_best_so_far():
    printer = ProgressPrinter(True)
    printer.on_tick(search(row(0, 0.8), row(1, 0.9)), [Running(1, 20, 54)])
    assert printer._newest.best_score == 0.8, "no network has its score when it has ended with 0.7"
    printer._looked = -math.inf
    printer.on_tick(search(row(0, 0.8), row(1, 0.7)), [])
    assert printer._newest.best_score == 0.8
