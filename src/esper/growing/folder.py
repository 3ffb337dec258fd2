"""Folders of `esper.grow` runs.

    runs/<name>__grow__<seed>__<time>/
        grow.json       settings, model, data and versions
        search.json     the table of runs: the state of the search
        checkpoints/    runs under way
        networks/       NUMBER.safetensors (weights), NUMBER-plain/ (networks of the frontier)
        source/         copies of the user's files, if they were named
        trackers/       files of TensorBoard, W&B and MLflow, and which runs these are there
        result.json     frontier, pick and verdict
        test_samples.npy  metric of each test sample, of the pick and the user's model
        report.html     result.json for people
        sessions.json   which process searched when, and how that ended
        lock            held by the process that runs the search

JSON files carry a checksum.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from torch import Tensor

from esper.growing.budget import Budget
from esper.growing.data.encoding import Encoding
from esper.growing.runs import Table
from esper.leyline.arrays import Doubles
from esper.leyline.codec import read_record, to_json
from esper.leyline.errors import EsperError, shown
from esper.storage import run_files
from esper.storage.atomic import require_folder, save_file, write_advice
from esper.storage.folder_lock import FolderLock
from esper.storage.run_files import GROW as GROW
from esper.storage.run_files import GROWN_NETWORKS, SEARCH
from esper.storage.run_files import RESULT as RESULT
from esper.storage.sealed_json import read_document, require_schema, seal

CHECKPOINTS: Final = "checkpoints"
SOURCES: Final = "source"
RUNS: Final = Path("runs")


@dataclass(frozen=True, slots=True)
class GrowInfo:
    """What a run was started with, and what was decided before the search."""

    schema: int
    name: str
    created: str
    """UTC."""
    model: str
    """Class of the user's model."""
    fingerprint: str
    """Of the data."""
    architecture: str
    """SHA-256 of what the model computes, but for its weights (`digests.model_digest`)."""
    notes: tuple[str, ...]
    """What was decided about the data."""
    loss: str
    metric: str
    topology: str
    slots: tuple[str, ...]
    places: tuple[str, ...]
    """Where each slot is in the user's model."""
    variants: tuple[str, ...]
    """Names of the widths that were tried; the first one, the model as given, has none."""
    variant_places: tuple[tuple[str, ...], ...]
    """Where the slots of each of them are."""
    blueprints: tuple[str, ...]
    """Those the user named; empty: all that fit."""
    host_params: int
    host_macs: int
    batch_size: int
    epochs: float
    length: int
    """Batches of a full training run."""
    optimizer: str
    rates: tuple[float, ...]
    runs: float
    """Compute of the search, in full training runs of the model; infinite: as time allows."""
    seed: int
    device: str
    budget: Budget
    versions: tuple[tuple[str, str], ...]
    train_macs: int
    """Training MACs of the model as given for one sample, forward and backward."""
    constant_score: float
    """Validation score of the best constant prediction; NaN: not known."""
    amp: bool
    """Whether networks were trained in bfloat16."""
    output: str
    """Which output of the model was trained on, as JSON."""
    weight_decay: float
    clip: float
    """Maximum norm of the gradient; 0: no clipping."""
    full_length: int
    """Batches of a training run before the time limit cut it."""
    higher_is_better: bool
    """Whether a higher score is better."""
    settings: tuple[tuple[str, str], ...]
    """Every setting as it was given (`GrowSettings.record`): a resume compares them."""
    weights: str = ""
    """SHA-256 of the weights that the model was given with; empty: it was not."""
    encoding: Encoding | None = None
    """How rows of a table become inputs of the networks; None: they take what the data yield."""
    host_latency: float = 0.0
    """Milliseconds of the model as given for one sample; 0: not measured."""

    @property
    def host_fits(self) -> bool:
        """Whether the model as given is within the budget, and may be picked."""
        return self.budget.allows(self.host_params, self.host_macs, self.host_latency)

    def rank(self, score: float, params: int) -> tuple[float, int]:
        """Sort key of a network: the better score, then the smaller size; NaN is the worst."""
        merit = score if self.higher_is_better else -score
        return (-math.inf if math.isnan(merit) else merit, -params)


class GrowFolder:
    """The folder of one run, locked while it is open: its search keeps table and weights there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FolderLock(path)

    @staticmethod
    def create(root: Path, name: str, seed: int) -> GrowFolder:
        """Make a new folder; existing ones are never touched."""
        safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "model"
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        for attempt in range(1000):
            suffix = f"-{attempt}" if attempt else ""
            path = root / f"{safe[:60]}__grow__{seed}__{stamp}{suffix}"
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                raise EsperError(
                    f"cannot make {path}: {error.strerror}; {write_advice(error)} or choose "
                    f"another folder"
                ) from error
            (path / GROWN_NETWORKS).mkdir()
            (path / CHECKPOINTS).mkdir()
            return GrowFolder(path)
        raise EsperError(f"{root}: no free name for a new run; move old runs away")

    @staticmethod
    def open(path: Path) -> GrowFolder:
        """Open a folder to resume its run."""
        require_grow_folder(path)
        return GrowFolder(path)

    def keep_sources(self, sources: Mapping[str, bytes]) -> None:
        """Write copies of the user's files into the folder."""
        for name, content in sources.items():
            (self.path / SOURCES).mkdir(exist_ok=True)
            save_file(self.path / SOURCES / name, content)

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()

    def write(self, name: str, record: object) -> None:
        """Write a record as sealed JSON."""
        document = to_json(record)
        assert isinstance(document, dict)
        save_file(self.path / name, (json.dumps(seal(document), indent=1) + "\n").encode())

    def save_test_samples(self, pick_N: Doubles | None, host_N: Doubles | None) -> None:
        """Write the metric of each test sample, if it has one: runs can be compared in pairs."""
        if pick_N is None or host_N is None or len(pick_N) > run_files.MAX_TEST_SAMPLES:
            return
        file = io.BytesIO()
        np.save(file, np.stack([pick_N, host_N]).astype(np.float32), allow_pickle=False)
        save_file(self.path / run_files.TEST_SAMPLES, file.getvalue())

    # ---- the search -----------------------------------------------------------------------

    def save_table(self, table: Table) -> None:
        """Write the table of runs."""
        self.write(SEARCH, table)

    def save_weights(
        self,
        number: int,
        weights: Mapping[str, Tensor],
        refit: bool = False,
        under_way: bool = False,
    ) -> None:
        """Write the weights of a run, or those of its refit; nothing waits for the disk where a run
        is under way: others follow.
        """
        from safetensors.torch import save

        whole = {name: value.contiguous().clone() for name, value in weights.items()}
        save_file(weights_path(self.path, number, refit), save(whole), durable=not under_way)

    def drop_weights(self, number: int) -> None:
        """Remove the weights of a run."""
        weights_path(self.path, number).unlink(missing_ok=True)

    def read_refit(self, number: int) -> dict[str, Tensor] | None:
        """Weights of the refit of a run; None: there are none, or they cannot be read."""
        try:
            return read_weights(weights_path(self.path, number, refit=True))
        except EsperError:
            return None

    def checkpoint(self, number: int) -> Path:
        """File of a run under way."""
        return self.path / CHECKPOINTS / f"{number:04d}.safetensors"


def weights_path(run: Path, number: int, refit: bool = False) -> Path:
    """File of the weights of a network; `refit`: trained once more, on all samples but test's."""
    return run / GROWN_NETWORKS / f"{number:04d}{'.refit' if refit else ''}.safetensors"


def read_weights(
    path: Path, lack: str = "no weights that can be read", advice: str = ""
) -> dict[str, Tensor]:
    """Read the weights of a network; `lack`, `advice`: what is said if they cannot be read."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(str(path))
    except (SafetensorError, OSError) as error:
        raise EsperError(f"{path}: {lack} ({error}){advice}") from error


def require_grow_folder(path: Path) -> None:
    """Raise unless a folder holds an `esper.grow` run."""
    require_folder(path, "name the folder of a run, see esper runs")
    if not (path / GROW).is_file():
        raise EsperError(f"{path} holds no run of esper.grow: it has no {GROW}")


def read_info(path: Path) -> GrowInfo:
    """Read what a run was started with."""
    require_grow_folder(path)
    document = read_document(path / GROW)
    if isinstance(document, dict):
        require_schema(path / GROW, document.get("schema"), run_files.GROW_SCHEMA)
    return read_record(GrowInfo, document, str(path / GROW))


def read_table(path: Path) -> Table:
    """Read the table of runs; an empty one if none was saved."""
    if not (path / SEARCH).exists():
        return Table()
    return read_record(Table, read_document(path / SEARCH), str(path / SEARCH))


def read_sources(files: Sequence[str | os.PathLike[str]]) -> dict[str, bytes]:
    """Files that a run is to keep a copy of, by name; those of the same name get a number."""
    if isinstance(files, str | os.PathLike):
        raise EsperError(f"sources={os.fspath(files)!r}: give a list of files, as in ['model.py']")
    found: dict[str, bytes] = {}
    for file in files:
        if not isinstance(file, str | os.PathLike):
            raise EsperError(f"sources: {shown(file)} is no path; give files, as in ['model.py']")
        path = Path(file)
        name = path.name if path.name not in found else f"{path.stem}-{len(found)}{path.suffix}"
        try:
            found[name] = path.read_bytes()
        except OSError as error:
            raise EsperError(
                f"sources: cannot read {os.fspath(file)!r} ({error.strerror}); name files that "
                f"exist, or leave it out"
            ) from error
    return found
