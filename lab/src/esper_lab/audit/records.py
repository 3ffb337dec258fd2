"""Records of an audit: the learning curve of every (context, host, topology), and what they cost.

An audit folder holds `audit.json` (what was run) and one Parquet file per context (`rows.py`),
written whole or not at all; a packed one has a single file for all (`packed.py`). In memory all of
it is arrays.

Scores are not stored: they follow from accuracy, size, compute and a price (`scores`).

Shape letters: C contexts, H hosts (weights and order of batches), K topologies, T observations
(before the first step and after each), S slots.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from esper.leyline.arrays import ArrayStruct, Bools, Doubles, Floats, Ints
from esper.leyline.codec import Json, read_record, to_json
from esper.leyline.context import ContextSpec
from esper.leyline.errors import EsperError
from esper.leyline.prices import ScoreConstants
from esper.storage import run_files
from esper.storage.atomic import write_atomic
from esper.storage.run_files import PACKED as PACKED
from esper.storage.run_files import RECORDS as RECORDS
from esper.storage.sealed_json import checksum_of, read_document, require_schema, seal
from esper_lab.audit.rows import (
    CURVES,
    ContextRows,
    RowShape,
    drawn_names,
    read_packed,
    read_rows,
)

INFO: Final = run_files.AUDIT
MAY_CHANGE: Final = ("contexts", "grown", "device")
"""Fields of `AuditInfo` that results of a context do not depend on; of the device only the name of
the model may change."""


@dataclass(frozen=True, slots=True)
class AuditInfo:
    """What an audit ran."""

    task: str
    seed: int
    contexts: int
    hosts: int
    spec: ContextSpec
    """Distribution that contexts were drawn from."""
    slots: tuple[str, ...]
    blueprints: tuple[str, ...]
    topologies: tuple[tuple[str, ...], ...]
    """Blueprint of every slot, "" for an empty one; the first is the host."""
    host_params: int
    host_macs: int
    params: tuple[int, ...]
    """Of each topology, host included."""
    macs: tuple[int, ...]
    cost: tuple[float, ...]
    """Training compute of a batch of each topology, relative to the host's."""
    classes: int
    samples: int
    """Training samples of the task."""
    steps: int
    """T - 1."""
    constants: ScoreConstants
    """Price of growth at factor 1."""
    device: str
    versions: dict[str, str]
    schema: int = run_files.AUDIT_SCHEMA
    budgets: tuple[float, ...] = ()
    """Budgets of the contexts, in turn; empty: drawn from `spec`."""
    grown: tuple[int, ...] = ()
    """Topologies that were also grown."""
    settings: dict[str, str] = field(default_factory=dict)
    """Other settings that results depend on: batches, optimizer, precision."""


@dataclass(frozen=True, slots=True, eq=False)
class AuditContexts(ArrayStruct):
    """Contexts that were drawn; price and caps are left to the analysis, as they do not change the
    training of a planted topology."""

    budget_C: Doubles
    """Compute in training runs of the host."""
    groups_C: Ints
    """Number of classes."""
    samples_C: Ints
    """Training samples in use."""
    learning_rate_C: Doubles
    """Factor on the task's rates."""
    pixel_noise_C: Doubles
    """Hidden from policies, as are the following."""
    permuted_C: Bools
    label_noise_C: Doubles


@dataclass(frozen=True, slots=True, eq=False)
class AuditRecords(ArrayStruct):
    """All that an audit measured; NaN where a context was not run yet."""

    accuracy_CHKT: Floats
    """On `val_score`: what scores are made of."""
    control_CHKT: Floats
    """Accuracy on `val_control`: what policies see."""
    loss_CHKT: Floats
    """Loss on `val_control`."""
    train_loss_CHKT: Floats
    """Mean over the step; NaN before the first."""
    compute_CHKT: Floats
    """Spent so far, in training runs of the host."""
    test_CHK: Floats
    """Accuracy on `test`, at the end."""
    contribution_CHKS: Floats
    """Leave-one-out contribution of each seed on `val_control` at the end; NaN for empty slots."""


@dataclass(frozen=True, slots=True, eq=False)
class Audit:
    """An audit folder in memory."""

    info: AuditInfo
    contexts: AuditContexts
    records: AuditRecords


def scores(
    info: AuditInfo, accuracy: Floats | Doubles, compute: Floats | Doubles, price: float
) -> Doubles:
    """Scores `[..., K]` of accuracies `[..., K]` that took compute `[..., K]`, at a price factor.

    >>> # accuracy - price * (c_p log2(1 + dP / P0) + c_m log2(1 + dM / M0) + c_f (compute - 1))
    """
    params_K = np.array(info.params) / info.host_params - 1.0
    macs_K = np.array(info.macs) / max(1, info.host_macs) - 1.0
    rent = info.constants.rent(params_K, macs_K, np.asarray(compute, dtype=np.float64) - 1.0)
    return np.asarray(np.asarray(accuracy, dtype=np.float64) - price * rent)


# ---- files -------------------------------------------------------------------------------------


def read_audit(path: Path) -> Audit:
    """Read an audit folder; contexts that are missing are NaN (0 in columns of integers)."""
    return _read(path, read_info(path), grown=False)


def read_grown(path: Path) -> Audit:
    """As `read_audit`, of the topologies that were grown instead of planted; K counts only them.

    A seed that was not blended in the end is missing from the network, though `info` counts it.
    """
    info = read_info(path)
    at = info.grown
    kept: dict[str, Any] = {
        name: tuple(getattr(info, name)[k] for k in at)
        for name in ("topologies", "params", "macs", "cost")
    }
    audit = _read(path, info, grown=True)
    return replace(audit, info=replace(info, **kept))


def rows_path(folder: Path, context: int, grown: bool = False) -> Path:
    """File of a context."""
    return folder / RECORDS / f"{'grown' if grown else 'context'}-{context:04d}.parquet"


def row_shape(info: AuditInfo, context: int, grown: bool = False) -> RowShape:
    """What the file of a context has to hold."""
    topologies = info.grown if grown else tuple(range(len(info.topologies)))
    return RowShape(context, info.hosts, topologies, info.steps, len(info.slots), identity_of(info))


def identity_of(info: AuditInfo) -> str:
    """Hash of all that the results of a context depend on."""
    return checksum_of({k: v for k, v in info_json(info).items() if k not in MAY_CHANGE})[:16]


def info_json(info: AuditInfo) -> dict[str, Json]:
    """`AuditInfo` as JSON data."""
    values = ((f.name, getattr(info, f.name)) for f in fields(info))
    return {
        name: dict(value) if isinstance(value, dict) else to_json(value) for name, value in values
    }


def write_info(folder: Path, info: AuditInfo) -> None:
    """Write `audit.json` with a checksum."""
    write_atomic(folder / INFO, json.dumps(seal(info_json(info)), indent=1).encode())


def read_info(folder: Path) -> AuditInfo:
    """Read `audit.json`; any problem raises in one line."""
    path = folder / INFO
    if not path.exists():
        found = "no audit" if folder.is_dir() else "no such folder"
        raise EsperError(f"{folder}: {found}; give the --out folder of an `esper audit`")
    document = read_document(path)
    if isinstance(document, dict):
        require_schema(path, document.get("schema"), run_files.AUDIT_SCHEMA)
    return read_record(AuditInfo, document, str(path), versions=dict, settings=dict)


def read_contexts(path: Path, info: AuditInfo, grown: bool = False) -> Iterator[ContextRows]:
    """Rows of the contexts that are there, of a folder that is packed or not."""
    shape = row_shape(info, 0, grown)
    if not grown and is_packed(path):
        yield from read_packed(path / PACKED, shape, info.contexts)
        return
    for context in range(info.contexts):
        place = rows_path(path, context, grown)
        if place.exists():
            yield read_rows(place, replace(shape, context=context))


def is_packed(path: Path) -> bool:
    """Whether a folder has one file for all contexts."""
    return (path / PACKED).exists()


def _read(path: Path, info: AuditInfo, grown: bool) -> Audit:
    records, contexts = _empty(info, len(info.grown) if grown else len(info.topologies))
    for rows in read_contexts(path, info, grown):
        _take(records, contexts, rows)
    return Audit(info, contexts, records)


def _empty(info: AuditInfo, topologies: int) -> tuple[AuditRecords, AuditContexts]:
    """Arrays of an audit that nothing is known of yet."""

    def nan(*shape: int) -> Floats:
        return np.full((info.contexts, *shape), np.nan, dtype=np.float32)

    grid = (info.hosts, topologies)
    arrays = {f"{name}_CHKT": nan(*grid, info.steps + 1) for name in CURVES}
    arrays |= {"test_CHK": nan(*grid), "contribution_CHKS": nan(*grid, len(info.slots))}
    records = AuditRecords(**arrays)
    one = nan().astype(np.float64)
    none = np.zeros(info.contexts, dtype=np.int64)
    contexts = AuditContexts(
        budget_C=one,
        groups_C=none,
        samples_C=none.copy(),
        learning_rate_C=one.copy(),
        pixel_noise_C=one.copy(),
        permuted_C=none.astype(np.bool_),
        label_noise_C=one.copy(),
    )
    return records, contexts


def _take(records: AuditRecords, contexts: AuditContexts, rows: ContextRows) -> None:
    """Put the rows of a context in place."""
    at = rows.drawn.context
    for f in fields(records):
        name, _, letters = f.name.rpartition("_")
        getattr(records, f.name)[at] = getattr(rows, f"{name}_{letters[1:]}")
    for name in drawn_names():
        getattr(contexts, f"{name}_C")[at] = getattr(rows.drawn, name)
