"""Where data files lie: the data directory, the folder of a data set in it, what to say without.

`--data-dir` (in code an argument) names the directory. Without it `$ESPER_DATA_DIR` is looked at,
then `./data`. Every data set has a folder of its own there, laid out as its makers publish it.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from esper.leyline.errors import EsperError

VARIABLE: Final = "ESPER_DATA_DIR"
DEFAULT: Final = Path("data")


@dataclass(frozen=True, slots=True)
class DataSet:
    """A published data set, for people and for the search."""

    title: str
    """What people call it."""
    folders: tuple[str, ...]
    """Its folder in the data directory, one name for each layout; the first found is read."""
    source: str
    """Where to get it."""

    def __post_init__(self) -> None:
        if not self.folders:
            raise EsperError(f"data set {self.title!r}: name at least one folder")


def data_places(data_dir: Path | None = None) -> tuple[Path, ...]:
    """The directories to look into, in order.

    >>> data_places(Path("mine"))
    (PosixPath('mine'),)
    """
    if data_dir is not None:
        return (data_dir,)
    named = os.environ.get(VARIABLE)
    return (*((Path(named),) if named else ()), DEFAULT)


def find_data(dataset: DataSet, data_dir: Path | None = None) -> Path | None:
    """The data set's folder, or None."""
    folders = (place / name for place in data_places(data_dir) for name in dataset.folders)
    return next((folder for folder in folders if folder.is_dir()), None)


def locate_data(dataset: DataSet, data_dir: Path | None = None) -> Path:
    """The data set's folder, or an error that names the places and the ways out."""
    found = find_data(dataset, data_dir)
    if found is None:
        raise EsperError(f"{dataset.title} is not in {_places(data_dir)}: {how_to_get(dataset)}")
    return found


def how_to_get(dataset: DataSet) -> str:
    """What to do where the data set is missing."""
    folders = " or ".join(f"{name}/" for name in dataset.folders)
    return (
        f"get it from {dataset.source} and unpack it there as {folders}, name its place with "
        f"--data-dir, or take made-up data of its shape with --data synthetic"
    )


def _places(data_dir: Path | None) -> str:
    if data_dir is not None:
        return f"--data-dir {data_dir}"
    named = os.environ.get(VARIABLE) or "not set"
    return f"${VARIABLE} ({named}) nor in ./{DEFAULT} ({DEFAULT.absolute()})"


# ---- one file --------------------------------------------------------------------------------


def damaged(path: Path, why: str, dataset: DataSet) -> EsperError:
    """The error for a file that is not what its name says."""
    return EsperError(f"{path}: {why}; get it again from {dataset.source}")


def pick_file(folder: Path, names: tuple[str, ...], dataset: DataSet) -> Path:
    """The first of these files that is there."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise damaged(folder / names[0], f"no such file in the folder of {dataset.title}", dataset)


def read_file(path: Path, most: int, dataset: DataSet, cut: bool = False) -> bytes:
    """The bytes of a file; one longer than `most` is refused unread, or `cut` there."""
    try:
        with path.open("rb") as file:
            content = file.read(most if cut else most + 1)
    except OSError as error:
        raise EsperError(
            f"{path} cannot be read ({error.strerror}): check its permissions"
        ) from error
    if len(content) > most:
        size = path.stat().st_size
        raise damaged(path, f"{size:,} bytes, expected at most {most:,}", dataset)
    return content


def check_sha1(path: Path, content: bytes, wanted: str, dataset: DataSet) -> None:
    """Refuse content that is not the published one."""
    found = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    if found != wanted:
        raise damaged(
            path, f"its content has SHA-1 {found[:12]}..., published {wanted[:12]}...", dataset
        )
