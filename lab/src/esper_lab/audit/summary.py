"""What an audit found, in a few numbers.

Shape letters: C contexts, H hosts, K topologies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esper.leyline.arrays import Doubles, Floats, Ints
from esper_lab.audit.records import Audit, AuditInfo


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One topology, or one for every context."""

    label: str
    topology: str
    """What it holds, as chosen on all hosts; empty if it differs between contexts."""
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
    """The host, the median and the best topology, and the best one of every context.

    With two hosts or more, the best are chosen on one half of the hosts and judged on the other,
    both ways: the best of many on the hosts it was chosen on would flatter itself.
    """
    done_C = finished_contexts(audit)
    if not done_C.any():
        return []
    info = audit.info
    final_CHK = audit.records.accuracy_CHKT[done_C, ..., -1].astype(np.float64)
    test_CHK = audit.records.test_CHK[done_C].astype(np.float64)
    mean_K = final_CHK.mean(axis=(0, 1))
    by_rank = np.argsort(mean_K, kind="stable")
    median, best = int(by_rank[len(by_rank) // 2]), int(by_rank[-1])
    everywhere = np.zeros(len(final_CHK), dtype=np.int64)

    def row(label: str, name: str, choices: list[_Choice]) -> SummaryRow:
        return SummaryRow(
            label,
            name,
            float(np.mean([np.array(info.params)[k_C].mean() for k_C, _ in choices])),
            *(float(np.mean([_judged(v, *it) for it in choices])) for v in (final_CHK, test_CHK)),
        )

    whole = slice(None)
    halves = [(slice(0, None, 2), slice(1, None, 2)), (slice(1, None, 2), slice(0, None, 2))]
    if info.hosts < 2:
        halves = [(whole, whole)]
    one = [(everywhere + final_CHK[:, a].mean(axis=(0, 1)).argmax(), b) for a, b in halves]
    each = [(final_CHK[:, a].mean(axis=1).argmax(axis=1), b) for a, b in halves]
    return [
        row("host", describe(info, 0), [(everywhere, whole)]),
        row("median", describe(info, median), [(everywhere + median, whole)]),
        row("best overall", describe(info, best), one),
        row("best per context", "", each),
    ]


_Choice = tuple[Ints, slice]
"""Topology of every context, and the hosts that judge it."""


def _judged(value_CHK: Doubles, k_C: Ints, hosts: slice) -> float:
    """Mean of the chosen topologies over contexts and hosts."""
    return float(value_CHK[:, hosts].mean(axis=1)[np.arange(len(k_C)), k_C].mean())


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
    """Final accuracy of planted minus grown topologies, paired: `[C]` of finished contexts.

    Hosts and topologies of a context share its draws, so they count as one.
    """
    done_C = finished_contexts(planted) & finished_contexts(grown)
    first: Floats = planted.records.accuracy_CHKT[done_C][:, :, list(planted.info.grown), -1]
    second = grown.records.accuracy_CHKT[done_C][..., -1]
    return np.asarray((first.astype(np.float64) - second).mean(axis=(1, 2)))


def finished_contexts(audit: Audit) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """`[C]`: contexts that were run."""
    return np.isfinite(audit.contexts.budget_C)


def describe(info: AuditInfo, k: int) -> str:
    """A topology in words, as `esper compare` takes it: `r0c0=norm,r0c2=conv_light`."""
    held = (
        f"{slot}={name}" for slot, name in zip(info.slots, info.topologies[k], strict=True) if name
    )
    return ",".join(held) or "empty"
