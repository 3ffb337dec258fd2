"""How Esper refuses: one line that names the value, where it came from and what to do."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable
from typing import Final

LONGEST_SHOWN: Final = 60
"""Characters of a value that a message repeats."""
_MANY_BITS: Final = 1000
"""Python refuses to write out whole numbers of thousands of digits; these are only described."""


class EsperError(ValueError):
    """A request that cannot be carried out; nothing was changed."""


class UnknownNameError(EsperError):
    """A name that no registry, host or table knows."""


class IllegalActionError(EsperError):
    """A lifecycle operation that the stage or a gate does not allow."""


class ShapeError(EsperError):
    """A segment or seed whose output does not have the promised shape."""


def shorten(text: str, most: int = LONGEST_SHOWN) -> str:
    """Text as a message repeats it: where it is long, its middle is left out.

    >>> shorten("a" * 50 + "z" * 50, 20)
    'aaaaaaaaa...zzzzzzzz'
    """
    if len(text) <= most:
        return text
    head = (most - 2) // 2
    return f"{text[:head]}...{text[head + 3 - most :]}"


def shown(value: object, most: int = LONGEST_SHOWN) -> str:
    """A value as a message repeats it: its `repr`, shortened.

    >>> shown(["a", 2]), shown(10**5000)
    ("['a', 2]", '<int, about 5,000 digits>')
    """
    return shorten(_Values(most).repr(value), most)


def reason_of(error: ValueError, most: int = 200) -> str:
    """What a parser says about a text, in one line.

    >>> reason_of(ValueError("two\\nlines"))
    'two lines'
    """
    if "set_int_max_str_digits" in str(error):  # Python's advice is no use to who wrote the text
        return "a number in it has thousands of digits"
    return shorten(" ".join(str(error).split()), most)


class _Values(reprlib.Repr):
    """Never writes out more than is shown, however long or deep a value is."""

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
    """Build the error for an unknown name: the value, the nearest valid name, all valid names.

    >>> str(unknown_name("blueprint", "conv_hevy", ["norm", "conv_heavy"]))
    "unknown blueprint 'conv_hevy': did you mean 'conv_heavy'? valid: norm, conv_heavy"
    """
    choices = list(valid)
    near = difflib.get_close_matches(str(name), choices, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    place = f" {where}" if where else ""
    return UnknownNameError(
        f"unknown {kind} {shown(str(name))}{place}: {hint}valid: {', '.join(choices) or 'none'}"
    )
