"""One network of a search: its curve, layers, files and script, and how Python gets it.

Nothing is loaded: files are listed, the script is read as text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from esper.karn.views.damage import reader
from esper.karn.views.documents import Entries, entries, listed, numbers, objects, real, whole
from esper.karn.views.network_layers import LayerBox, read_layers
from esper.karn.views.search_table import SearchTable, read_search, within
from esper.leyline.errors import EsperError
from esper.leyline.text import visible_lines
from esper.storage import run_files as f

MAX_SCRIPT: Final = 200_000
"""Bytes of a script that a page shows, so that it stays small."""
_NO_SCRIPT: Final = "# no script: "
_FILE: Final = re.compile(r"\d{4,9}(-plain/\w[\w.-]*|(\.refit)?\.safetensors|\.py)", re.ASCII)
"""Names of the files of a network, below the folder of networks."""


@dataclass(frozen=True, slots=True)
class _NetworkFile:
    """A file of a network."""

    name: str
    """Below the folder of networks."""
    size: int


@dataclass(frozen=True, slots=True)
class NetworkDetail:
    """What is known of one run of a search beside its scores."""

    label: str
    pick: str
    """Python that returns the network; empty if it was not kept."""
    script: str
    """Script that trains it again; empty if none was kept."""
    files: tuple[_NetworkFile, ...]
    layers: tuple[LayerBox, ...]
    """In order; empty until the network is saved, with the result."""
    curve: tuple[tuple[float, float], ...]
    """(batches, training loss) on the way."""


@reader
def network_detail(run: Path, number: int) -> NetworkDetail:
    """One network of a search; raises if there is none of that number."""
    search = read_search(run)
    row = next((one for one in search.rows if whole(one, "number") == number), None)
    if row is None and number not in search.judged:
        raise EsperError(f"{run} has no network {number}")
    return NetworkDetail(
        label=str(number),
        pick=_pick_line(run, search, number),
        script=read_script(run, number),
        files=tuple(_files(run, number)),
        layers=read_layers(run, number),
        curve=tuple(_curve(row or {})),
    )


def network_file(run: Path, name: str) -> Path | None:
    """Path of a file of a network by its name; None: files of networks have other names."""
    return run / f.GROWN_NETWORKS / name if _FILE.fullmatch(name) else None


def read_script(run: Path, number: int) -> str:
    """The script that was kept of a network; empty if there is none."""
    path = run / f.GROWN_NETWORKS / f"{number:04d}.py"
    if not path.is_file() or path.stat().st_size > MAX_SCRIPT:
        return ""
    text = path.read_text(errors="replace")
    return "" if text.startswith(_NO_SCRIPT) else visible_lines(text)


def _curve(row: Entries) -> Iterator[tuple[float, float]]:
    for one in listed(row, "curve"):
        match numbers({"pair": one}, "pair"):
            case [at, loss] if math.isfinite(at):
                yield at, loss


def _files(run: Path, number: int) -> Iterator[_NetworkFile]:
    root = run / f.GROWN_NETWORKS
    stem = f"{number:04d}"
    for path in sorted((*root.glob(f"{stem}*"), *root.glob(f"{stem}-plain/*"))):
        name = path.relative_to(root).as_posix()
        if _FILE.fullmatch(name) and path.is_file() and not path.is_symlink():
            yield _NetworkFile(name, path.stat().st_size)


def _pick_line(run: Path, search: SearchTable, number: int) -> str:
    """How to get a network in Python: by the limits that lead to it."""
    host, found = entries(search.result, "host"), search.judged.get(number)
    if found is None:
        return ""
    candidates = [*objects(search.result, "networks"), *within([host], search.info)]
    for names in ((), ("params",), ("params", "macs")):
        if _picked(candidates, search.sign, found, names) == number:
            limits = ", ".join(f"{name}={whole(found, name)}" for name in names)
            return f"esper.GrowResult.load({str(run)!r}).pick({limits})"
    is_host = number == whole(host, "number")
    return f"esper.GrowResult.load({str(run)!r}).host" if is_host else ""


def _picked(
    candidates: list[Entries], sign: float, limit: Entries, names: tuple[str, ...]
) -> int | None:
    """Number of the best of those that are at most as large: as `GrowResult.pick` does."""
    fit = [one for one in candidates if all(real(one, n) <= real(limit, n) for n in names)]
    ranked = sorted(fit, key=lambda one: (sign * real(one, "val_score"), -real(one, "params")))
    return whole(ranked[-1], "number") if ranked else None
