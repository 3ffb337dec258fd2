"""What an audit found, in a few numbers.

Shape letters: C contexts, H hosts, K topologies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esper.audit.records import Audit, AuditInfo
from esper.leyline.arrays import Doubles, Floats


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One topology, or one for every context."""

    label: str
    topology: str
    """What it holds; empty if it differs between contexts."""
    params: float
    """Mean parameters, host included."""
    accuracy: float
    """Mean final accuracy on `val_score`."""
    test: float
    """Mean accuracy on `test`."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How much final accuracies differ, as standard deviations averaged over contexts."""

    topologies: float
    """Of means over hosts, without what the noise of hosts adds to them."""
    hosts: float
    """Between hosts, of one topology."""


def summary_rows(audit: Audit) -> list[SummaryRow]:
    """The bare host, the median and the best topology, and the best one of every context.

    Topologies are ranked by their mean accuracy over contexts and hosts. The best of a context is
    chosen on even hosts and judged on odd ones, if there are two hosts or more.
    """
    done_C = finished_contexts(audit)
    if not done_C.any():
        return []
    info = audit.info
    final_CHK = audit.records.accuracy_CHKT[done_C, ..., -1].astype(np.float64)
    test_CHK = audit.records.test_CHK[done_C].astype(np.float64)
    mean_K = final_CHK.mean(axis=(0, 1))
    by_rank = np.argsort(mean_K, kind="stable")
    params_K = np.array(info.params, dtype=np.float64)

    def row(label: str, k: int) -> SummaryRow:
        name, test = describe(info, k), float(test_CHK[..., k].mean())
        return SummaryRow(label, name, float(params_K[k]), float(mean_K[k]), test)

    rows = [
        row("bare host", 0),
        row("median", int(by_rank[len(by_rank) // 2])),
        row("best overall", int(by_rank[-1])),
    ]
    if info.hosts >= 2:
        best_C = final_CHK[:, ::2].mean(axis=1).argmax(axis=1)
        at = np.arange(len(best_C))
        judged, tested = (
            values[:, 1::2].mean(axis=1)[at, best_C] for values in (final_CHK, test_CHK)
        )
        size = float(params_K[best_C].mean())
        rows.append(
            SummaryRow("best per context", "", size, float(judged.mean()), float(tested.mean()))
        )
    return rows


def spread(audit: Audit) -> Spread:
    """Standard deviation of final accuracies over topologies and over hosts."""
    done_C = finished_contexts(audit)
    final_CHK = audit.records.accuracy_CHKT[done_C, ..., -1].astype(np.float64)
    if not done_C.any() or audit.info.hosts < 2:
        return Spread(float("nan"), float("nan"))
    noise_C = final_CHK.var(axis=1, ddof=1).mean(axis=1)
    means_C = final_CHK.mean(axis=1).var(axis=1, ddof=1) if final_CHK.shape[2] > 1 else 0 * noise_C
    signal_C = np.maximum(0.0, means_C - noise_C / audit.info.hosts)
    return Spread(float(np.sqrt(signal_C).mean()), float(np.sqrt(noise_C).mean()))


def planted_minus_grown(planted: Audit, grown: Audit) -> Doubles:
    """Final accuracy of planted minus grown topologies, paired: `[N]` of finished (C, H, K)."""
    done_C = finished_contexts(planted) & finished_contexts(grown)
    first: Floats = planted.records.accuracy_CHKT[done_C][:, :, list(planted.info.grown), -1]
    second = grown.records.accuracy_CHKT[done_C][..., -1]
    return (first.astype(np.float64) - second).ravel()


def finished_contexts(audit: Audit) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """`[C]`: contexts that were run."""
    return np.isfinite(audit.contexts.budget_C)


def describe(info: AuditInfo, k: int) -> str:
    """A topology in words, as `esper compare` takes it: `r0c0=norm,r0c2=conv_light`."""
    held = (
        f"{slot}={name}" for slot, name in zip(info.slots, info.topologies[k], strict=True) if name
    )
    return ",".join(held) or "empty"
