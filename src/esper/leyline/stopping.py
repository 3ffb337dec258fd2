"""Signals that request a stop, and the handler for the second one."""

from __future__ import annotations

import signal
from typing import Final

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def second_stop_handler(number: signal.Signals) -> signal.Handlers:
    """Return the handler to install once a stop has been requested.

    The second signal kills the process, except SIGHUP: a closing terminal sends it twice (shell and
    kernel).

    >>> second_stop_handler(signal.SIGHUP).name, second_stop_handler(signal.SIGTERM).name
    ('SIG_IGN', 'SIG_DFL')
    """
    return signal.SIG_IGN if number == signal.SIGHUP else signal.SIG_DFL
