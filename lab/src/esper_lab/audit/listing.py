"""The records that ship with the package, and what they hold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from esper_lab.audit.bench import Bench
from esper_lab.audit.cases import TERMS, final_means
from esper_lab.audit.packed import SHIPPED, shipped_names, size_bytes
from esper_lab.audit.planners import mean_price
from esper_lab.audit.records import read_audit


@dataclass(frozen=True, slots=True)
class ListedRecords:
    """Shipped records in a few numbers; accuracies and scores are means over contexts and hosts."""

    name: str
    task: str
    contexts: int
    topologies: int
    hosts: int
    steps: int
    device: str
    bytes: int
    bare_score: float
    """Of the host, at the mean price."""
    bare_test: float
    """Test accuracy of the host."""
    best_test: float
    """The highest mean test accuracy of a topology."""


def list_records() -> tuple[ListedRecords, ...]:
    """All that ships."""
    return tuple(listed(name, SHIPPED / name) for name in shipped_names())


def listed(name: str, folder: Path) -> ListedRecords:
    """The records of a folder."""
    bench = Bench(read_audit(folder))
    finals = final_means(bench.audit, np.arange(bench.hosts)).take(bench.context_C)
    bare_C = finals.accuracy_CJ[:, 0] - mean_price(TERMS.price) * finals.rent_CJ[:, 0]
    test_K = finals.test_CJ.mean(axis=0)
    return ListedRecords(
        name=name,
        task=bench.info.task,
        contexts=len(bench.context_C),
        topologies=len(bench.topologies),
        hosts=bench.hosts,
        steps=bench.info.steps,
        device=bench.info.device,
        bytes=size_bytes(folder),
        bare_score=float(bare_C.mean()),
        bare_test=float(test_K[0]),
        best_test=float(np.nanmax(test_K)),
    )
