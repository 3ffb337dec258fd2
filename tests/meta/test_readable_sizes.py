"""Code that can be read in one go: no long function, no long file, and a round in `run()`."""

from __future__ import annotations

import ast
import inspect
import textwrap
from pathlib import Path

import esper
from esper.simic.training.vectorized_trainer import VectorizedPPOTrainer

SOURCE = Path(esper.__file__).parent
LAB = Path(__file__).parents[2] / "lab" / "src"
FILES = sorted([*SOURCE.rglob("*.py"), *LAB.rglob("*.py")])
MAX_FUNCTION_LINES, MAX_FILE_LINES = 60, 600
"""In lines."""


def functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def test_no_function_and_no_file_is_too_long_to_read():
    long = []
    for path in FILES:
        text, name = path.read_text(), path.relative_to(LAB if LAB in path.parents else SOURCE)
        sizes = {f"{name}::{f.name}": lines(f) for f in functions(ast.parse(text))}
        long += [f"{f}: {size} lines" for f, size in sizes.items() if size > MAX_FUNCTION_LINES]
        if (size := len(text.splitlines())) > MAX_FILE_LINES:
            long.append(f"{name}: {size} lines")
    assert not long, f"functions have {MAX_FUNCTION_LINES} lines at most, files {MAX_FILE_LINES}"


def test_the_rooms_that_must_stay_readable_are_among_them():
    found = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py")}
    assert found >= {
        "simic/training/vectorized_trainer.py",
        "simic/agent/agent.py",
        "simic/agent/update.py",
        "tolaria/engine.py",
        "tolaria/action_execution.py",
    }


ROUND = ("run_rollout", "update", "_report", "append", "hook")
"""The round of the design: rollout, update, emit; checkpoints are hooks."""


def test_run_reads_as_a_round_from_top_to_bottom_without_helpers_inside():
    tree = ast.parse(textwrap.dedent(inspect.getsource(VectorizedPPOTrainer.run)))
    (run,) = functions(tree)
    (loop,) = (node for node in run.body if isinstance(node, ast.While))
    calls = [node for node in ast.walk(loop) if isinstance(node, ast.Call)]
    calls.sort(key=lambda call: (call.lineno, call.col_offset))
    names = [getattr(call.func, "attr", getattr(call.func, "id", "")) for call in calls]
    assert [name for name in names if name in ROUND] == list(ROUND)


def test_nothing_in_training_hides_a_function_in_another():
    hidden = [
        f"{path.name}: {inner.name}"
        for path in (SOURCE / "simic" / "training").glob("*.py")
        for outer in functions(ast.parse(path.read_text()))
        for inner in functions(outer)
        if inner is not outer
    ]
    assert not hidden
