"""Tasks that users bring: a `TaskSpec` in a Python file, or in a package that offers one.

A file is named as `path/to/file.py`, or `path/to/file.py:name` where it defines several; it is
run, so only name files you trust. A package offers a task with

    [project.entry-points."esper.tasks"]
    my_task = "my_package.tasks:MY_TASK"

where MY_TASK is a `TaskSpec` of that name, or a function without arguments that returns one.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Final

from esper.leyline.errors import EsperError, unknown_name
from esper.tasks.spec import TaskSpec

GROUP: Final = "esper.tasks"
SUFFIX: Final = ".py"
_MODULE: Final = "esper_task_file:"
"""A file's module is called this and its full path, so that no import can meet it."""


def is_file_reference(text: str) -> bool:
    """Whether a task is named by a file.

    >>> is_file_reference("mine.py"), is_file_reference("mine.py:a"), is_file_reference("digits")
    (True, True, False)
    """
    return _split(text)[0].endswith(SUFFIX)


def _split(reference: str) -> tuple[str, str | None]:
    path, colon, name = reference.rpartition(":")
    return (path, name) if colon and path.endswith(SUFFIX) else (reference, None)


def digest_of_task_file(reference: str) -> str:
    """SHA-256 of the file that a task is named by, without what that imports; empty where it is
    named by none, or none can be read."""
    if not is_file_reference(reference):
        return ""
    try:
        content = Path(_split(reference)[0]).read_bytes()
    except (OSError, ValueError):
        return ""
    return hashlib.sha256(content).hexdigest()


def read_task_file(reference: str | Path, tasks: Callable[[], Iterable[TaskSpec]]) -> TaskSpec:
    """The task that a file defines; `path.py:name` chooses between several.

    `tasks`: those registered now. What is registered before the file runs is not the file's, even
    where a variable of it holds one to start from; what it registers itself is.
    """
    text, name = _split(str(reference))
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
    """The file as a module; it leaves no compiled copy behind, so an edit always counts."""
    module = ModuleType(f"{_MODULE}{path.resolve()}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses of the file look themselves up here
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        raise EsperError(f"task file {path} failed: {_in_one_line(error)}") from error
    return module


def _in_one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    line = _line_of(error)
    return f"{type(error).__name__}{line}" + (f": {text}" if text else "")


def _line_of(error: BaseException) -> str:
    """The line of the file that was being run, without what it called."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").startswith(_MODULE):
            frames.append(trace.tb_lineno)
        trace = trace.tb_next
    return f" in line {frames[0]}" if frames else ""


def offered_tasks() -> dict[str, EntryPoint]:
    """What installed packages offer, unloaded, by name."""
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}


def load_offered(entry: EntryPoint) -> TaskSpec:
    """Import the package and take its task."""
    package = entry.dist.name if entry.dist is not None else entry.value
    try:
        found = entry.load()
        spec = found() if callable(found) and not isinstance(found, TaskSpec) else found
    except (Exception, SystemExit) as error:
        raise EsperError(
            f"task {entry.name!r} of package {package} failed: {_in_one_line(error)}; update or "
            f"uninstall it"
        ) from error
    if not isinstance(spec, TaskSpec):
        raise EsperError(
            f"task {entry.name!r} of package {package}: {entry.value} is no TaskSpec but "
            f"{type(spec).__name__}"
        )
    if spec.name != entry.name:
        raise EsperError(
            f"task {entry.name!r} of package {package} calls itself {spec.name!r}: the entry point "
            f"and the spec need one name"
        )
    return spec
