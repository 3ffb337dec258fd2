"""How does a signal end a command? As Ctrl-C does: files are closed, one line says so.

A run of the learner takes the signals over while it trains, to save first (`Interrupts`).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from esper.leyline.stopping import STOP_SIGNALS, second_stop_handler


class Stopped(KeyboardInterrupt):
    """A signal other than SIGINT ended the command; the text is its name."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number
        """The exit status, as shells count."""


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Inside the block SIGTERM and SIGHUP raise `Stopped`, as SIGINT raises KeyboardInterrupt.

    A signal that is ignored (`nohup`) or that someone else handles is left alone, and so are all
    outside of the main thread.
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


def _stop(number: int, frame: FrameType | None) -> None:
    for other in STOP_SIGNALS:
        if signal.getsignal(other) is _stop:
            signal.signal(other, second_stop_handler(other))
    raise Stopped(number)
