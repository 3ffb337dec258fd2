"""Load a user's `TaskSpec` from a Python file or from an entry point of a package.

A file is given as `path/to/file.py`, or `path/to/file.py:name` if it defines several; it is
executed, so only use files you trust. A package provides a task with

    [project.entry-points."esper.tasks"]
    my_task = "my_package.tasks:MY_TASK"

where MY_TASK is a `TaskSpec` of that name, or a function without arguments that returns one.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Final

from esper.leyline.errors import EsperError, unknown_name
from esper.leyline.user_errors import user_code
from esper.tasks.spec import TaskSpec

GROUP: Final = "esper.tasks"
SUFFIX: Final = ".py"
_MODULE: Final = "esper_task_file:"
"""Prefix of the module name; the full path follows, so that no import can collide with it."""


def is_file_reference(text: str) -> bool:
    """Whether a task reference is a file.

    >>> is_file_reference("mine.py"), is_file_reference("mine.py:a"), is_file_reference("digits")
    (True, True, False)
    """
    return split_reference(text)[0].endswith(SUFFIX)


def split_reference(reference: str) -> tuple[str, str | None]:
    """Split FILE.py:NAME into the path and the name; None without a name.

    >>> split_reference("mine.py:a"), split_reference("mine.py")
    (('mine.py', 'a'), ('mine.py', None))
    """
    path, colon, name = reference.rpartition(":")
    return (path, name) if colon and path.endswith(SUFFIX) else (reference, None)


def absolute_reference(reference: str) -> str:
    """The same reference with an absolute path, so that it holds from any folder.

    >>> absolute_reference("digits")
    'digits'
    """
    if not is_file_reference(reference):
        return reference
    path, name = split_reference(reference)
    full = os.path.abspath(path)
    return full if name is None else f"{full}:{name}"


def task_file_digest(reference: str) -> str:
    """Return the SHA-256 of a task file, without its imports; empty if it is not readable."""
    if not is_file_reference(reference):
        return ""
    try:
        content = Path(split_reference(reference)[0]).read_bytes()
    except (OSError, ValueError):
        return ""
    return hashlib.sha256(content).hexdigest()


def read_task_file(reference: str | Path, tasks: Callable[[], Iterable[TaskSpec]]) -> TaskSpec:
    """Return the task that a file defines; `path.py:name` selects one of several.

    `tasks`: returns the registered tasks. Tasks registered before the file runs do not count as the
    file's, even if it holds one in a variable to build on; those it registers itself do.
    """
    text, name = split_reference(str(reference))
    path = Path(text)
    if not path.is_file():
        raise EsperError(f"task file {path}: no such file; give path/to/file.py or .py:name")
    before = {id(spec) for spec in tasks()}
    values = [*vars(_run(path)).values(), *tasks()]
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


def _run(path: Path) -> ModuleType:
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


def task_entry_points() -> dict[str, EntryPoint]:
    """Return the entry points of installed packages by name, not loaded."""
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}


def load_entry_point(entry: EntryPoint) -> TaskSpec:
    """Load an entry point and return its task."""
    package = entry.dist.name if entry.dist is not None else entry.value
    with user_code(
        f"task {entry.name!r} of package {package} fails", "update or uninstall it", passes=()
    ):
        found = entry.load()
        spec = found() if callable(found) and not isinstance(found, TaskSpec) else found
    if not isinstance(spec, TaskSpec):
        raise EsperError(
            f"task {entry.name!r} of package {package}: {entry.value} is not a TaskSpec but "
            f"{type(spec).__name__}"
        )
    if spec.name != entry.name:
        raise EsperError(
            f"task {entry.name!r} of package {package} is named {spec.name!r}: use the same name "
            f"for the entry point and the spec"
        )
    return spec
