"""Objects of a user's Python file by `FILE.py:NAME`, and data files.

A file is executed, so only those named on the command line are. Modules beside it can be imported,
as if it were run by Python. Files: `.npz` with arrays `x` and `y`; `.csv` with numbers, or named
columns of any kind, and the label in the last column.
"""

from __future__ import annotations

import csv
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from esper.leyline.errors import EsperError, parse_error_line, unknown_name
from esper.leyline.user_errors import user_code
from esper.tasks.task_files import execute_file, is_file_reference, split_reference

MODULE: Final = "esper_user_file:"
"""Prefix of the module name; the full path follows, so that no import can collide with it."""
DATA_FORMS: Final = "FILE.py:NAME, FILE.npz with x and y, or FILE.csv"


class UserFiles:
    """Python files that were executed, each once."""

    def __init__(self) -> None:
        self._modules: dict[Path, ModuleType] = {}

    @property
    def paths(self) -> list[Path]:
        """The files, in the order of their first use."""
        return list(self._modules)

    def find(self, reference: str) -> Any:
        """The object that `FILE.py:NAME` names."""
        text, name = split_reference(reference)
        if not is_file_reference(reference):
            raise EsperError(f"{reference}: name an object in a Python file, as in mine.py:model")
        path = Path(text)
        if not path.is_file():
            raise EsperError(f"{text}: no such file; give path/to/file.py:NAME")
        module = self._module(path.resolve())
        names = [
            found
            for found, value in vars(module).items()
            if not found.startswith("_") and not inspect.ismodule(value)
        ]
        if not name:
            raise EsperError(f"{reference}: name an object in it, as in {text}:model")
        if name not in vars(module):
            raise unknown_name("name", name, names, f"in {text}")
        return getattr(module, name)

    def data(self, reference: str, as_table: bool = False) -> Any:
        """Data by `FILE.py:NAME` (a function is called), or from an `.npz` or `.csv` file.

        `as_table`: columns of a `.csv` file may hold text, too.
        """
        path = Path(reference)
        if path.suffix == ".npz":
            return _read_npz(path)
        if path.suffix == ".csv":
            return _read_csv(path, as_table)
        if not is_file_reference(reference):
            raise EsperError(f"{reference}: give {DATA_FORMS}")
        found = self.find(reference)
        if not (inspect.isroutine(found) or inspect.isclass(found)):
            return found
        with user_code(f"{reference} fails", passes=()):
            return found()

    def _module(self, path: Path) -> ModuleType:
        if path not in self._modules:
            if str(path.parent) not in sys.path:
                sys.path.insert(0, str(path.parent))
            self._modules[path] = execute_file(path, f"{MODULE}{path}", str(path))
        return self._modules[path]


@contextmanager
def user_files() -> Iterator[UserFiles]:
    """Files whose own imports work inside the block."""
    before, files = list(sys.path), UserFiles()
    try:
        yield files
    finally:
        sys.path[:] = before
        for path in files.paths:
            sys.modules.pop(f"{MODULE}{path}", None)


def _read_npz(path: Path) -> tuple[Any, Any]:
    """Arrays `x` and `y` of a file."""
    import numpy as np

    _require_file(path)
    try:
        with np.load(path, allow_pickle=False) as held:
            missing = [name for name in ("x", "y") if name not in held.files]
            if missing:
                raise EsperError(
                    f"{path} has no array {missing[0]!r} (it has {', '.join(held.files)}): save it "
                    f"with numpy.savez({path.name!r}, x=inputs, y=labels)"
                )
            return held["x"], held["y"]
    except EsperError:
        raise
    except Exception as error:  # whatever a damaged archive raises
        line = parse_error_line(ValueError(str(error)))
        raise EsperError(f"{path} cannot be read as .npz ({line})") from error


def _read_csv(path: Path, as_table: bool) -> tuple[Any, Any]:
    """Numbers `[N, F]`, and the last column as labels: integers, numbers or words.

    `as_table`: columns by name instead, of numbers or of text; empty cells are None.
    """
    import numpy as np

    names, rows = _csv_rows(path)
    labels = _labels([row[-1].strip() for row in rows])
    if as_table:
        cells = zip(*(row[:-1] for row in rows), strict=True)
        return dict(zip(names[:-1], map(_column, cells), strict=True)), labels
    for number, row in enumerate(rows, 1):
        bad = [cell for cell in row[:-1] if not _is_number(cell)]
        if bad:
            raise EsperError(
                f"{path} row {number}: {bad[0]!r} is not a number; --categorical auto encodes text"
            )
    return np.array([row[:-1] for row in rows], dtype=np.float64).astype(np.float32), labels


def _column(cells: tuple[str, ...]) -> Any:
    import numpy as np

    words = [cell.strip() for cell in cells]
    if all(_is_number(word) for word in words if word):
        return np.array([float(word or "nan") for word in words])
    return np.array([word or None for word in words], dtype=object)


def _csv_rows(path: Path) -> tuple[list[str], list[list[str]]]:
    """Names of the columns, 0, 1, ... if the first row has a number, and the cells of all rows."""
    _require_file(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if any(cell.strip() for cell in row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise EsperError(f"{path} cannot be read as .csv ({error})") from error
    names = [str(place) for place in range(len(rows[0]))] if rows else []
    if rows and not any(_is_number(cell) for cell in rows[0]):
        names, rows = [cell.strip() for cell in rows[0]], rows[1:]
    if not rows or len(rows[0]) < 2:
        raise EsperError(f"{path}: give rows of numbers, separated by commas, and a label each")
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise EsperError(
                f"{path} row {number}: {len(row)} columns; the first row has {len(rows[0])}"
            )
    return names, rows


def _labels(words: list[str]) -> Any:
    import numpy as np

    if not all(map(_is_number, words)):
        return np.array(words)
    numbers = np.array(words, dtype=np.float64)
    whole = bool((numbers == np.round(numbers)).all())
    return numbers.astype(np.int64) if whole else numbers.astype(np.float32)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise EsperError(f"{path}: no such file; give {DATA_FORMS}")
