"""Stop signals during training: finish the current step, raise `Interrupted`, save.

The first SIGINT, SIGTERM or SIGHUP raises `Interrupted` after the current step. A second SIGINT or
SIGTERM kills the process at once (the default handler); checkpoints are atomic, so none is damaged.
A second SIGHUP is ignored, because a closing terminal sends two. Under torchrun so is a second
signal within `ECHO_SECONDS`: a scheduler that signals all processes is echoed by torchrun.

    with Interrupts() as interrupts:
        ...                     pass it to the engine as a listener, to the trainer as a hook
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from esper.leyline.protocols import EngineListener
from esper.leyline.records import StepRecord
from esper.leyline.stopping import STOP_SIGNALS, second_stop_handler
from esper.simic.distributed.environment import environment_number, world_size

if TYPE_CHECKING:
    from esper.simic.training.history import RoundRecord
    from esper.simic.training.vectorized_trainer import VectorizedPPOTrainer

ECHO_SECONDS: Final = 5.0
"""Under torchrun: how long after the first signal others do not count."""
_STDERR: Final = 2


class Interrupted(KeyboardInterrupt):
    """Training stopped on a signal; the message is shown to the user."""

    def __init__(self, message: str, signal_name: str = "") -> None:
        super().__init__(message)
        self.signal_name = signal_name or message
        """Name of the signal."""


class Interrupts(EngineListener):
    """Engine listener and `RoundHook` that raises `Interrupted` after a stop signal.

    Handlers are installed by `with`, in the main thread only (Python allows no other), and restored
    at its end. Signals that were ignored, or are handled outside Python, are left alone.
    """

    def __init__(self) -> None:
        self.signal_name: str | None = None
        """Name of the stop signal received; None if none was."""
        self._before: dict[signal.Signals, Any] = {}
        self._echo_until = 0.0
        """Signals before this time are echoes of the first."""

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.signal_name is not None:
            if time.monotonic() >= self._echo_until:
                signal.signal(number, second_stop_handler(signal.Signals(number)))
                os.kill(os.getpid(), number)
            return
        self.signal_name = name = signal.Signals(number).name
        if world_size() > 1:
            self._echo_until = time.monotonic() + ECHO_SECONDS
        else:
            for heard in self._before:
                signal.signal(heard, second_stop_handler(heard))
        if environment_number("RANK", 0):  # rank 0 says it
            return
        line = f"{name}: stopping after this step, then saving; a second signal exits at once\n"
        with contextlib.suppress(OSError):  # the reader may be gone: Ctrl-C ends `| tee` as well
            os.write(_STDERR, line.encode())  # print is not safe in a signal handler

    def check(self) -> None:
        """Raise `Interrupted` if a stop signal was received."""
        if self.signal_name is not None:
            raise Interrupted(self.signal_name)

    def __call__(self, trainer: VectorizedPPOTrainer, record: RoundRecord, /) -> None:
        """Check after a round is trained and saved."""
        self.check()

    def on_step(self, record: StepRecord) -> None:
        """Check after each step; at the end of a round it is not trained and saved yet."""
        self.check()
