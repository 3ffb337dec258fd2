"""`esper_lab.bench`: the records of audits as a benchmark that needs no GPU.

    from esper_lab import bench

    bench.names()                                    # records that ship with the package
    records = bench.load("digits_impaired")          # or the folder of an `esper audit`
    records.query(topology=("conv_light", "", ""), context=3, host=0).accuracy
    print(bench.leaderboard_table(bench.leaderboard(records)))

How to enter a policy: docs/bench.md.
"""

from __future__ import annotations

import os
from pathlib import Path

from esper_lab.audit.bench import Bench, Curve, EpisodeOutcomes, SimulatedEpisodes
from esper_lab.audit.cases import TERMS, TermsSpec
from esper_lab.audit.leaderboard import BUILT_IN, Row, leaderboard, run_policy
from esper_lab.audit.packed import find_records, pack_audit, shipped_names, unpack_audit
from esper_lab.audit.records import read_audit
from esper_lab.audit.tables import leaderboard_table

__all__ = [
    "BUILT_IN",
    "Bench",
    "Curve",
    "EpisodeOutcomes",
    "Row",
    "SimulatedEpisodes",
    "TermsSpec",
    "leaderboard",
    "leaderboard_table",
    "load",
    "names",
    "pack",
    "run_policy",
    "unpack",
]


def names() -> tuple[str, ...]:
    """Names of the records that ship with the package."""
    return shipped_names()


def load(records: str | os.PathLike[str], terms: TermsSpec = TERMS) -> Bench:
    """Read shipped records by name, or the folder of an audit; `terms`: distribution of prices and
    caps."""
    return Bench(read_audit(find_records(os.fspath(records))), terms)


def pack(folder: str | os.PathLike[str], target: str | os.PathLike[str]) -> Path:
    """Write the records of an audit folder into a new folder of two small files."""
    return pack_audit(Path(folder), Path(target))


def unpack(records: str | os.PathLike[str], target: str | os.PathLike[str]) -> Path:
    """Write shipped or packed records as a new audit folder, which `esper audit --live` takes."""
    return unpack_audit(find_records(os.fspath(records)), Path(target))
