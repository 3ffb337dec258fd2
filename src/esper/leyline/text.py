"""`visible`: text of a file as a terminal may have it."""

from __future__ import annotations

import unicodedata
from typing import Final, TypeVar

_HIDDEN: Final = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
"""Unicode categories: controls, formats (directions among them), halves of pairs, line breaks."""
_Value = TypeVar("_Value")


def visible(text: str) -> str:
    r"""Text with every character that a terminal obeys instead of showing it as an escape.

    >>> visible("a\x1b[31mb\u202ec"), visible("día 1")
    ('a\\x1b[31mb\\u202ec', 'día 1')
    """
    if text.isprintable():
        return text
    return "".join(_escape(one) if unicodedata.category(one) in _HIDDEN else one for one in text)


def visible_lines(text: str) -> str:
    """As `visible`, line breaks excepted."""
    return "\n".join(map(visible, text.split("\n")))


def visible_in(value: _Value) -> _Value:
    """A JSON value with all its text `visible`."""
    if isinstance(value, str):
        return visible(value)  # type: ignore[return-value]
    if isinstance(value, dict):
        return {visible_in(name): visible_in(one) for name, one in value.items()}  # type: ignore[return-value]
    if isinstance(value, list):
        return [visible_in(one) for one in value]  # type: ignore[return-value]
    return value


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()
