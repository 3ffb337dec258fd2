"""Generates the tables of docs/api.md and docs/bench.md from what modules offer and its docstrings.

python scripts/api_tables.py       writes them anew
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "api.md"
LAB_PAGE = ROOT / "docs" / "bench.md"
BLOCK = re.compile(r"<!-- (esper[a-z_.]*)(: names)? -->\n.*?<!-- end -->", re.DOTALL)
"""A module, and whether its names alone are listed."""
Defined = ast.FunctionDef | ast.ClassDef
"""What has a docstring."""


@cache
def tree_of(module: str) -> ast.Module:
    """The source of a module; it is read, not imported, since some need what is not installed."""
    above = ROOT / "lab" if module.startswith("esper_lab") else ROOT
    path = above.joinpath("src", *module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text())


@cache
def imported(module: str) -> dict[str, tuple[str, str]]:
    """Name in a module -> where it is imported from, and its name there."""
    nodes = [node for node in ast.walk(tree_of(module)) if isinstance(node, ast.ImportFrom)]
    return {
        part.asname or part.name: (str(node.module), part.name)
        for node in nodes
        for part in node.names
    }


def offered(module: str) -> list[str]:
    """Names that a module offers, in order: its `__all__`, or what type checkers see."""
    for node in tree_of(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = list(ast.literal_eval(node.value))
            break
    else:
        names = [
            part.name
            for node in ast.walk(tree_of(module))
            if isinstance(node, ast.ImportFrom)
            for part in node.names
            if part.asname == part.name
        ]
    return sorted((name for name in names if not name.startswith("_")), key=str.lower)


def definition(module: str, name: str) -> tuple[Defined | None, str]:
    """What a name is in a module, if it is a class or function, and its description."""
    body = tree_of(module).body
    for node, below in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            if any(ast.unparse(mark) == "overload" for mark in node.decorator_list):
                continue
            return node, ast.get_docstring(node) or ""
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        if name in [target.id for target in targets if isinstance(target, ast.Name)]:
            text = below.value if isinstance(below, ast.Expr) else None
            return None, str(text.value) if isinstance(text, ast.Constant) else ""
    home, there = imported(module)[name]
    return definition(home, there)


def form_of(node: Defined | None, name: str) -> str:
    """How a name is written in the table: functions with the arguments that must be given."""
    if not isinstance(node, ast.FunctionDef):
        return name
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    needed = positional[: len(positional) - len(given.defaults)]
    needed += [
        word
        for word, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
        if default is None
    ]
    words = [word.arg for word in needed]
    more = len(positional) + len(given.kwonlyargs) > len(words) or given.vararg or given.kwarg
    return f"{name}({', '.join([*words, '...'] if more else words)})"


def documented(module: str) -> list[str]:
    """What a module offers, without type aliases and constants whose names say all."""
    defined = {name: definition(module, name) for name in offered(module)}
    return [name for name, (node, text) in defined.items() if node is not None or text]


def names_of(module: str) -> str:
    """The names that a module offers, as Markdown."""
    return ", ".join(f"`{name}`" for name in documented(module))


def table_of(module: str) -> str:
    """The table of a module, as Markdown."""
    rows = ["| name | what it is |", "|---|---|"]
    for name in documented(module):
        node, text = definition(module, name)
        line = " ".join(text.partition("\n\n")[0].split())
        sentence = re.split(r"(?<=[a-z`)]\.) ", line)[0].rstrip(".:")
        cells = (f"`{form_of(node, name)}`", sentence)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def written(page: str) -> str:
    """The page with its tables as they should be."""

    def block(found: re.Match[str]) -> str:
        text = names_of(found[1]) if found[2] else table_of(found[1])
        return f"<!-- {found[1]}{found[2] or ''} -->\n{text}\n<!-- end -->"

    return BLOCK.sub(block, page)


if __name__ == "__main__":
    for page in (PAGE, LAB_PAGE):
        page.write_text(written(page.read_text()))
