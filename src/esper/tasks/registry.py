"""Which tasks there are: one registry, one entry per name.

Adding one is one file in this folder that calls `register_task(TaskSpec(...))`, or the same call
anywhere else before the task is asked for. Users bring theirs in a file or a package
(`outside.py`). No data are loaded until `spec.load()`.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

from esper.leyline.errors import EsperError, unknown_name
from esper.tasks.outside import is_file_reference, load_offered, offered_tasks, read_task_file
from esper.tasks.spec import TaskSpec


class TaskRegistry:
    """All tasks by name; the modules of this folder are imported when first asked."""

    _entries: ClassVar[dict[str, TaskSpec]] = {}
    _offered: ClassVar[dict[str, EntryPoint]] = {}
    """Of installed packages, imported one by one when asked for."""
    _discovered: ClassVar[bool] = False

    @classmethod
    def register(cls, spec: TaskSpec) -> TaskSpec:
        """Add a task; a name can be taken once."""
        if spec.name in cls._entries:
            raise EsperError(f"task {spec.name!r} is already registered: choose another name")
        cls._entries[spec.name] = spec
        return spec

    @classmethod
    def unregister(cls, name: str) -> None:
        """Forget a task (a user's own, after an experiment)."""
        del cls._entries[cls.get(name).name]

    @classmethod
    def get(cls, name: str) -> TaskSpec:
        """The task of that name, or an error with the nearest one."""
        if name not in cls.names():
            raise unknown_name("task", name, cls.names())
        if name in cls._offered:
            cls._take_offered(name)
        return cls._entries[name]

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """All names, sorted."""
        cls._discover()
        return tuple(sorted({*cls._entries, *cls._offered}))

    @classmethod
    def registered(cls) -> tuple[TaskSpec, ...]:
        """All tasks that are loaded by now."""
        return tuple(cls._entries.values())

    @classmethod
    @contextlib.contextmanager
    def aside(cls) -> Iterator[None]:
        """What is registered inside is forgotten at the end."""
        before = set(cls._entries)
        try:
            yield
        finally:
            for name in set(cls._entries) - before:
                del cls._entries[name]

    @classmethod
    def _discover(cls) -> None:
        """Import every module of this folder once, so their entries are made."""
        if cls._discovered:
            return
        cls._discovered = True
        package = importlib.import_module("esper.tasks")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")
        cls._offered.update(offered_tasks())

    @classmethod
    def _take_offered(cls, name: str) -> None:
        """Turn the offer of an installed package into an entry."""
        entry = cls._offered[name]
        if name in cls._entries:
            package = entry.dist.name if entry.dist is not None else entry.value
            raise EsperError(
                f"task {name!r} is one of Esper's, and package {package} offers another of that "
                f"name: rename that one or uninstall the package"
            )
        cls.register(load_offered(entry))
        del cls._offered[name]


def register_task(spec: TaskSpec) -> TaskSpec:
    """Add a task, so that its name works everywhere; returns it."""
    return TaskRegistry.register(spec)


def get_task_spec(name: str) -> TaskSpec:
    """The task of that name, or of that file (`path/to/file.py`, `path/to/file.py:name`)."""
    return load_task_file(name) if is_file_reference(name) else TaskRegistry.get(name)


def load_task_file(reference: str | Path) -> TaskSpec:
    """The task a file defines, under a name that no registered task has.

    It goes by its file: what the file registers is forgotten again, so it can be read many times.
    """
    taken = task_names()
    with TaskRegistry.aside():
        spec = read_task_file(reference, TaskRegistry.registered)
    if spec.name in taken:
        raise EsperError(
            f"task file {reference}: the name {spec.name!r} is taken by a registered task; choose "
            f"another"
        )
    return spec


def task_names() -> tuple[str, ...]:
    """Names of all tasks, sorted."""
    return TaskRegistry.names()
