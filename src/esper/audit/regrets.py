"""Regrets: how much worse than the best topology of each context is a simpler way of choosing?

The best of many topologies would flatter itself, so topologies are chosen on one half of the hosts
and judged on the other, both ways round, averaged. What is learnt from other contexts (`one`,
`table`, `regression`) is learnt on training contexts, on the choosing half of their hosts, and
judged on contexts that were held out (cross-validation over contexts).

Shape letters: C contexts, D draws of price and caps in a context, N = C * D cases, K topologies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from esper.audit.cases import (
    TERMS,
    Finals,
    Observed,
    TermsSpec,
    best_available,
    draw_cases,
    final_means,
    host_halves,
    recorded,
    recorded_contexts,
    within_caps,
)
from esper.audit.planners import (
    PRICE_BINS,
    BarePlanner,
    OnePlanner,
    Planner,
    RegressionPlanner,
    TablePlanner,
    mean_price,
)
from esper.audit.records import Audit, AuditContexts, AuditRecords
from esper.audit.search_lookup import SIZES, Searches, SearchPoint, asha, search_points
from esper.leyline.arrays import ArrayStruct, Bools, Doubles, Ints
from esper.leyline.errors import EsperError
from esper.leyline.statistics import Estimate, mean_estimate
from esper.leyline.streams import stream_seed

GATES: Final = {"table": 0.02, "regression": 0.01}
"""Least that the best topology of a context must be above these."""


@dataclass(frozen=True, slots=True)
class RegretSettings:
    """How regrets are computed."""

    draws: int = 8
    """Prices and caps drawn for each context."""
    terms: TermsSpec = TERMS
    """Distribution of prices and caps."""
    folds: int = 5
    """Parts of the contexts, each judged by what is learnt from the others."""
    price_bins: int = PRICE_BINS
    searches: tuple[int, ...] = SIZES
    """Sizes of the searches; all topologies come in addition. Empty: no searches."""
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.draws, self.price_bins) < 1 or self.folds < 2:
            raise EsperError(
                f"regrets with draws={self.draws}, price_bins={self.price_bins}, "
                f"folds={self.folds}: draws and bins must be 1 or more, folds 2 or more"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Contender(ArrayStruct):
    """What one way of choosing reaches in each case, averaged over hosts."""

    name: str
    score_CD: Doubles
    params_CD: Doubles
    """Of what it picks."""
    test_CD: Doubles
    """Test accuracy of what it picks."""
    compute_CD: Doubles
    """In training runs of the bare host."""

    @property
    def score_C(self) -> Doubles:
        """Mean score in each context."""
        return np.asarray(self.score_CD.mean(axis=1))

    @property
    def score(self) -> Estimate:
        """Mean score, with its interval over contexts."""
        return mean_estimate(self.score_C)

    def minus(self, other: Contender) -> Estimate:
        """Mean difference of the scores, paired by context."""
        return mean_estimate(self.score_C - other.score_C)


@dataclass(frozen=True, slots=True)
class Gate:
    """Whether there is enough to be decided."""

    against: str
    least: float
    margin: Estimate
    """Score of `best` minus that of the contender."""
    shrunk: Estimate
    """The same for `best, shrunk`; either may be higher, both are below the true best."""
    most: Estimate
    """The same for `oracle`: the room there could be at most."""

    @property
    def passed(self) -> bool:
        """The mean margin is large enough."""
        return self.margin.value >= self.least

    @property
    def certain(self) -> bool:
        """The whole interval says the same."""
        return self.margin.low >= self.least or self.margin.high < self.least


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """How far the choice of the best topology is disturbed by differences between hosts."""

    selection: Estimate
    """`oracle` minus `best`: what `best` loses to a choice that knows the judging half. Averaged
    both ways round, that is also by how much `best` would flatter itself on the hosts it was chosen
    on. The true best of a context is between the two."""
    host_sd: float
    """Standard deviation of final accuracy between hosts, topology and context fixed."""
    topology_sd: float
    """The same without what all topologies of a host have in common: what disturbs a choice."""


@dataclass(frozen=True, slots=True, eq=False)
class Regrets:
    """Scores of all contenders over the same cases."""

    contenders: Mapping[str, Contender]
    gates: tuple[Gate, ...]
    noise: NoiseFloor
    search: tuple[SearchPoint, ...]
    context_C: Ints
    """Contexts that were judged, by their number in the audit."""
    price_CD: Doubles
    capped_CD: Bools
    table: tuple[tuple[float, int], ...]
    """Price -> topology without caps, from all contexts and hosts."""
    cases: int
    hosts: int

    def regret(self, name: str) -> Estimate:
        """Score of `best` minus that of a contender, paired by context."""
        return self.contenders["best"].minus(self.contenders[name])


def compute_regrets(audit: Audit, settings: RegretSettings | None = None) -> Regrets:
    """Regrets of all contenders on the contexts that were run."""
    return _Computation(audit, settings or RegretSettings()).run()


def context_folds(contexts: int, folds: int, seed: int) -> Ints:
    """Fold `[C]` of each context, at random and of equal sizes."""
    folds = min(folds, contexts)
    generator = np.random.default_rng(stream_seed(seed, "audit", "folds"))
    return np.asarray(generator.permutation(contexts) % folds, dtype=np.int64)


def take_contexts(audit: Audit, index_C: Ints) -> Audit:
    """An audit of some of the contexts, in that order."""
    return Audit(
        info=audit.info,
        contexts=AuditContexts(
            *(getattr(audit.contexts, f.name)[index_C] for f in fields(AuditContexts))
        ),
        records=AuditRecords(
            *(getattr(audit.records, f.name)[index_C] for f in fields(AuditRecords))
        ),
    )


# ---- the computation --------------------------------------------------------------------------


class _Computation:
    """Cases of an audit, and what each contender picks in them."""

    def __init__(self, audit: Audit, settings: RegretSettings) -> None:
        self.settings, self.context_C = settings, recorded_contexts(audit)
        contexts = len(self.context_C)
        index_N = np.arange(contexts * settings.draws)
        self.case_N, self.draw_N = index_N // settings.draws, index_N % settings.draws
        """Place of the context, and number of the draw, of each case."""
        # Drawn by the numbers of the whole audit, so that contexts run later change none.
        context_N = self.context_C[self.case_N]
        self.observed = draw_cases(audit, context_N, self.draw_N, settings.terms, settings.seed)
        self.audit = take_contexts(audit, self.context_C)
        self.available_NK: Bools = within_caps(audit.info, self.observed)
        self.available_NK &= recorded(self.audit)[self.case_N]
        self.fold_C = context_folds(contexts, settings.folds, settings.seed)
        self.params_K = np.array(audit.info.params, dtype=np.float64)

    def run(self) -> Regrets:
        """Judge every contender both ways round."""
        hosts = self.audit.records.test_CHK.shape[1]
        first, second = host_halves(hosts)
        ways = [self._one_way(first, second), self._one_way(second, first)]
        found = {name: _mean_contender([way[name] for way in ways]) for name in ways[0]}
        searches = self._searches()
        found |= {f"asha:{size}": self._search_contender(size, s) for size, s in searches}
        return Regrets(
            contenders=found,
            gates=tuple(_gate(found, name, least) for name, least in GATES.items()),
            noise=NoiseFloor(found["oracle"].minus(found["best"]), *self._host_spread()),
            search=search_points(searches) if searches else (),
            context_C=self.context_C,
            price_CD=self._by_case(self.observed.price_N),
            capped_CD=np.isfinite(self._by_case(self.observed.params_cap_N)),
            table=self._table(),
            cases=len(self.case_N),
            hosts=hosts,
        )

    def _one_way(self, choose_H: Ints, judge_H: Ints) -> dict[str, Contender]:
        """Choose on some hosts, judge on others."""
        choose, judge = final_means(self.audit, choose_H), final_means(self.audit, judge_H)
        rank_NK, regressed_CK = self._held_out(choose)
        price_N = self.observed.price_N
        rank_NK["best"] = choose.scores(self.case_N, price_N)
        rank_NK["best, shrunk"] = self._shrunk(choose, regressed_CK, len(choose_H))
        rank_NK["oracle"] = judge.scores(self.case_N, price_N)
        return {
            name: self._contender(name, best_available(rank, self.available_NK), judge)
            for name, rank in rank_NK.items()
        }

    def _held_out(self, choose: Finals) -> tuple[dict[str, Doubles], Doubles]:
        """Rankings `[N, K]` by planners that were fitted on the other folds' contexts, and the
        regression's accuracies `[C, K]`."""
        makers = _planner_makers(self.audit, self.settings)
        shape = self.available_NK.shape
        rank_NK = {name: np.full(shape, np.nan) for name in makers}
        regressed_CK = np.full(choose.accuracy_CK.shape, np.nan)
        first_N = np.flatnonzero(self.draw_N == 0)
        for fold in np.unique(self.fold_C):
            held_N = np.flatnonzero(self.fold_C[self.case_N] == fold)
            train_C = np.flatnonzero(self.fold_C != fold)
            train, observed_C = choose.take(train_C), self.observed.take(first_N[train_C])
            held = self.observed.take(held_N)
            for name, make in makers.items():
                planner = make(observed_C, train)
                rank_NK[name][held_N] = planner.rank(held)
                if isinstance(planner, RegressionPlanner):
                    held_C = np.flatnonzero(self.fold_C == fold)
                    regressed_CK[held_C] = planner.accuracy(self.observed.take(first_N[held_C]))
        return rank_NK, regressed_CK

    def _shrunk(self, choose: Finals, regressed_CK: Doubles, hosts: int) -> Doubles:
        """Scores `[N, K]` with each context's accuracies drawn towards the regression's.

        Few hosts leave noise in a context's own means. The weight of these is the share of their
        variance around the regression that is not noise between hosts.
        """
        own_CK = choose.accuracy_CK - np.nanmean(choose.accuracy_CK, axis=1, keepdims=True)
        known = np.isfinite(own_CK)
        total = float(((own_CK - regressed_CK)[known] ** 2).mean())
        noise = self._host_spread()[1] ** 2 / hosts
        weight = max(0.0, 1.0 - noise / total) if total > 0 else 1.0
        accuracy_CK = weight * own_CK + (1.0 - weight) * regressed_CK
        rent_NK = self.observed.price_N[:, None] * choose.rent_CK[self.case_N]
        return np.asarray(accuracy_CK[self.case_N] - rent_NK)

    def _contender(self, name: str, pick_N: Ints, judge: Finals) -> Contender:
        """Figures of picked topologies on the judging hosts."""
        at = self.case_N, pick_N
        score_N = judge.accuracy_CK[at] - self.observed.price_N * judge.rent_CK[at]
        figures = (score_N, self.params_K[pick_N], judge.test_CK[at], judge.compute_CK[at])
        return Contender(name, *(self._by_case(values_N) for values_N in figures))

    def _by_case(self, values_N: Doubles) -> Doubles:
        """`[C, D]` from one or several values of each case, next to each other."""
        shape = len(self.context_C), self.settings.draws, -1
        return np.asarray(values_N.reshape(shape).mean(axis=2))

    # ---- searches, noise, table ----------------------------------------------------------------

    def _searches(self) -> list[tuple[int, Searches]]:
        """Searches of every size, one in each case on each host."""
        settings, hosts = self.settings, self.audit.records.test_CHK.shape[1]
        if not settings.searches:
            return []
        run_N = np.arange(len(self.case_N) * hosts)
        case_N, host_N = run_N // hosts, run_N % hosts
        context_N, observed = self.case_N[case_N], self.observed.take(case_N)
        most = len(self.params_K)
        sizes = sorted({1, *(size for size in settings.searches if size < most), most})
        at = context_N, host_N, self.draw_N[case_N], observed
        return [(size, asha(self.audit, *at, size, settings.seed)) for size in sizes]

    def _search_contender(self, size: int, found: Searches) -> Contender:
        params_N = self.params_K[found.topology_N]
        figures = (found.score_N, params_N, found.test_N, found.compute_N)
        return Contender(f"asha:{size}", *(self._by_case(values_N) for values_N in figures))

    def _host_spread(self) -> tuple[float, float]:
        """Standard deviations between hosts: of accuracy, and without what a host's topologies
        have in common."""
        accuracy_CHK = self.audit.records.accuracy_CHKT[..., -1].astype(np.float64)
        common_CHK = np.nanmean(accuracy_CHK, axis=2, keepdims=True)
        spread = [
            float(np.sqrt(np.nanmean(np.var(values_CHK, axis=1, ddof=1))))
            for values_CHK in (accuracy_CHK, accuracy_CHK - common_CHK)
        ]
        return spread[0], spread[1]

    def _table(self) -> tuple[tuple[float, int], ...]:
        finals = final_means(self.audit, np.arange(self.audit.records.test_CHK.shape[1]))
        table = TablePlanner(finals, self.settings.terms.price, self.settings.price_bins)
        pick_P = best_available(table.rank_PK, np.ones_like(table.rank_PK, dtype=np.bool_))
        return tuple(zip(table.price_P.tolist(), pick_P.tolist(), strict=True))


def _gate(found: Mapping[str, Contender], name: str, least: float) -> Gate:
    margins = (found[best].minus(found[name]) for best in ("best", "best, shrunk", "oracle"))
    return Gate(name, least, *margins)


def _planner_makers(
    audit: Audit, settings: RegretSettings
) -> dict[str, Callable[[Observed, Finals], Planner]]:
    """Planners by name, made from the observed part and the figures of training contexts."""
    info, prices = audit.info, settings.terms.price
    return {
        "bare": lambda _, __: BarePlanner(len(info.topologies)),
        "one": lambda _, finals: OnePlanner(finals, mean_price(prices)),
        "table": lambda _, finals: TablePlanner(finals, prices, settings.price_bins),
        "regression": lambda observed, finals: RegressionPlanner(
            info, observed, finals, settings.seed
        ),
    }


def _mean_contender(ways: list[Contender]) -> Contender:
    """Average both ways round."""
    names = [f.name for f in fields(Contender) if f.name != "name"]
    means = (np.mean([getattr(way, name) for way in ways], axis=0) for name in names)
    return Contender(ways[0].name, *means)
