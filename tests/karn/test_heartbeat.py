"""The line that moves on a terminal while a command prints nothing."""

from __future__ import annotations

import os
import sys
import time

from esper.karn.heartbeat import Heartbeat, phase
from esper.scripts.cli.streams import shows_life, with_robust_output
from silence_support import watch

ERASE = "\r\x1b[K"


def beat(outputs: tuple[bytes, ...], wait: float = 0.15) -> str:
    """What a terminal gets while a command prints these and then waits."""
    written: list[bytes] = []
    with Heartbeat("grow", written.append, lambda: 30, silence=0.03, tick=0.01) as heart:
        for data in outputs:
            heart.before_write(data)
            written.append(data)
        time.sleep(wait)
    return b"".join(written).decode()


def test_silence_shows_a_clock_that_is_erased_at_the_end():
    shown = beat(())
    assert "grow: starting, 0 s" in shown
    assert shown.endswith(ERASE)
    assert "grow: working" in beat((b"line\n",))


def test_line_is_erased_before_other_output():
    written: list[bytes] = []
    with Heartbeat("grow", written.append, lambda: 30, silence=0.03, tick=0.01) as heart:
        time.sleep(0.1)
        heart.before_write(b"result\n")
        written.append(b"result\n")
    text = b"".join(written).decode()
    assert f"{ERASE}result\n" in text


def test_text_without_line_break_is_never_overwritten():
    assert beat((b"continue? ",)) == "continue? "
    assert "working" in beat((b"done\r\n\x1b[?25h",))  # the cursor is shown again, in column 1


def test_line_says_what_is_done_and_fits_the_terminal():
    with phase("judging on fresh hosts, every one of them"):
        shown = beat(())
    assert "grow: judging on fresh hosts," in shown
    assert all(len(line) < 30 for line in shown.split(ERASE))


def test_output_reaches_the_terminal_whole():
    def become() -> None:
        os.environ["TERM"] = "xterm"

        def work() -> int:
            with shows_life("audit", silence=0.05, tick=0.02):
                time.sleep(0.2)
                print("first")
                print("problem", file=sys.stderr)
                time.sleep(0.2)
            return 0

        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__ = _own_streams()
        os._exit(with_robust_output(work))

    found = watch(become)
    assert found.status == 0
    assert "audit: starting, 0." in found.output
    assert "audit: working, 0." in found.output
    assert f"{ERASE}first\r\n" in found.output
    assert "\nproblem\r\n" in found.output
    assert found.output.endswith(ERASE)


def _own_streams():
    """Python's own streams, which pytest has replaced."""
    return tuple(open(number, "w", buffering=1, closefd=False) for number in (1, 2))
