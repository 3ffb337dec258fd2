"""What the process of a search and its workers say to each other.

Besides these a worker says `Failed`, and its transport `Died` (`esper.jobs.messages`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

from esper.growing.trainers.job import Job, Outcome, Running
from esper.growing.trainers.shipping import TaskForm

THREADS: Final = 1
"""Of every process: results do not depend on which of them trains a run."""

# ---- to a worker ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setup:
    """What all runs of a worker have in common."""

    task: TaskForm
    block: int | None
    """Descriptor of the file of the samples; None: they come with the worker."""
    device: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """A run to train."""

    job: Job
    travels: bool = False
    """Whether the file of its state under way is on another machine: its content is sent."""
    state: bytes | None = None
    """That content, if there is some."""


@dataclass(frozen=True, slots=True)
class NoMore:
    """There is no run to train just now."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Save and judge what is under way."""


# ---- from a worker -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Want:
    """There is room for a run; `idle`: nothing else to do meanwhile, so the answer may wait."""

    idle: bool


@dataclass(frozen=True, slots=True)
class Position:
    """Where the runs of a worker are; sent several times a second."""

    running: tuple[Running, ...]


@dataclass(frozen=True, slots=True)
class Saved:
    """The state of a run under way, from a worker on another machine."""

    number: int
    state: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a run, or how it was judged on the way."""

    outcome: Outcome
    """Without its weights."""
    weights: bytes


class Transport(Protocol):
    """Starts workers, by number, and carries messages."""

    remote: bool
    """Workers may be on other machines: they have no files of this one."""

    def start(self, worker: int, setup: Setup) -> None:
        """Start a worker, or another in the place of one that has gone."""
        ...

    def send(self, worker: int, message: Any) -> None:
        """Send a message; one to a worker that has gone is lost."""
        ...

    def receive(self, seconds: float) -> list[tuple[int, Any]]:
        """Messages of all workers; waits so long for the first."""
        ...

    def end(self, worker: int) -> None:
        """End a worker."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...
