"""What a damaged folder raises becomes one line that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

import pyarrow as pa

from esper.leyline.errors import EsperError, parse_error_line
from esper.leyline.text import visible

UNREADABLE: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
    pa.ArrowException,
)
"""What reading or drawing values raises that nobody wrote: too large, of another type, missing."""
P = ParamSpec("P")
R = TypeVar("R")


def problem_of(error: BaseException) -> str:
    """An error in one line that a terminal may have."""
    said = parse_error_line(ValueError(error), 300)
    return visible(said if isinstance(error, EsperError) else f"{type(error).__name__}: {said}")


@contextmanager
def naming_damage(path: Path) -> Iterator[None]:
    """Raise one line about `path` for whatever its damage leads to."""
    try:
        yield
    except EsperError as error:
        raise EsperError(problem_of(error)) from None
    except UNREADABLE as error:
        raise EsperError(f"{path} is damaged ({problem_of(error)})") from None


def reader(read: Callable[Concatenate[Path, P], R]) -> Callable[Concatenate[Path, P], R]:
    """A function that reads a run folder: damage is one line."""

    @wraps(read)
    def named(run: Path, /, *args: P.args, **more: P.kwargs) -> R:
        with naming_damage(run):
            return read(run, *args, **more)

    return named
