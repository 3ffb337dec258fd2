"""Registry of tasks by name.

To add a task, call `register_task(TaskSpec(...))` in a module of this folder, or anywhere else
before the task is used. No data are loaded before `spec.load()`.

Users give theirs as `path/to/file.py`, or `path/to/file.py:name` if it defines several; it is
executed, so only use files you trust.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import ClassVar, Final

from esper.leyline.errors import EsperError, unknown_name
from esper.leyline.user_errors import user_code
from esper.tasks.spec import TaskSpec
from esper.tasks.task_files import is_file_reference, split_reference

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


class TaskRegistry:
    """All tasks by name; the modules of this folder are imported at first use."""

    _entries: ClassVar[dict[str, TaskSpec]] = {}
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
        return cls._entries[name]

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return all names, sorted."""
        cls._discover()
        return tuple(sorted(cls._entries))

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


def register_task(spec: TaskSpec) -> TaskSpec:
    """Register a task and return it."""
    return TaskRegistry.register(spec)


def get_task_spec(name: str) -> TaskSpec:
    """Return a task by name or by file (`path/to/file.py`, `path/to/file.py:name`)."""
    return _load_task_file(name) if is_file_reference(name) else TaskRegistry.get(name)


def _load_task_file(reference: str | Path) -> TaskSpec:
    """Load a task from a file; raises if its name is that of a registered task.

    Registrations made by the file are undone, so it can be loaded repeatedly.
    """
    taken = task_names()
    with TaskRegistry.temporary():
        spec = _read_task_file(reference, TaskRegistry.registered)
    if spec.name in taken:
        raise EsperError(
            f"task file {reference}: the name {spec.name!r} is taken by a registered task; choose "
            f"another"
        )
    return spec


def task_names() -> tuple[str, ...]:
    """Return the names of all tasks, sorted."""
    return TaskRegistry.names()


# ---- tasks of users: Python files ---------------------------------------------------------------


def _read_task_file(reference: str | Path, tasks: Callable[[], Iterable[TaskSpec]]) -> TaskSpec:
    """Return the task that a file defines; `path.py:name` selects one of several.

    `tasks`: returns the registered tasks. Tasks registered before the file runs do not count as the
    file's, even if it holds one in a variable to build on; those it registers itself do.
    """
    text, name = split_reference(str(reference))
    path = Path(text)
    if not path.is_file():
        raise EsperError(f"task file {path}: no such file; give path/to/file.py or .py:name")
    before = {id(spec) for spec in tasks()}
    values = [*vars(_execute(path)).values(), *tasks()]
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


def _execute(path: Path) -> ModuleType:
    """Execute the file as a module, without writing bytecode, so that every edit takes effect."""
    module = ModuleType(f"{_MODULE}{path.resolve()}")
    module.__file__ = str(path.absolute())  # its own paths hold wherever the process goes
    sys.modules[module.__name__] = module  # dataclasses look up their module here
    try:
        with user_code(f"task file {path} fails", passes=()):
            exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module
