"""How a command begins and ends: the command line into a config, refusals into one line.

Exit status: 0 done, 1 done but stdout could not take all that was printed, 2 refused (one line on
stderr says why), 128 + number of the signal that ended it (130: SIGINT).
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Callable, Sequence
from typing import Final, TypeVar, cast

from esper.leyline.errors import EsperError
from esper.leyline.files import is_unwritable, write_advice
from esper.scripts.standard_streams import with_steady_output
from esper.scripts.stopping import Stopped, signals_interrupt

C = TypeVar("C")

REFUSED: Final = 2
INTERRUPTED: Final = 130


def enter(
    config: type[C], job: Callable[[C], int | None], argv: Sequence[str] | None = None
) -> int:
    """Do `job` with the config the command line describes; the exit status."""
    words = sys.argv[1:] if argv is None else argv
    return guarded(lambda: job(read_command_line(config, words)))


def guarded(work: Callable[[], int | None]) -> int:
    """Do the work; its exit status. A file there is no room or permission for is a refusal, too.

    Work that checks something may give a status of its own; none is 0. Output that nobody takes
    costs nothing but itself (`standard_streams`).
    """
    return with_steady_output(lambda: _status_of(work))


def _status_of(work: Callable[[], int | None]) -> int:
    try:
        with signals_interrupt():
            return work() or 0
    except EsperError as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED
    except OSError as error:
        if not is_unwritable(error):
            raise
        where = error.filename or "a file"
        print(f"error: {where}: {error.strerror}; {write_advice(error)}", file=sys.stderr)
        return REFUSED
    except Stopped as stop:
        print(f"interrupted by {stop}", file=sys.stderr)
        return stop.status
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except SystemExit as stop:  # tyro has shown the help
        if not isinstance(stop.code, int):
            raise
        return stop.code


def read_command_line(
    config: type[C], argv: Sequence[str], default: C | None = None, prog: str | None = None
) -> C:
    """The config, on top of `default`; a mistake in a flag is an `EsperError` of one line."""
    import tyro

    from esper.scripts.flags import REGISTRY

    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            read = tyro.cli(config, args=argv, default=default, prog=prog, registry=REGISTRY)
            return cast(C, read)
    except SystemExit as stop:
        if stop.code == REFUSED:
            raise EsperError(one_line(complaint.getvalue())) from None
        raise


def one_line(boxed: str) -> str:
    """The message of a box that tyro draws, with the flag it suggests, as one line.

    The box is title, message, more, each behind a rule; in ASCII the title is a paragraph too.
    """
    paragraphs: list[list[str]] = [[]]
    for line in boxed.splitlines():
        if re.fullmatch(r"\s*([╭╰].*|[│\s]*[─-]+[│\s]*)", line):
            paragraphs.append([])
        else:
            paragraphs[-1].append(line.strip("│ "))
    filled = [" ".join(lines).strip() for lines in paragraphs if any(lines)]
    message, *more = filled if boxed.startswith("╭") else filled[1:]
    suggested = re.search(r"Perhaps you meant: (--[\w.-]+)", " ".join(more))
    hint = f"did you mean {suggested[1]}? " if suggested else ""
    return f"{message.rstrip('.')}: {hint}--help lists the flags"
