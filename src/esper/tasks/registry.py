"""Which tasks there are: one registry, one entry per name.

Adding one is one file in this folder that calls `register_task(TaskSpec(...))`, or the same call
anywhere else before the task is asked for. No data are loaded until `spec.load()`.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import ClassVar

from esper.leyline.errors import EsperError, unknown_name
from esper.tasks.spec import TaskSpec


class TaskRegistry:
    """All tasks by name; the modules of this folder are imported when first asked."""

    _entries: ClassVar[dict[str, TaskSpec]] = {}
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
        return cls._entries[name]

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """All names, sorted."""
        cls._discover()
        return tuple(sorted(cls._entries))

    @classmethod
    def _discover(cls) -> None:
        """Import every module of this folder once, so their entries are made."""
        if cls._discovered:
            return
        cls._discovered = True
        package = importlib.import_module("esper.tasks")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")


def register_task(spec: TaskSpec) -> TaskSpec:
    """Add a task, so that its name works everywhere; returns it."""
    return TaskRegistry.register(spec)


def get_task_spec(name: str) -> TaskSpec:
    """The task of that name."""
    return TaskRegistry.get(name)


def task_names() -> tuple[str, ...]:
    """Names of all tasks, sorted."""
    return TaskRegistry.names()
