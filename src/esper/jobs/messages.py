"""What workers send to the command that writes their results."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from esper.leyline.arrays import Floats
from esper.leyline.errors import EsperError

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker takes jobs from now on."""


@dataclass(frozen=True, slots=True)
class StepDone:
    """One step of an episode."""

    label: str
    work: float
    """Of the whole episode."""
    accuracy_E: Floats
    score: float
    """Mean over members."""
    seeds: float
    """Per member."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question of a job; the worker waits for the answer."""

    question: Any


@dataclass(frozen=True, slots=True)
class Finished(Generic[R]):
    """Result of a job."""

    result: R


@dataclass(frozen=True, slots=True)
class Failed:
    """An error of a job; `refused`: a message for the user, not a defect."""

    text: str
    refused: bool


@dataclass(frozen=True, slots=True)
class Died:
    """A worker has gone."""

    reason: str


Message = Ready | StepDone | Asked | Finished[Any] | Failed | Died


def outcome_of(work: Callable[[], R]) -> Finished[R] | Failed:
    """Do some work; an error becomes a message."""
    try:
        return Finished(work())
    except EsperError as error:
        return Failed(str(error), refused=True)
    except Exception:
        return Failed(traceback.format_exc(), refused=False)
