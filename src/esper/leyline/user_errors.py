"""Errors of code that users bring (hosts, blueprints, data), told in one line.

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

LONGEST_TEXT: Final = 300
"""Characters of an exception's own text that are repeated."""
_NO_MEMORY: Final = ("can't allocate memory", "not enough memory", "out of memory")
"""How torch's allocators say that there is none left."""
_ESPER: Final = f"{Path(__file__).parents[1]}{os.sep}"
_PYTHON: Final = f"{Path(os.__file__).parent}{os.sep}"
_LIBRARIES: Final = f"{os.sep}site-packages{os.sep}"


@contextlib.contextmanager
def user_code(
    what: str, hint: str = "", hint_for: type[Exception] | tuple[type[Exception], ...] = Exception
) -> Iterator[None]:
    """Turn an exception raised inside into an `EsperError`: what failed, how, what to do.

    `hint_for`: the exceptions that the hint belongs to.

    Our own refusals pass as they are, and so does a lack of memory, which is not the code's fault.
    """
    try:
        yield
    except EsperError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        advice = f"; {hint}" if hint and isinstance(error, hint_for) else ""
        raise EsperError(f"{what}: {in_one_line(error)}{advice}") from error


def in_one_line(error: BaseException) -> str:
    """The kind of an exception, where the user's code raised it, and its text.

    >>> in_one_line(ValueError("two\\nlines"))
    'ValueError: two lines'
    """
    text = shorten(" ".join(str(error).split()), LONGEST_TEXT)
    return f"{type(error).__name__}{_place(error)}" + (f": {text}" if text else "")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on the host or on a device."""
    told = isinstance(error, RuntimeError) and any(sign in str(error) for sign in _NO_MEMORY)
    return told or isinstance(error, MemoryError)


def _place(error: BaseException) -> str:
    """File and line of the innermost frame that is neither Esper's nor an installed library's."""
    found = ""
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith((_ESPER, _PYTHON, "<")) and _LIBRARIES not in name:
            found = f" at {Path(name).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
