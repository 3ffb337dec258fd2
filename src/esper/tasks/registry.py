"""Registry of tasks by name.

To add a task, call `register_task(TaskSpec(...))` in a module of this folder, or anywhere else
before the task is used. Users provide theirs in a file or a package (`task_files.py`). No data are
loaded before `spec.load()`.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar, Final

from esper.leyline.errors import EsperError, unknown_name
from esper.tasks.spec import TaskSpec
from esper.tasks.task_files import (
    is_file_reference,
    load_entry_point,
    read_task_file,
    task_entry_points,
)

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


class TaskRegistry:
    """All tasks by name; the modules of this folder are imported at first use."""

    _entries: ClassVar[dict[str, TaskSpec]] = {}
    _entry_points: ClassVar[dict[str, EntryPoint]] = {}
    """Entry points of installed packages, loaded one by one when used."""
    _discovered: ClassVar[bool] = False

    @classmethod
    def register(cls, spec: TaskSpec) -> TaskSpec:
        """Add a task; raises if the name is taken."""
        if spec.name in cls._entries:
            raise EsperError(f"task {spec.name!r} is already registered: choose another name")
        cls._entries[spec.name] = spec
        return spec

    @classmethod
    def unregister(cls, name: str) -> None:
        """Remove a task."""
        del cls._entries[cls.get(name).name]

    @classmethod
    def get(cls, name: str) -> TaskSpec:
        """Return a task by name; raises with the closest name if unknown."""
        if name not in cls.names():
            raise unknown_name("task", name, cls.names())
        if name in cls._entry_points:
            cls._register_entry_point(name)
        return cls._entries[name]

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return all names, sorted."""
        cls._discover()
        return tuple(sorted({*cls._entries, *cls._entry_points}))

    @classmethod
    def registered(cls) -> tuple[TaskSpec, ...]:
        """Return the tasks loaded so far."""
        return tuple(cls._entries.values())

    @classmethod
    @contextlib.contextmanager
    def temporary(cls) -> Iterator[None]:
        """Context manager that undoes registrations made inside it."""
        before = set(cls._entries)
        try:
            yield
        finally:
            for name in set(cls._entries) - before:
                del cls._entries[name]

    @classmethod
    def _discover(cls) -> None:
        """Import every module of this folder that may hold tasks once, which registers them."""
        if cls._discovered:
            return
        cls._discovered = True
        package = importlib.import_module("esper.tasks")
        for module in pkgutil.iter_modules(package.__path__):
            if module.name not in _TORCH_MODULES:
                importlib.import_module(f"{package.__name__}.{module.name}")
        cls._entry_points.update(task_entry_points())

    @classmethod
    def _register_entry_point(cls, name: str) -> None:
        """Load the entry point of an installed package and register its task."""
        entry = cls._entry_points[name]
        if name in cls._entries:
            package = entry.dist.name if entry.dist is not None else entry.value
            raise EsperError(
                f"task {name!r} is built in, and package {package} provides another of that "
                f"name: rename that one or uninstall the package"
            )
        cls.register(load_entry_point(entry))
        del cls._entry_points[name]


def register_task(spec: TaskSpec) -> TaskSpec:
    """Register a task and return it."""
    return TaskRegistry.register(spec)


def get_task_spec(name: str) -> TaskSpec:
    """Return a task by name or by file (`path/to/file.py`, `path/to/file.py:name`)."""
    return load_task_file(name) if is_file_reference(name) else TaskRegistry.get(name)


def load_task_file(reference: str | Path) -> TaskSpec:
    """Load a task from a file; raises if its name is that of a registered task.

    Registrations made by the file are undone, so it can be loaded repeatedly.
    """
    taken = task_names()
    with TaskRegistry.temporary():
        spec = read_task_file(reference, TaskRegistry.registered)
    if spec.name in taken:
        raise EsperError(
            f"task file {reference}: the name {spec.name!r} is taken by a registered task; choose "
            f"another"
        )
    return spec


def task_names() -> tuple[str, ...]:
    """Return the names of all tasks, sorted."""
    return TaskRegistry.names()
