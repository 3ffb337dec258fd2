"""One-line errors for exceptions raised by user code (hosts, blueprints, data).

with user_code("host factory MyHost fails", "it is called without arguments", TypeError):
    module = factory()
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from esper.leyline.errors import EsperError, shorten

MAX_ERROR_CHARS: Final = 300
"""Longest exception text repeated in a message, in characters."""
_NO_MEMORY: Final = ("can't allocate memory", "not enough memory", "out of memory")
"""How torch's allocators report that memory is exhausted."""
_ESPER: Final = f"{Path(__file__).parents[1]}{os.sep}"
_PYTHON: Final = f"{Path(os.__file__).parent}{os.sep}"
_LIBRARIES: Final = f"{os.sep}site-packages{os.sep}"


@contextlib.contextmanager
def user_code(
    what: str, hint: str = "", hint_for: type[Exception] | tuple[type[Exception], ...] = Exception
) -> Iterator[None]:
    """Re-raise an exception from the block as an `EsperError`: what failed, how, what to do.

    `hint` is added for exceptions of type `hint_for`. `EsperError` and out-of-memory errors pass
    through unchanged.
    """
    try:
        yield
    except EsperError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        advice = f"; {hint}" if hint and isinstance(error, hint_for) else ""
        raise EsperError(f"{what}: {format_error(error)}{advice}") from error


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
        if not name.startswith((_ESPER, _PYTHON, "<")) and _LIBRARIES not in name:
            found = f" at {Path(name).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
