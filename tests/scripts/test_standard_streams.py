"""Standard streams of a command never raise, and lost output is reported."""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import pytest

from esper.scripts.cli.streams import INCOMPLETE, with_robust_output


@pytest.fixture
def run_with(monkeypatch) -> Callable[..., int]:
    """Does work in a process whose stdout is a stream, as Python makes it; its status.

    Set where the test runs: between a fixture and its test pytest puts streams of its own back.
    """

    def run_with(stream: TextIO, work: Callable[[], int]) -> int:
        with monkeypatch.context() as patch, stream:
            patch.setattr(sys, "stdout", stream)
            patch.setattr(sys, "__stdout__", stream)
            status = with_robust_output(work)
            assert sys.stdout is stream, "the stream of before comes back"
        return status

    return run_with


def say(text: str, status: int = 0) -> int:
    print(text, flush=True)
    return status


def test_what_is_printed_arrives_with_escapes_where_the_encoding_needs_them(run_with):
    reader, writer = os.pipe()
    stream = os.fdopen(writer, "w", encoding="latin-1")
    assert run_with(stream, lambda: say("± → \udcff", 7)) == 7
    with os.fdopen(reader, "rb") as read:
        assert read.read() == rb"%b \u2192 \udcff" % "±".encode("latin-1") + b"\n"


def test_work_goes_on_when_the_reader_has_left(run_with):
    reader, writer = os.pipe()
    os.close(reader)
    done = []

    def work() -> int:
        for _ in range(3):
            done.append(say("x" * 100_000))
        return 0

    assert run_with(os.fdopen(writer, "w"), work) == 0
    assert len(done) == 3


def test_a_stream_that_has_room_again_is_written_to_again(run_with, tmp_path: Path, capsys):
    """A log on a disk that was full for a while."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def work() -> int:
        say("first")
        resource.setrlimit(resource.RLIMIT_FSIZE, (6, before[1]))
        say("second")
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        return say("third")

    assert run_with((tmp_path / "log").open("w"), work) == INCOMPLETE
    assert (tmp_path / "log").read_text() == "first\nthird\n"
    said = capsys.readouterr().err
    assert said == (
        "error: stdout: File too large; printed output is incomplete, files are complete\n"
    )


def test_a_refusal_keeps_its_status_wherever_its_output_goes(run_with, capsys):
    stream = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w")
    assert run_with(stream, lambda: say("x", 2)) == 2
    assert capsys.readouterr().err == ""


def test_a_descriptor_that_does_not_wait_loses_nothing(run_with):
    """Programs that share a terminal or pipe may set it to O_NONBLOCK behind each other's back."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    received = []

    def read() -> None:
        with os.fdopen(reader, "rb") as pipe:
            received.append(pipe.read())

    thread = threading.Thread(target=read)

    def work() -> int:
        threading.Timer(0.1, thread.start).start()  # the pipe is full by then
        return say("x" * 500_000)

    assert run_with(os.fdopen(writer, "w"), work) == 0
    thread.join(20)
    assert [len(part) for part in received] == [500_001]


def test_streams_that_a_caller_put_in_place_stay(capsys):
    mine = sys.stdout
    assert with_robust_output(lambda: say(f"heard {sys.stdout is mine}")) == 0
    assert capsys.readouterr().out == "heard True\n"
