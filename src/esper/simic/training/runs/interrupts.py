"""What happens when a run is asked to stop? The step is finished, then everything is saved.

SIGINT, SIGTERM or SIGHUP once: `Interrupted` is raised behind the step under way. A second SIGINT
or SIGTERM ends the process at once, by the system's own default, even in the middle of a
computation: checkpoints that are written are whole whenever that happens. A second SIGHUP is
ignored, because a terminal that closes sends two.

    with Interrupts() as interrupts:
        ...                     the engine tells it of steps, the trainer of rounds
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final

from esper.leyline.payloads import SlotPayload
from esper.leyline.records import Rollout, StepRecord
from esper.leyline.stopping import STOP_SIGNALS, second_stop_handler

if TYPE_CHECKING:
    from esper.simic.training.history import RoundRecord
    from esper.simic.training.vectorized_trainer import VectorizedPPOTrainer

_STDERR: Final = 2


class Interrupted(KeyboardInterrupt):
    """A run that was asked to stop, and did; what it says is for people."""


class Interrupts:
    """An engine listener that ends a run behind the step in which it was asked to stop.

    Signals are heard between `with` and its end, in the main thread alone (elsewhere Python does
    not allow it); one that was ignored before, or is handled outside of Python, is left alone.
    Handlers of before come back.
    """

    def __init__(self) -> None:
        self.asked: str | None = None
        """Name of the signal that asked; None: none did."""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        for heard in self._before:
            signal.signal(heard, second_stop_handler(heard))
        self.asked = signal.Signals(number).name
        line = f"{self.asked}: stopping behind this step, then saving; once more exits at once\n"
        with contextlib.suppress(OSError):  # nobody may be reading: Ctrl-C ends `| tee` as well
            os.write(_STDERR, line.encode())  # print is not safe here

    def check(self) -> None:
        """Stop here if it was asked for."""
        if self.asked is not None:
            raise Interrupted(self.asked)

    def __call__(self, trainer: VectorizedPPOTrainer, record: RoundRecord, /) -> None:
        """A `RoundHook`: a round is over, learnt from and saved."""
        self.check()

    # ---- what the engine tells (EngineListener) -----------------------------------------------

    def on_round_start(self, round_index: int, members: int) -> None:
        """Asked behind the round before."""

    def on_slot_events(self, round_index: int, step: int, payload: SlotPayload) -> None:
        """In the middle of a step: not here."""

    def on_step(self, record: StepRecord) -> None:
        """A step is over."""
        self.check()

    def on_round_end(self, rollout: Rollout[object]) -> None:
        """Not before the round is learnt from and saved."""
