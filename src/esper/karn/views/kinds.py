"""Which kind of run a folder holds."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from esper.leyline.errors import EsperError
from esper.storage import run_files as f
from esper.storage.atomic import require_folder


class RunKind(StrEnum):
    """The command that made a run."""

    TRAIN = "train"
    GROW = "grow"
    COMPARE = "compare"
    AUDIT = "audit"


def find_kind(path: Path) -> RunKind | None:
    """Kind of the run in a folder, by the file that every run of it has; None: no run."""
    if (path / f.RUN).is_file():
        return RunKind.TRAIN
    if (path / f.GROW).is_file() or (path / f.GROWN_NETWORKS).is_dir():  # made before grow.json
        return RunKind.GROW
    if (path / f.AUDIT).is_file():
        return RunKind.AUDIT
    if (path / f.SETTINGS).is_file() and (path / f.POLICIES).is_dir():
        return RunKind.COMPARE
    return None


def kind_of(path: Path) -> RunKind:
    """Kind of the run in a folder; raises if there is none."""
    kind = find_kind(path)
    if kind is not None:
        return kind
    require_folder(path, "give the folder of a run (`esper runs` lists them)")
    raise EsperError(
        f"{path} holds no run: it has none of {f.RUN}, {f.GROW}, {f.AUDIT}, {f.SETTINGS}"
    )
