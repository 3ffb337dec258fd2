"""Calls of user code (policies, hosts, blueprints, data, metrics, callbacks): one owner.

with user_code("host factory MyHost fails", "it is called without arguments", TypeError):
    module = factory()

Inside the block an exception becomes one line, `sys.exit()` is an error, and torch's switches are
put back.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from esper.leyline.errors import EsperError, shorten
from esper.leyline.torch_switches import put_back, read_switches

MAX_ERROR_CHARS: Final = 300
"""Longest exception text repeated in a message, in characters."""
_NO_MEMORY: Final = ("can't allocate memory", "not enough memory", "out of memory")
"""How torch's allocators report that memory is exhausted."""
_NO_EXIT: Final = "user code must not end the process: raise an error or return"
_LIBRARIES: Final = f"{os.sep}site-packages{os.sep}"
_not_users: list[str] = []
"""Starts of the paths of code that is no user code, besides that of installed packages."""


def count_as_library(folder: Path) -> None:
    """Code in this folder is no user code, also where it is installed as editable."""
    _not_users.append(f"{folder}{os.sep}")


count_as_library(Path(__file__).parents[1])  # Esper
count_as_library(Path(os.__file__).parent)  # Python

_Exceptions = type[Exception] | tuple[type[Exception], ...]


@contextlib.contextmanager
def user_code(
    what: str, hint: str = "", hint_for: _Exceptions = Exception, passes: _Exceptions = EsperError
) -> Iterator[None]:
    """Re-raise an exception from the block as an `EsperError`: what failed, how, what to do.

    `what`: who fails, then the word `fails` or `cannot`. `hint` is added for exceptions of type
    `hint_for`. Those of type `passes` and out-of-memory errors pass through unchanged.
    """
    before = read_switches()
    try:
        yield
    except SystemExit as error:
        raise exit_error(what, error) from error
    except Exception as error:
        if isinstance(error, passes) or is_out_of_memory(error):
            raise
        advice = f"; {hint}" if hint and isinstance(error, hint_for) else ""
        raise EsperError(f"{what}: {format_error(error)}{advice}") from error
    finally:
        put_back(before, what)


def user_callback(what: str) -> contextlib.AbstractContextManager[None]:
    """As `user_code`, for callbacks whose exceptions are meant for the caller: they pass."""
    return user_code(what, passes=Exception)


def exit_error(what: str, error: SystemExit) -> EsperError:
    """The error for `sys.exit()` in user code."""
    return EsperError(f"{what}: {format_error(error)}; {_NO_EXIT}")


def in_user_code(error: BaseException) -> bool:
    """Whether the exception was raised outside Esper and installed libraries."""
    return bool(_location(error))


def format_error(error: BaseException) -> str:
    """Return type, location in user code and text of an exception as one line.

    >>> format_error(ValueError("two\\nlines"))
    'ValueError: two lines'
    """
    text = shorten(" ".join(str(error).split()), MAX_ERROR_CHARS)
    return f"{type(error).__name__}{_location(error)}" + (f": {text}" if text else "")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on the host or on a device."""
    torch_says_so = isinstance(error, RuntimeError) and any(
        sign in str(error) for sign in _NO_MEMORY
    )
    return torch_says_so or isinstance(error, MemoryError)


def _location(error: BaseException) -> str:
    """Return file and line of the innermost frame outside Esper and installed libraries."""
    found = ""
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith((*_not_users, "<")) and _LIBRARIES not in name:
            found = f" at {Path(name).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
