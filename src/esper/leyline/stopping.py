"""Which signals ask a process to stop, and what the next one does?"""

from __future__ import annotations

import signal
from typing import Final

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def handler_of_the_next(number: signal.Signals) -> signal.Handlers:
    """What a stop signal does once the process has been asked to stop.

    It ends the process at once, but for SIGHUP: a terminal that closes sends it twice, from the
    shell and from the kernel.

    >>> handler_of_the_next(signal.SIGHUP).name, handler_of_the_next(signal.SIGTERM).name
    ('SIG_IGN', 'SIG_DFL')
    """
    return signal.SIG_IGN if number == signal.SIGHUP else signal.SIG_DFL
