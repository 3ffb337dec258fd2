"""Cases of an audit: a context with a price and caps, as a policy sees it before training.

Price and caps do not change how a planted topology trains, so every recorded context serves for
many of them.

Shape letters: N cases, C contexts, H hosts, K topologies, T observations.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from esper.audit.records import Audit, AuditInfo, scores
from esper.leyline.arrays import ArrayStruct, Bools, Doubles, Floats, Ints
from esper.leyline.context import VARIED, Range
from esper.leyline.errors import EsperError
from esper.leyline.streams import stream_keys


@dataclass(frozen=True, slots=True)
class TermsSpec:
    """Distribution of prices and caps."""

    price: Range = VARIED.price
    """Log-uniform: factor on the task's price of growth."""
    capped: float = VARIED.capped
    """Share of cases with a parameter and a MAC cap."""
    cap: Range = VARIED.cap
    """Uniform: where the caps are on the log scale between the bare host (0) and the largest
    recorded topology (1)."""


TERMS: Final = TermsSpec()
"""Prices and caps of the varied contexts."""


@dataclass(frozen=True, slots=True, eq=False)
class Observed(ArrayStruct):
    """All that is known before training."""

    price_N: Doubles
    params_cap_N: Doubles
    """Most parameters, host included; inf: no cap."""
    macs_cap_N: Doubles
    budget_N: Doubles
    """Compute in training runs of the bare host."""
    groups_N: Ints
    """Classes to tell apart."""
    samples_N: Ints
    """Training samples in use."""
    learning_rate_N: Doubles
    """Factor on the task's rates."""

    def take(self, index_N: Ints) -> Observed:
        """The given cases, in that order."""
        return Observed(*(getattr(self, f.name)[index_N] for f in fields(self)))


def uniform(seed: int, *path: str | int | Ints) -> Doubles:
    """Uniform numbers in [0, 1), one for each stream."""
    return np.asarray((stream_keys(seed, "audit", *path) >> np.uint64(11)) * 2.0**-53)


def draw_cases(audit: Audit, context_N: Ints, draw_N: Ints, spec: TermsSpec, seed: int) -> Observed:
    """Draw price and caps for contexts; `draw_N` numbers the draws of a context."""
    info, contexts = audit.info, audit.contexts

    def drawn(name: str) -> Doubles:
        return uniform(seed, "context", context_N, "draw", draw_N, name)

    capped_N = drawn("capped") < spec.capped
    caps = []
    for name, sizes in (("parameter cap", info.params), ("MAC cap", info.macs)):
        span = Range(float(max(1, sizes[0])), float(max(1, *sizes)))
        cap_N = np.ceil(span.log_uniform(spec.cap.uniform(drawn(name))))
        caps.append(np.where(capped_N, np.maximum(cap_N, sizes[0]), np.inf))
    return Observed(
        price_N=spec.price.log_uniform(drawn("price")),
        params_cap_N=caps[0],
        macs_cap_N=caps[1],
        budget_N=contexts.budget_C[context_N],
        groups_N=contexts.groups_C[context_N],
        samples_N=contexts.samples_C[context_N],
        learning_rate_N=contexts.learning_rate_C[context_N],
    )


def within_caps(info: AuditInfo, observed: Observed) -> Bools:
    """`[N, K]`: topologies that respect both caps."""
    fits_NK = np.array(info.params) <= observed.params_cap_N[:, None]
    return np.asarray(fits_NK & (np.array(info.macs) <= observed.macs_cap_N[:, None]))


def recorded(audit: Audit) -> Bools:
    """`[C, K]`: topologies whose final accuracy is known on every host."""
    known_CHK = np.isfinite(audit.records.accuracy_CHKT[..., -1])
    known_CHK &= np.isfinite(audit.records.compute_CHKT[..., -1])
    return np.asarray(known_CHK.all(axis=1))


def recorded_contexts(audit: Audit) -> Ints:
    """Indices of the contexts that were run; raises unless there are two or more."""
    found = np.flatnonzero(recorded(audit)[:, 0])
    if len(found) < 2:
        raise EsperError(
            f"audit of {audit.info.task}: {len(found)} of {audit.info.contexts} contexts have "
            f"records of the bare host; choosing and judging need two or more, so run more"
        )
    return found


def host_halves(hosts: int) -> tuple[Ints, Ints]:
    """Two halves of the hosts, one to choose topologies on and one to judge them on."""
    if hosts < 2:
        raise EsperError(
            f"audit with {hosts} host: topologies are chosen on one half of the hosts and judged "
            f"on the other, so run 2 hosts or more"
        )
    index_H = np.arange(hosts)
    return index_H[: hosts // 2], index_H[hosts // 2 :]


# ---- scores ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Finals(ArrayStruct):
    """Means over hosts at the end of training; NaN where there is no record."""

    accuracy_CK: Doubles
    rent_CK: Doubles
    """At price 1: a score is accuracy minus price times rent."""
    compute_CK: Doubles
    test_CK: Doubles

    def take(self, index_C: Ints) -> Finals:
        """The given contexts, in that order."""
        return Finals(*(getattr(self, f.name)[index_C] for f in fields(self)))

    def scores(self, context_N: Ints, price_N: Doubles) -> Doubles:
        """`[N, K]`: scores in these contexts at these prices."""
        return np.asarray(self.accuracy_CK[context_N] - price_N[:, None] * self.rent_CK[context_N])


def final_means(audit: Audit, host_H: Ints) -> Finals:
    """Final figures of all contexts, averaged over the given hosts."""
    records = audit.records
    compute_CK = _host_mean(records.compute_CHKT[..., -1], host_H)
    return Finals(
        accuracy_CK=_host_mean(records.accuracy_CHKT[..., -1], host_H),
        rent_CK=rent(audit.info, compute_CK),
        compute_CK=compute_CK,
        test_CK=_host_mean(records.test_CHK, host_H),
    )


def _host_mean(values_CHK: Floats, host_H: Ints) -> Doubles:
    return np.asarray(values_CHK[:, host_H].astype(np.float64).mean(axis=1))


def rent(info: AuditInfo, compute: Floats | Doubles) -> Doubles:
    """Rent `[..., K]` at price 1 of all topologies that took this compute `[..., K]`."""
    return scores(info, np.zeros_like(compute, dtype=np.float64), compute, price=-1.0)


def expected_compute(info: AuditInfo, budget_N: Doubles) -> Doubles:
    """`[N, K]`: compute of a whole run as known before it, in runs of the bare host."""
    cost_K = np.array(info.cost)
    if info.spec.clock == "compute":
        return np.broadcast_to(budget_N[:, None], (len(budget_N), len(cost_K))).copy()
    return np.broadcast_to(cost_K, (len(budget_N), len(cost_K))).copy()


def best_available(value_NK: Doubles, available_NK: Bools) -> Ints:
    """Index `[N]` of the available topology of highest value; the first of equals, NaN last."""
    usable_NK = np.where(available_NK & ~np.isnan(value_NK), value_NK, -np.inf)
    return np.asarray(usable_NK.argmax(axis=1), dtype=np.int64)
