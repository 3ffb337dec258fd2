"""Locate data files: the data directory and the folders of data sets in it.

The directory is `--data-dir` (an argument in code), else `$ESPER_DATA_DIR`, else `./data`. Every
data set has its own folder there, laid out as published.
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
    """A published data set and its folders."""

    title: str
    """Display name."""
    folders: tuple[str, ...]
    """Folder names in the data directory, one per layout; the first that exists is read."""
    source: str
    """Where to download it."""


def data_directories(data_dir: Path | None = None) -> tuple[Path, ...]:
    """Return the directories to search, in order.

    >>> data_directories(Path("mine"))
    (PosixPath('mine'),)
    """
    if data_dir is not None:
        return (data_dir,)
    named = os.environ.get(VARIABLE)
    return (*((Path(named),) if named else ()), DEFAULT)


def find_data(dataset: DataSet, data_dir: Path | None = None) -> Path | None:
    """Return the folder of the data set, or None."""
    folders = (place / name for place in data_directories(data_dir) for name in dataset.folders)
    return next((folder for folder in folders if folder.is_dir()), None)


def locate_data(dataset: DataSet, data_dir: Path | None = None) -> Path:
    """Return the folder of the data set; raises with the searched directories if missing."""
    found = find_data(dataset, data_dir)
    if found is None:
        raise EsperError(
            f"{dataset.title} is not in {_searched_directories(data_dir)}: "
            f"{_download_hint(dataset)}"
        )
    return found


def _download_hint(dataset: DataSet) -> str:
    """Return instructions for a missing data set."""
    folders = " or ".join(f"{name}/" for name in dataset.folders)
    return (
        f"get it from {dataset.source} and unpack it there as {folders}, give its directory with "
        f"--data-dir, or use synthetic data of its shape with --data synthetic"
    )


def _searched_directories(data_dir: Path | None) -> str:
    if data_dir is not None:
        return f"--data-dir {data_dir}"
    named = os.environ.get(VARIABLE) or "not set"
    return f"${VARIABLE} ({named}) nor in ./{DEFAULT} ({DEFAULT.absolute()})"


# ---- reading files ---------------------------------------------------------------------------


def damaged(path: Path, why: str, dataset: DataSet) -> EsperError:
    """Return the error for a damaged file."""
    return EsperError(f"{path}: {why}; get it again from {dataset.source}")


def pick_file(folder: Path, names: tuple[str, ...], dataset: DataSet) -> Path:
    """Return the first of these files that exists."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise damaged(folder / names[0], f"no such file in the folder of {dataset.title}", dataset)


def read_file(path: Path, most: int, dataset: DataSet, cut: bool = False) -> bytes:
    """Read a file; one longer than `most` raises unread, or is truncated with `cut`."""
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
    """Raise unless the content has the published checksum."""
    found = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    if found != wanted:
        raise damaged(
            path, f"its content has SHA-1 {found[:12]}..., published {wanted[:12]}...", dataset
        )
