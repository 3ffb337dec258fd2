"""Makes SIGTERM and SIGHUP interrupt a command like Ctrl-C.

Training handles the signals itself, to save first (`Interrupts`).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from esper.leyline.stopping import STOP_SIGNALS, second_stop_handler


class Stopped(KeyboardInterrupt):
    """Raised by a stop signal; the message is its name."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number
        """Exit status by shell convention."""


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Raise `Stopped` on SIGTERM and SIGHUP inside the block.

    Signals that are ignored (`nohup`) or already handled are left alone. A no-op outside the main
    thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = [number for number in STOP_SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def raise_signal_status(name: str) -> NoReturn:
    """Raise what ends the command with the exit status of a signal that was handled already."""
    if name == signal.SIGINT.name:
        raise KeyboardInterrupt
    raise Stopped(signal.Signals[name])


def _stop(number: int, frame: FrameType | None) -> None:
    for other in STOP_SIGNALS:
        if signal.getsignal(other) is _stop:
            signal.signal(other, second_stop_handler(other))
    raise Stopped(number)
