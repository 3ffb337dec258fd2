"""Sentences under the fields of a dataclass, read from its source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from typing import Any


@cache
def field_docs(cls: Any) -> dict[str, str]:
    """Field -> the string below it, on one line; fields without one are missing."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in zip(node.body, node.body[1:], strict=False):
        documented = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and documented:
            found[ast.unparse(field.target)] = " ".join(_text(below).split())
    return found


def class_doc(cls: type) -> str:
    """First paragraph of a class's docstring, on one line."""
    return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())


def _text(node: ast.stmt) -> str:
    return str(ast.literal_eval(ast.unparse(node)))
