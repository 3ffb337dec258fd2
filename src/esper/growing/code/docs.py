"""Source of nested calls, broken into lines where it is too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 88
INDENT: Final = "    "


@dataclass(frozen=True, slots=True)
class Call:
    """`head` items `tail`, as in `nn.Sequential(` ... `)`."""

    head: str
    items: tuple[Doc, ...]
    tail: str


Doc = str | Call


def flat(doc: Doc) -> str:
    """On one line."""
    if isinstance(doc, str):
        return doc
    return f"{doc.head}{', '.join(map(flat, doc.items))}{doc.tail}"


def lines(start: str, doc: Doc, depth: int) -> list[str]:
    """`start` and an expression on as many lines as they need; `depth`: of the indentation."""
    space = INDENT * depth
    whole = f"{space}{start}{flat(doc)}"
    if isinstance(doc, str) or not doc.items or len(whole) <= WIDTH:
        return [whole]
    inner = f"{space}{INDENT}{', '.join(map(flat, doc.items))}"
    if len(inner) <= WIDTH and all(isinstance(item, str) for item in doc.items):
        return [f"{space}{start}{doc.head}", inner, f"{space}{doc.tail}"]
    found = [f"{space}{start}{doc.head}"]
    for item in doc.items:
        *above, last = lines("", item, depth + 1)
        found += [*above, f"{last},"]
    return [*found, f"{space}{doc.tail}"]


def keyed(key: str, doc: Doc) -> Doc:
    """`"key": doc` of a dict."""
    if isinstance(doc, str):
        return f'"{key}": {doc}'
    return Call(f'"{key}": {doc.head}', doc.items, doc.tail)


def named(name: str, doc: Doc) -> Doc:
    """`name=doc` of a call."""
    if isinstance(doc, str):
        return f"{name}={doc}"
    return Call(f"{name}={doc.head}", doc.items, doc.tail)


def function(head: str, body: Sequence[str], depth: int = 0) -> list[str]:
    """`def head:` with its body, whose lines are not indented yet."""
    inner = INDENT * (depth + 1)
    return [f"{INDENT * depth}def {head}:", *(f"{inner}{line}" if line else "" for line in body)]
