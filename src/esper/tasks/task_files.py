"""Python files of users: named as `path/to/file.py` or `path/to/file.py:name`, and executed."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

from esper.leyline.user_errors import user_code

SUFFIX: Final = ".py"


def is_file_reference(text: str) -> bool:
    """Whether a reference is a Python file, or names an object in one.

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


def execute_file(path: Path, name: str, what: str) -> ModuleType:
    """Execute a file as the module `name`, without writing bytecode: every edit takes effect.

    `what`: the file in messages.
    """
    module = ModuleType(name)
    module.__file__ = str(path.absolute())  # its own paths hold wherever the process goes
    sys.modules[name] = module  # dataclasses look up their module here
    try:
        with user_code(f"{what} fails", passes=()):
            exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module
