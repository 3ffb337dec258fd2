"""Registry of tasks by name.

To add a task, call `register_task(TaskSpec(...))` in a module of this folder, or anywhere else
before the task is used. No data are loaded before `spec.load()`.

Users give theirs as `path/to/file.py`, or `path/to/file.py:name` if it defines several; it is
executed, so only use files you trust.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import Path
from typing import Final

from esper.leyline.errors import EsperError, unknown_name
from esper.tasks.spec import TaskSpec
from esper.tasks.task_files import execute_file, is_file_reference, split_reference

_MODULE: Final = "esper_task_file:"
"""Prefix of the module name; the full path follows, so that no import can collide with it."""
_TORCH_MODULES: Final = frozenset(
    (
        "context_data",
        "measuring",
        "member_functions",
        "metric_forms",
        "metrics",
        "objectives",
        "row_terms",
    )
)
"""Modules of this folder that define no task and import torch, which listing tasks must not."""


_TASKS: Final[dict[str, TaskSpec]] = {}
"""All tasks by name; the modules of this folder register theirs at first use."""


def register_task(spec: TaskSpec) -> TaskSpec:
    """Register a task and return it; raises if the name is taken."""
    if spec.name in _TASKS:
        raise EsperError(f"task {spec.name!r} is already registered: choose another name")
    _TASKS[spec.name] = spec
    return spec


def get_task_spec(name: str) -> TaskSpec:
    """Return a task by name or by file (`path/to/file.py`, `path/to/file.py:name`).

    An unknown name raises with the closest one.
    """
    if is_file_reference(name):
        return _load_task_file(name)
    names = task_names()
    if name not in names:
        raise unknown_name("task", name, names)
    return _TASKS[name]


def task_names() -> tuple[str, ...]:
    """Return the names of all tasks, sorted."""
    _discover()
    return tuple(sorted(_TASKS))


@cache
def _discover() -> None:
    """Import every module of this folder that may hold tasks once, which registers them."""
    package = importlib.import_module("esper.tasks")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name not in _TORCH_MODULES:
            importlib.import_module(f"{package.__name__}.{module.name}")


# ---- tasks of users: Python files ---------------------------------------------------------------


def _load_task_file(reference: str | Path) -> TaskSpec:
    """Load a task from a file; raises if its name is that of a registered task.

    Registrations made by the file are undone, so it can be loaded repeatedly.
    """
    taken = task_names()
    try:
        spec = _read_task_file(reference)
    finally:
        for name in _TASKS.keys() - set(taken):
            del _TASKS[name]
    if spec.name in taken:
        raise EsperError(
            f"task file {reference}: the name {spec.name!r} is taken by a registered task; choose "
            f"another"
        )
    return spec


def _read_task_file(reference: str | Path) -> TaskSpec:
    """Return the task that a file defines; `path.py:name` selects one of several.

    Tasks registered before the file runs do not count as the file's, even if it holds one in a
    variable to build on; those it registers itself do.
    """
    text, name = split_reference(str(reference))
    path = Path(text)
    if not path.is_file():
        raise EsperError(f"task file {path}: no such file; give path/to/file.py or .py:name")
    before = {id(spec) for spec in _TASKS.values()}
    module = execute_file(path, f"{_MODULE}{path.resolve()}", f"task file {path}")
    values = [*vars(module).values(), *_TASKS.values()]
    specs = {v.name: v for v in values if isinstance(v, TaskSpec) and id(v) not in before}
    if not specs:
        raise EsperError(
            f"task file {path} defines no TaskSpec of its own: assign one to a variable of the "
            f"module"
        )
    if name is None:
        if len(specs) > 1:
            first = next(iter(specs))
            raise EsperError(
                f"task file {path} defines {', '.join(specs)}: choose one, as in {path}:{first}"
            )
        return next(iter(specs.values()))
    if name not in specs:
        raise unknown_name("task", name, specs, f"in {path}")
    return specs[name]
