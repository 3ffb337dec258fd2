"""Copies of the user's own files, a task or a reward, in the run folder: what was trained stays
readable.

source/my_task.py        the file of the first session
source/my_task-2.py      the file of a later session that found it changed

Only the file itself is copied, not what it imports.
"""

from __future__ import annotations

from glob import escape
from pathlib import Path

from esper.leyline.errors import EsperError
from esper.storage.atomic import write_atomic
from esper.storage.run_files import SOURCE
from esper.tasks.task_files import is_file_reference, split_reference


def copy_user_file(run: Path, reference: str) -> None:
    """Copy a file into the run folder, unless this version is there already."""
    path = Path(split_reference(reference)[0])
    try:
        content = path.read_bytes()
    except OSError:
        return  # a task registered under this name, or a file that went away
    folder = run / SOURCE
    folder.mkdir(exist_ok=True)
    copies = [place.read_bytes() for place in _copies(folder, path)]
    if content not in copies:
        number = f"-{len(copies) + 1}" if copies else ""
        write_atomic(folder / f"{path.stem}{number}{path.suffix}", content)


def require_user_file(run: Path, reference: str, what: str = "task") -> None:
    """Raise if a file of a run is gone; the error names its copy. `what`: task or reward."""
    text, name = split_reference(reference)
    if not is_file_reference(reference) or Path(text).exists():
        return
    copies = _copies(run / SOURCE, Path(text))
    where = f", or its copy, {copies[-1]}{f':{name}' if name else ''}" if copies else ""
    raise EsperError(f"{what} file {text} is gone: give its new place with --{what}{where}")


def _copies(folder: Path, path: Path) -> list[Path]:
    """Copies of all versions of a file, the oldest first."""
    first = folder / path.name
    later = folder.glob(f"{escape(path.stem)}-[0-9]*{path.suffix}")
    by_number = sorted(later, key=lambda copy: (len(copy.name), copy.name))
    return [first, *by_number] if first.is_file() else by_number
