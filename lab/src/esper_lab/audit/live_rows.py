"""Parquet files of live episodes: one per policy and kind, one row per episode.

    context, host, draw                int32          the case; draw: number of price and caps
    price, params_cap, macs_cap        double         inf: no cap
    topology                           int32          number of what was planted; -1: not recorded
    planted, final                     list<string>   blueprint of every slot, "" for an empty one
    accuracy, test                     double         on `val_score` and `test`, at the end
    compute                            double         in training runs of the host
    steps                              int32          trained before STOP or the end
    params, macs                       int64          at the end, host included
    score                              double         at the case's price
    pruned, rollbacks                  int32

The metadata of a file holds the version of this schema, the identity of the audit, and the settings
that results depend on.

Shape letters: N episodes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import parquet as pq

from esper.leyline.arrays import ArrayStruct, Bools, Doubles, Ints
from esper.leyline.codec import Json
from esper.leyline.errors import EsperError, shorten
from esper.storage.atomic import write_atomic
from esper.storage.sealed_json import require_schema
from esper_lab.audit.rows import AUDIT_KEY

LIVE: Final = "live"
"""Folder of the files, within that of an audit."""
SCHEMA: Final = 1
"""Version of the files."""
SCHEMA_KEY: Final = b"esper_live_schema"
SETTINGS_KEY: Final = b"esper_live_settings"


class LiveKind(Enum):
    """What episodes are for; the value is their folder within `LIVE`."""

    CASES = ""
    """Tables and gates: price and caps are drawn."""
    PICTURE = "picture"
    """The picture: some prices, no caps. `draw` numbers prices, hosts within each."""


@dataclass(frozen=True, slots=True, eq=False)
class LiveRows(ArrayStruct):
    """Episodes of one policy that were trained."""

    policy: str
    context_N: Ints
    host_N: Ints
    draw_N: Ints
    """Number of the draw of price and caps."""
    price_N: Doubles
    params_cap_N: Doubles
    macs_cap_N: Doubles
    topology_N: Ints
    """What was planted, by its number in the audit; -1: not recorded."""
    planted: tuple[tuple[str, ...], ...]
    final: tuple[tuple[str, ...], ...]
    """Seeds at the end."""
    accuracy_N: Doubles
    test_N: Doubles
    compute_N: Doubles
    """In training runs of the host."""
    steps_N: Ints
    """Trained before STOP or the end."""
    params_N: Ints
    macs_N: Ints
    score_N: Doubles
    pruned_N: Ints
    rollbacks_N: Ints

    def __len__(self) -> int:
        return len(self.context_N)

    def take(self, index_N: Ints) -> LiveRows:
        """The given episodes, in that order."""
        changes: dict[str, Any] = {
            f.name: getattr(self, f.name)[index_N] for f in fields(self) if f.name.endswith("_N")
        }
        for name in ("planted", "final"):
            changes[name] = tuple(getattr(self, name)[i] for i in index_N.tolist())
        return replace(self, **changes)

    def where(self, chosen_N: Bools) -> LiveRows:
        """The episodes of a mask."""
        return self.take(np.flatnonzero(chosen_N))


def joined(parts: Sequence[LiveRows]) -> LiveRows:
    """Rows of one policy, ordered by context and draw."""
    whole = concatenated(parts)
    return whole.take(np.lexsort((whole.draw_N, whole.context_N)))


def concatenated(parts: Sequence[LiveRows]) -> LiveRows:
    """Rows of one policy, one part after the other."""
    first, changes = parts[0], dict[str, Any]()
    for f in fields(first):
        values = [getattr(part, f.name) for part in parts]
        if f.name.endswith("_N"):
            changes[f.name] = np.concatenate(values)
        elif f.name != "policy":
            changes[f.name] = sum(values, ())
    return replace(first, **changes)


# ---- files -------------------------------------------------------------------------------------

_INTS: Final = ("context", "host", "draw", "topology", "steps", "pruned", "rollbacks")
_WIDE: Final = ("params", "macs")
_DOUBLES: Final = ("price", "params_cap", "macs_cap", "accuracy", "test", "compute", "score")
_SEEDS: Final = ("planted", "final")
LIVE_SCHEMA: Final = pa.schema(
    [
        *((name, pa.int32()) for name in _INTS),
        *((name, pa.int64()) for name in _WIDE),
        *((name, pa.float64()) for name in _DOUBLES),
        *((name, pa.list_(pa.string())) for name in _SEEDS),
    ]
)


def live_path(folder: Path, policy: str, kind: LiveKind = LiveKind.CASES) -> Path:
    """File of a policy.

    >>> live_path(Path("out"), "predict, optimistic").name
    'predict_optimistic.parquet'
    """
    return folder / LIVE / kind.value / f"{policy.replace(', ', '_')}.parquet"


def live_files(folder: Path, kind: LiveKind = LiveKind.CASES) -> list[Path]:
    """Files of live policies in the folder of an audit, by name."""
    return sorted((folder / LIVE / kind.value).glob("*.parquet"))


def write_live(path: Path, rows: LiveRows, settings: dict[str, Json], audit: str) -> None:
    """Write the file of a policy whole or not at all; `audit`: identity of the audit."""
    columns = {name: getattr(rows, f"{name}_N") for name in (*_INTS, *_WIDE, *_DOUBLES)}
    columns |= {name: [list(seeds) for seeds in getattr(rows, name)] for name in _SEEDS}
    arrays = [pa.array(columns[f.name], f.type) for f in LIVE_SCHEMA]
    described = json.dumps({**settings, "policy": rows.policy}, sort_keys=True)
    metadata = {SCHEMA_KEY: str(SCHEMA), AUDIT_KEY: audit, SETTINGS_KEY: described}
    table = pa.Table.from_arrays(arrays, schema=LIVE_SCHEMA).replace_schema_metadata(metadata)
    stream = pa.BufferOutputStream()
    pq.write_table(table, stream, compression="zstd", write_page_checksum=True)
    write_atomic(path, stream.getvalue().to_pybytes())


def read_live(path: Path, audit: str | None = None) -> tuple[LiveRows, dict[str, Json]]:
    """Read the file of a policy and its settings; any problem raises in one line.

    `audit`: identity of the audit it must belong to.
    """
    try:
        # pyarrow cannot open paths that are not UTF-8
        with path.open("rb") as raw, pq.ParquetFile(raw, page_checksum_verification=True) as file:
            settings = _checked_settings(path, file.schema_arrow.metadata or {}, audit)
            table = file.read().cast(LIVE_SCHEMA)
        return _rows(table, str(settings.get("policy", path.stem))), settings
    except EsperError:
        raise
    except FileNotFoundError:
        raise EsperError(f"{path} is missing") from None
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        what = shorten(" ".join(str(error).split()), 120)
        raise EsperError(f"{path} is damaged ({what}): remove that file to run it again") from None


def _checked_settings(
    path: Path, metadata: dict[bytes, bytes], audit: str | None
) -> dict[str, Json]:
    schema = metadata.get(SCHEMA_KEY, b"").decode(errors="replace")
    if not schema.isdecimal():
        raise EsperError(f"{path} is not a file of live episodes: remove it")
    require_schema(path, int(schema), SCHEMA)
    if audit is not None and metadata.get(AUDIT_KEY, b"").decode(errors="replace") != audit:
        raise EsperError(f"{path} belongs to another audit: remove it to run it again")
    settings = json.loads(metadata.get(SETTINGS_KEY, b"{}"))
    if not isinstance(settings, dict):
        raise ValueError("its settings are not an object")
    return settings


def _rows(table: pa.Table, policy: str) -> LiveRows:
    if any(column.null_count for column in table.columns):
        raise ValueError("empty entries")
    columns: dict[str, Any] = {
        f"{name}_N": table.column(name).to_numpy().astype(np.int64) for name in (*_INTS, *_WIDE)
    }
    columns |= {f"{name}_N": table.column(name).to_numpy().copy() for name in _DOUBLES}
    columns |= {
        name: tuple(tuple(seeds) for seeds in table.column(name).to_pylist()) for name in _SEEDS
    }
    return LiveRows(policy=policy, **columns)
