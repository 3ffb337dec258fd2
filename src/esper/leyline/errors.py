"""Exceptions, and helpers for one-line messages that name the value, its source and the fix."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Sequence
from typing import Final

MAX_SHOWN_CHARS: Final = 60
"""Longest value repeated in a message, in characters."""
_MAX_CHOICES: Final = 240
"""Longest list of valid names in a message, in characters."""
_MANY_BITS: Final = 1000
"""Integers above this size are described, because Python refuses to print thousands of digits."""


class EsperError(ValueError):
    """An invalid request; nothing was changed."""


class UnknownNameError(EsperError):
    """A name that is not in the registry, host or table."""


class IllegalActionError(EsperError):
    """A lifecycle operation that the stage or a gate forbids."""


class ShapeError(EsperError):
    """A segment or seed whose output has the wrong shape."""


def install_hint(extra: str) -> str:
    """Return how to install what an optional part of Esper needs.

    >>> install_hint("serve")
    "pip install '.[serve]' in a checkout of Esper"
    """
    return f"pip install '.[{extra}]' in a checkout of Esper"


def shorten(text: str, most: int = MAX_SHOWN_CHARS) -> str:
    """Shorten long text by cutting out its middle.

    >>> shorten("a" * 50 + "z" * 50, 20)
    'aaaaaaaaa...zzzzzzzz'
    """
    if len(text) <= most:
        return text
    head = (most - 2) // 2
    return f"{text[:head]}...{text[head + 3 - most :]}"


def shown(value: object, most: int = MAX_SHOWN_CHARS) -> str:
    """Return the shortened `repr` of a value.

    >>> shown(["a", 2]), shown(10**5000)
    ("['a', 2]", '<int, about 5,000 digits>')
    """
    return shorten(_Values(most).repr(value), most)


def parse_error_line(error: ValueError, most: int = 200) -> str:
    """Return the message of a parser's error as one line.

    >>> parse_error_line(ValueError("two\\nlines"))
    'two lines'
    """
    if "set_int_max_str_digits" in str(error):  # Python's own advice does not help here
        return "a number in it has thousands of digits"
    return shorten(" ".join(str(error).split()), most)


class _Values(reprlib.Repr):
    """`repr` whose length is bounded, however long or deep the value is."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.maxstring = self.maxlong = self.maxother = most
        self.maxlist = self.maxtuple = self.maxdict = most // 2

    def repr_int(self, x: int, level: int) -> str:
        if x.bit_length() > _MANY_BITS:
            return f"<int, about {round(x.bit_length() * 0.30103):,} digits>"
        return super().repr_int(x, level)


def unknown_name(
    kind: str, name: object, valid: Iterable[str], where: str = ""
) -> UnknownNameError:
    """Build the error for an unknown name, with the closest valid name and all valid names.

    Of very many, the first that can be read are named, and how many there are.

    >>> str(unknown_name("blueprint", "conv_hevy", ["norm", "conv_heavy"]))
    "unknown blueprint 'conv_hevy': did you mean 'conv_heavy'? valid: norm, conv_heavy"
    """
    choices = list(valid)
    near = difflib.get_close_matches(str(name), choices, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    place = f" {where}" if where else ""
    return UnknownNameError(
        f"unknown {kind} {shown(str(name))}{place}: {hint}valid: {_readable(choices) or 'none'}"
    )


def _readable(choices: Sequence[str]) -> str:
    """Names in one line of at most `_MAX_CHOICES` characters.

    >>> _readable(["a" * 200, "b" * 60, "c"])[-19:]
    'a, ... (3 in total)'
    """
    line = ", ".join(choices)
    if len(line) <= _MAX_CHOICES:
        return line
    kept = line[:_MAX_CHOICES].rpartition(", ")[0] or shorten(choices[0])
    return f"{kept}, ... ({len(choices)} in total)"
