"""SIGTERM and SIGHUP end a command like Ctrl-C; ignored signals are left alone."""

from __future__ import annotations

import signal
import threading

import pytest

from esper.leyline.stopping import STOP_SIGNALS
from esper.scripts.cli.command import exit_status_of
from esper.scripts.cli.signals import Stopped, signals_interrupt


@pytest.fixture(autouse=True)
def usual_handlers():
    """As in a terminal, also where the tests run under nohup."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_unwinds_the_command_and_gives_the_status_of_shells(number, capsys):
    unwound = []

    def work() -> None:
        try:
            signal.raise_signal(number)
        finally:
            unwound.append(number)

    assert exit_status_of(work) == 128 + number
    assert unwound == [number]
    assert capsys.readouterr().err == f"interrupted by {number.name}\n"
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_second_hangup_does_not_cut_the_first_one_short():
    with signals_interrupt():
        with pytest.raises(Stopped, match="SIGHUP"):
            signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)  # neither raises nor ends the process
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "that would end it at once"


def test_a_command_under_nohup_does_not_hear_the_hangup():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def work() -> int:
        signal.raise_signal(signal.SIGHUP)
        return 7

    assert exit_status_of(work) == 7
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_handler_of_the_caller_stays_in_charge():
    heard = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    assert exit_status_of(lambda: signal.raise_signal(signal.SIGTERM)) == 0
    assert heard == [signal.SIGTERM]


def test_beside_the_main_thread_signals_are_left_alone():
    seen = []

    def look() -> None:
        with signals_interrupt():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]
