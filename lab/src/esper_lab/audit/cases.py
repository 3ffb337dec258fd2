"""Cases of an audit: a context with a price and caps, as a policy sees it before training.

Price and caps do not change how a planted topology trains, so every recorded context serves for
many of them.

Shape letters: N cases, C contexts, H hosts, K topologies, J options, T observations.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from esper.leyline.arrays import ArrayStruct, Bools, Doubles, Floats, Ints
from esper.leyline.context import VARIED, Range
from esper.leyline.errors import EsperError
from esper.leyline.streams import stream_keys
from esper_lab.audit.records import Audit, AuditInfo, scores


@dataclass(frozen=True, slots=True)
class TermsSpec:
    """Distribution of prices and caps."""

    price: Range = VARIED.price
    """Log-uniform: factor on the task's price of growth."""
    capped: float = VARIED.capped
    """Share of cases with a parameter and a MAC cap."""
    cap: Range = VARIED.cap
    """Uniform: where the caps are on the log scale between the host (0) and the largest
    recorded topology (1)."""


TERMS: Final = TermsSpec()
"""Prices and caps of the varied contexts."""
STOP_STEPS: Final = 8
"""Numbers of steps after which training may be stopped, in choices made before it."""


@dataclass(frozen=True, slots=True, eq=False)
class Observed(ArrayStruct):
    """All that is known before training."""

    price_N: Doubles
    params_cap_N: Doubles
    """Most parameters, host included; inf: no cap."""
    macs_cap_N: Doubles
    budget_N: Doubles
    """Compute in training runs of the host."""
    groups_N: Ints
    """Number of classes."""
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
            f"records of the host; choosing and judging need two or more, so run more"
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
class Options(ArrayStruct):
    """What can be chosen before training: a topology, and after how many steps it stops."""

    topology_J: Ints
    steps_J: Ints

    @staticmethod
    def trained_to_the_end(info: AuditInfo) -> Options:
        """Every topology, without STOP."""
        topologies = len(info.topologies)
        return Options(np.arange(topologies), np.full(topologies, info.steps))

    @staticmethod
    def with_stop(info: AuditInfo, most: int = STOP_STEPS) -> Options:
        """Every topology with STOP after each of `most` numbers of steps, evenly spaced; the last
        is the end."""
        parts = min(most, info.steps)
        stops = np.unique(np.ceil(info.steps * np.arange(1, parts + 1) / parts).astype(np.int64))
        topologies = len(info.topologies)
        return Options(np.repeat(np.arange(topologies), len(stops)), np.tile(stops, topologies))


@dataclass(frozen=True, slots=True, eq=False)
class Finals(ArrayStruct):
    """Means over hosts where training ends, of every option; NaN where there is no record.

    J is K unless STOP is among the options.
    """

    accuracy_CJ: Doubles
    rent_CJ: Doubles
    """At price 1: a score is accuracy minus price times rent."""
    compute_CJ: Doubles
    test_CJ: Doubles

    def take(self, index_C: Ints) -> Finals:
        """The given contexts, in that order."""
        return Finals(*(getattr(self, f.name)[index_C] for f in fields(self)))

    def scores(self, context_N: Ints, price_N: Doubles) -> Doubles:
        """`[N, J]`: scores in these contexts at these prices."""
        return np.asarray(self.accuracy_CJ[context_N] - price_N[:, None] * self.rent_CJ[context_N])


def final_means(audit: Audit, host_H: Ints, options: Options | None = None) -> Finals:
    """Final figures of all contexts, averaged over the given hosts; no options: the topologies.

    Test accuracy is recorded at the end only. Of a run that stops before, it is taken to be lower
    by as much as the accuracy on `val_score` is.
    """
    options = options or Options.trained_to_the_end(audit.info)
    records = audit.records
    at = slice(None), slice(None), options.topology_J, options.steps_J
    accuracy_CHJ = records.accuracy_CHKT[at]
    lost_CHJ = records.accuracy_CHKT[:, :, options.topology_J, -1] - accuracy_CHJ
    compute_CJ = _host_mean(records.compute_CHKT[at], host_H)
    return Finals(
        accuracy_CJ=_host_mean(accuracy_CHJ, host_H),
        rent_CJ=option_rent(audit.info, options, compute_CJ),
        compute_CJ=compute_CJ,
        test_CJ=_host_mean(records.test_CHK[:, :, options.topology_J] - lost_CHJ, host_H),
    )


def _host_mean(values_CHJ: Floats, host_H: Ints) -> Doubles:
    return np.asarray(values_CHJ[:, host_H].astype(np.float64).mean(axis=1))


def rent(info: AuditInfo, compute: Floats | Doubles) -> Doubles:
    """Rent `[..., K]` at price 1 of all topologies that took this compute `[..., K]`."""
    return scores(info, np.zeros_like(compute, dtype=np.float64), compute, price=-1.0)


def option_rent(info: AuditInfo, options: Options, compute_J: Doubles) -> Doubles:
    """Rent `[..., J]` at price 1 of options that took this compute `[..., J]`."""
    size_K = rent(info, np.ones(len(info.topologies)))
    return np.asarray(size_K[options.topology_J] + info.constants.c_f * (compute_J - 1.0))


def expected_compute(info: AuditInfo, budget_N: Doubles) -> Doubles:
    """`[N, K]`: compute of a whole run as known before it, in runs of the host."""
    cost_K = np.array(info.cost)
    if info.spec.clock == "compute":
        return np.broadcast_to(budget_N[:, None], (len(budget_N), len(cost_K))).copy()
    return np.broadcast_to(cost_K, (len(budget_N), len(cost_K))).copy()


def best_available(value_NK: Doubles, available_NK: Bools) -> Ints:
    """Index `[N]` of the available topology (or option) of highest value; the first of equals, NaN
    last."""
    usable_NK = np.where(available_NK & ~np.isnan(value_NK), value_NK, -np.inf)
    return np.asarray(usable_NK.argmax(axis=1), dtype=np.int64)
