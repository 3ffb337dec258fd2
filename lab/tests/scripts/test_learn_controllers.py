"""Controllers of several seeds: a run each, stopped in time, resumed, and never trained twice."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import pytest

import learn_controllers
from esper.karn import views
from learn_controllers import Learner, curve, main

SETTINGS = ["--task", "synthetic", "--envs", "2", "--episode-length", "2", "--batches-per-step",
            "1", "--batch-size", "16", "--evaluation-envs", "1", "--keep-members", "0",
            "--device", "cpu"]  # fmt: skip


def learn(out: Path, seeds: tuple[str, ...], until: float, rounds: int) -> int:
    words = ["--seeds", *seeds, "--out", str(out), "--until", str(until), "--"]
    return main([*words, *SETTINGS, "--rounds", str(rounds)])


class Process:
    """A run that goes on until it is asked to stop."""

    def __init__(self, command: list[str], **_: Any) -> None:
        self.command, self.asked = command, []

    def poll(self) -> int | None:
        return 0 if self.asked else None

    def send_signal(self, number: int) -> None:
        self.asked.append(number)

    def wait(self, timeout: float | None = None) -> int:
        return 0


@pytest.fixture
def started(monkeypatch) -> list[Process]:
    found: list[Process] = []

    def start(command: list[str], **settings: Any) -> Process:
        found.append(Process(command, **settings))
        return found[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    return found


@pytest.mark.slow
def test_a_seed_is_trained_to_its_end_and_not_again(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(learn_controllers, "LINE_SECONDS", 0.5)
    assert learn(tmp_path, ("3",), 120, rounds=2) == 0
    (run,) = views.list_runs(tmp_path / "3")
    assert (run.seed, run.done) == (3, 2)
    assert "rounds    2 to    2: " in capsys.readouterr().out
    began = run.updated
    assert learn(tmp_path, ("3",), 120, rounds=2) == 0
    assert views.list_runs(tmp_path / "3")[0].updated == began


def test_each_seed_has_a_folder_of_its_own_and_all_are_asked_to_stop_in_time(tmp_path, started):
    assert learn(tmp_path, ("3", "4"), 0, rounds=9) == 1
    values = [dict(zip(one.command[5::2], one.command[6::2])) for one in started]  # noqa: B905
    assert [(one["--seed"], one["--runs"]) for one in values] == [
        ("3", str(tmp_path / "3")), ("4", str(tmp_path / "4")),
    ]  # fmt: skip
    assert [one.asked for one in started] == [[signal.SIGTERM]] * 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("begun", [1, 2])
def test_a_kill_or_a_hang_up_stops_what_it_has_started(
    number, begun, tmp_path, started, monkeypatch
):
    """While they start, or later: trainings have sessions of their own, so nobody else would."""
    handlers = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)]
    start = Learner.start

    def start_some(self: Learner, settings: Sequence[str], log: TextIO) -> None:
        start(self, settings, log)
        if len(started) == begun == 1:
            signal.raise_signal(number)

    monkeypatch.setattr(Learner, "start", start_some)
    monkeypatch.setattr(time, "sleep", lambda seconds: signal.raise_signal(number))
    with pytest.raises(SystemExit, match=str(128 + number)):
        learn(tmp_path, ("3", "4"), 60, rounds=9)
    assert [one.asked for one in started] == [[signal.SIGTERM]] * begun
    assert [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)] == handlers


def test_what_was_begun_is_resumed(tmp_path, started, monkeypatch):
    run = SimpleNamespace(path=tmp_path / "3" / "begun", state=views.RunState.INTERRUPTED)
    (tmp_path / "3").mkdir()
    monkeypatch.setattr(views, "list_runs", lambda folder: [run])
    monkeypatch.setattr(views, "read_rounds", lambda path: [])
    learn(tmp_path, ("3",), 0, rounds=9)
    (one,) = started
    assert one.command[5:7] == ["--resume", str(run.path)]
    assert "--seed" not in one.command


def test_the_curve_is_over_rounds_that_all_seeds_have():
    rising = [[float(r) for r in range(20)], [float(r) + 2 for r in range(25)]]
    blocks = list(curve(rising))
    assert [(first, last) for first, last, _ in blocks] == [
        (2 * b + 1, 2 * b + 2) for b in range(10)
    ]
    assert [found.value for *_, found in blocks] == [2 * b + 1.5 for b in range(10)]
    assert blocks[0][2].high - blocks[0][2].value == pytest.approx(
        12.706, abs=0.001
    )  # t(1), s.e. 1
    assert list(curve([[], [1.0]])) == []
