"""Runs a command: parses its arguments and turns errors into one line and an exit status.

Exit status: 0 success, 1 output could not be printed completely, 2 invalid arguments or input (one
line on stderr), 128 + signal number if interrupted (130: SIGINT).
"""

from __future__ import annotations

import contextlib
import errno
import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar, cast

from esper.leyline.errors import EsperError, shorten
from esper.leyline.text import visible
from esper.leyline.user_errors import exit_error, in_user_code, is_out_of_memory
from esper.scripts.cli.signals import Stopped, signals_interrupt
from esper.scripts.cli.streams import with_robust_output
from esper.storage.atomic import is_write_failure, write_advice

C = TypeVar("C")

REFUSED: Final = 2
INTERRUPTED: Final = 130
MAX_WORD_CHARS: Final = 200
"""Maximum characters of a path or other value in an error message."""
MAX_MESSAGE_CHARS: Final = 300
"""Maximum characters of another library's message."""
SMALLER: Final = "lower --envs, --batch-size, --episode-length, --width or --embedding"
_LONG_WORD: Final = re.compile(rf"\S{{{MAX_WORD_CHARS + 1},}}")


def run_command(
    config: type[C], job: Callable[[C], int | None], argv: Sequence[str] | None = None
) -> int:
    """Parse the command line, run `job` with the config and return the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    return exit_status_of(lambda: job(read_command_line(config, argv)))


def exit_status_of(work: Callable[[], int | None]) -> int:
    """Run `work` and return its exit status; errors are printed as one line.

    `work` may return a status; None is 0. Unwritable files and lack of memory are handled like an
    `EsperError`; failing output streams are ignored (`streams.py`).
    """
    return with_robust_output(lambda: _status_of(work))


def _status_of(work: Callable[[], int | None]) -> int:
    try:
        with signals_interrupt(), _no_user_exit():
            return work() or 0
    except EsperError as error:
        print(f"error: {_shorten_words(str(error))}", file=sys.stderr)
        return REFUSED
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        print(f"error: out of memory ({_first_line(error)}): {SMALLER}", file=sys.stderr)
        return REFUSED
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG and not is_write_failure(error):
            raise
        where = _shorten_words(str(error.filename or "a file"))
        print(f"error: {where}: {error.strerror}; {_advice(error)}", file=sys.stderr)
        return REFUSED
    except Stopped as stop:
        print(f"interrupted by {stop}", file=sys.stderr)
        return stop.status
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except SystemExit as stop:  # tyro printed the help
        if not isinstance(stop.code, int):
            raise
        return stop.code


@contextlib.contextmanager
def _no_user_exit() -> Iterator[None]:
    """Refuse `sys.exit()` where no `user_code` has: deep in a user's model, while it trains."""
    try:
        yield
    except SystemExit as error:
        if not in_user_code(error):
            raise
        raise exit_error("user code", error) from error


def _advice(error: OSError) -> str:
    return "use a shorter one" if error.errno == errno.ENAMETOOLONG else write_advice(error)


def _first_line(error: BaseException) -> str:
    first, *_ = str(error).splitlines() or [type(error).__name__]
    return shorten(first, MAX_MESSAGE_CHARS)


def _shorten_words(line: str) -> str:
    """Shorten long paths and values, and join lines; what files hold is not obeyed."""
    line = visible(" ".join(line.splitlines()))  # a path may hold a line break
    return _LONG_WORD.sub(lambda word: shorten(word[0], MAX_WORD_CHARS), line)


def read_command_line(
    config: type[C], argv: Sequence[str], default: C | None = None, prog: str | None = None
) -> C:
    """Parse `argv` into a config with `default` values; raises a one-line `EsperError`."""
    import tyro

    from esper.scripts.cli.flags import REGISTRY, unknown_flag
    from esper.scripts.cli.help import read_help, render, wanted_help

    def parse(arguments: Sequence[str]) -> C:
        read = tyro.cli(config, args=arguments, default=default, prog=prog, registry=REGISTRY)
        return cast(C, read)

    wanted = wanted_help(argv)
    if wanted is not None:
        print(render(read_help(lambda: parse(["--help"])), wanted))
        raise SystemExit(0)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return parse(argv)
    except SystemExit as stop:
        if stop.code != REFUSED:
            raise
    short = [shorten(argument) for argument in argv]
    if short != list(argv):
        read_command_line(config, short, default, prog)  # raises the same error, shorter
    message = _one_line(complaint.getvalue())
    unknown = unknown_flag(message, lambda: read_help(lambda: parse(["--help"])).flags())
    raise EsperError(f"{unknown or message + ':'} --help lists the flags")


def _one_line(boxed: str) -> str:
    """Extract the message from tyro's error box, as one line.

    The box holds title, message and more, separated by rules; in ASCII the title is a paragraph.
    """
    paragraphs: list[list[str]] = [[]]
    for line in boxed.splitlines():
        if re.fullmatch(r"\s*([╭╰].*|[│\s]*[─-]+[│\s]*)", line):
            paragraphs.append([])
        else:
            paragraphs[-1].append(line.strip("│ "))
    filled = [" ".join(lines).strip() for lines in paragraphs if any(lines)]
    message, *_ = filled if boxed.startswith("╭") else filled[1:]
    return shorten(message, MAX_MESSAGE_CHARS).rstrip(".")
