"""What a tracker gets and what it must do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from esper.leyline.codec import Json
from esper.leyline.payloads import RunStatus


@dataclass(frozen=True, slots=True)
class TrackerState:
    """What a run folder keeps of a tracker, so that a resumed run continues in it."""

    run_id: str = ""
    """Name of the run in the tracker; empty: none yet."""
    place: str = ""
    """Where that run is, if not in the run folder."""
    last_step: int = -1
    """Last step that was sent."""


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """A run, as it is described to a tracker."""

    name: str
    folder: Path
    """Where trackers keep their files."""
    settings: Mapping[str, Json]
    first_step: int = 0
    """Step of the first record of this session."""


class Tracker(Protocol):
    """One run in a tracker. All calls come from one thread, and may raise."""

    @property
    def state(self) -> TrackerState:
        """Where it continues: steps up to `last_step` must not be sent again."""
        ...

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Send the figures of a step; steps increase."""
        ...

    def close(self, status: RunStatus) -> None:
        """Send what is left; the run ended like this."""
        ...


def flatten(settings: Mapping[str, Json], prefix: str = "") -> Iterator[tuple[str, Json]]:
    """Settings by their path.

    >>> dict(flatten({"task": {"name": "digits"}, "seed": 0}))
    {'task.name': 'digits', 'seed': 0}
    """
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
