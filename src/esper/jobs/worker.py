"""What does the jobs of one process, and how it reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from esper.jobs.messages import StepDone
from esper.leyline.protocols import EngineListener
from esper.leyline.records import StepRecord

J_contra = TypeVar("J_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class _Channel(Protocol):
    """Connects a job with the command."""

    def send(self, message: StepDone) -> None:
        """Send a message."""
        ...

    def ask(self, question: Any) -> Any:
        """Ask and wait for the answer."""
        ...


class Reporter(EngineListener):
    """Engine listener that sends each step to the command."""

    def __init__(self, channel: _Channel) -> None:
        self.ask: Callable[[Any], Any] = channel.ask
        self._channel = channel
        self._label, self._work = "", 0.0

    def begin(self, label: str, work: float = 0.0) -> None:
        """Name the next episode."""
        self._label, self._work = label, work

    def on_step(self, record: StepRecord) -> None:
        """Send the step."""
        accuracy_E, score_E = record.signals.val_accuracy_E, record.reward_inputs.score_E
        seeds = float((record.signals.slots.blueprint_ES >= 0).sum()) / len(score_E)
        score = float(score_E.mean())
        self._channel.send(StepDone(self._label, self._work, accuracy_E, score, seeds))


class Worker(Protocol[J_contra, R_co]):
    """Does jobs, one after the other."""

    def do(self, job: J_contra, reporter: Reporter) -> R_co:
        """Do a job. The result must not depend on the jobs before it."""
        ...
