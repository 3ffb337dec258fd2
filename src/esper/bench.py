"""`esper.bench`: the records of audits as a benchmark that needs no GPU.

    from esper import bench

    records = bench.load("out/audit_digits_impaired_small")
    records.query(topology=("conv_light", "", ""), context=3, host=0).accuracy
    print(bench.leaderboard_table(bench.leaderboard(records)))

How to enter a policy: docs/audit-analysis.md.
"""

from __future__ import annotations

import os
from pathlib import Path

from esper.audit.bench import Bench, Curve, EpisodeOutcomes, SimulatedEpisodes
from esper.audit.cases import TERMS, TermsSpec
from esper.audit.leaderboard import Row, leaderboard, run_policy
from esper.audit.records import read_audit
from esper.audit.tables import leaderboard_table

__all__ = [
    "Bench",
    "Curve",
    "EpisodeOutcomes",
    "Row",
    "SimulatedEpisodes",
    "TermsSpec",
    "leaderboard",
    "leaderboard_table",
    "load",
    "run_policy",
]


def load(folder: str | os.PathLike[str], terms: TermsSpec = TERMS) -> Bench:
    """Read the records of an audit; `terms`: distribution of prices and caps."""
    return Bench(read_audit(Path(folder)), terms)
