"""Regrets: how much worse than the best topology of each context is a simpler way of choosing?

The best of many topologies would flatter itself, so topologies are chosen on one half of the hosts
and judged on the other, both ways round, averaged. What is learnt from other contexts (`one`,
`table`, `regression`) is learnt on training contexts, on the choosing half of their hosts, and
judged on contexts that were held out (cross-validation over contexts).

All of it is done twice: for topologies that are trained to the end, and for pairs of a topology and
the step after which training stops (`STOP`). What nobody sees before training, such as label noise,
decides more about the second.

Shape letters: C contexts, D draws of price and caps in a context, N = C * D cases, K topologies,
J options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from esper.leyline.arrays import ArrayStruct, Bools, Doubles, Ints
from esper.leyline.errors import EsperError
from esper.leyline.statistics import Estimate, mean_estimate
from esper.leyline.streams import stream_seed
from esper_lab.audit.cases import (
    TERMS,
    Finals,
    Observed,
    Options,
    TermsSpec,
    best_available,
    draw_cases,
    final_means,
    host_halves,
    recorded,
    recorded_contexts,
    within_caps,
)
from esper_lab.audit.planners import (
    PRICE_BINS,
    BarePlanner,
    OnePlanner,
    Planner,
    RegressionPlanner,
    TablePlanner,
    mean_price,
)
from esper_lab.audit.records import Audit, AuditContexts, AuditRecords
from esper_lab.audit.search_lookup import SIZES, Searches, SearchPoint, asha, search_points

GATES: Final = {"table": 0.02, "regression": 0.01}
"""Least that the best topology of a context must be above these."""
STOP: Final = "_stop"
"""How names of contenders end that also choose when training stops."""
KEPT: Final = "_kept"
"""How names of contenders end that train to the end and keep the step that was best on
`val_control`: they decide nothing in training."""
STOPPING: Final = ("one", "table", "regression", "best", "best_shrunk", "oracle")
"""Contenders that are judged with STOP, too."""


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
    stops: bool = True
    """Also judge choices of when training stops, if there is more than one step."""
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

    score_CD: Doubles
    params_CD: Doubles
    """Of what it picks."""
    test_CD: Doubles
    """Test accuracy of what it picks."""
    compute_CD: Doubles
    """In training runs of the host."""

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
    """The contender; one that chooses when to stop is held against `best` that does, too."""
    least: float
    margin: Estimate
    """Score of `best` minus that of the contender."""
    shrunk: Estimate
    """The same for `best_shrunk`; either may be higher, both are below the true best."""
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

    def minus_best(self, name: str) -> Estimate:
        """Score of a contender minus that of `best`, paired by context: the regret, negated."""
        return self.contenders[name].minus(self.contenders["best"])


def compute_regrets(audit: Audit, settings: RegretSettings | None = None) -> Regrets:
    """Regrets of all contenders on the contexts that were run."""
    settings = settings or RegretSettings()
    whole = _Computation(audit, settings, Options.trained_to_the_end(audit.info))
    found = whole.contenders()
    gates = _gates(found)
    if settings.stops and audit.info.steps > 1:
        stopping = _Computation(audit, settings, Options.with_stop(audit.info)).contenders()
        found |= {name + STOP: it for name, it in stopping.items() if name in STOPPING}
        gates += _gates(found, STOP)
    searches = whole.searches()
    found |= {f"asha:{size}": whole.search_contender(s) for size, s in searches}
    return Regrets(
        contenders=found,
        gates=gates,
        noise=NoiseFloor(found["oracle"].minus(found["best"]), *whole.host_spread()),
        search=search_points(searches) if searches else (),
        context_C=whole.context_C,
        price_CD=whole.by_case(whole.observed.price_N),
        capped_CD=np.isfinite(whole.by_case(whole.observed.params_cap_N)),
        table=whole.table(),
        cases=len(whole.case_N),
        hosts=whole.hosts,
    )


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

    def __init__(self, audit: Audit, settings: RegretSettings, options: Options) -> None:
        self.settings, self.context_C = settings, recorded_contexts(audit)
        self.options = options
        contexts = len(self.context_C)
        index_N = np.arange(contexts * settings.draws)
        self.case_N, self.draw_N = index_N // settings.draws, index_N % settings.draws
        """Place of the context, and number of the draw, of each case."""
        # Drawn by the numbers of the whole audit, so that contexts run later change none.
        context_N = self.context_C[self.case_N]
        self.observed = draw_cases(audit, context_N, self.draw_N, settings.terms, settings.seed)
        self.audit = take_contexts(audit, self.context_C)
        available_NK: Bools = within_caps(audit.info, self.observed)
        available_NK &= recorded(self.audit)[self.case_N]
        self.available_NJ: Bools = available_NK[:, options.topology_J]
        self.fold_C = context_folds(contexts, settings.folds, settings.seed)
        self.params_K = np.array(audit.info.params, dtype=np.float64)
        self.hosts = self.audit.records.test_CHK.shape[1]
        first, second = host_halves(self.hosts)
        self.ways = (first, second), (second, first)
        """Hosts to choose on and hosts to judge on."""

    def contenders(self) -> dict[str, Contender]:
        """Judge every contender both ways round."""
        ways = [self._one_way(*way) for way in self.ways]
        return {name: _mean_contender([way[name] for way in ways]) for name in ways[0]}

    def _one_way(self, choose_H: Ints, judge_H: Ints) -> dict[str, Contender]:
        """Choose on some hosts, judge on others."""
        choose = final_means(self.audit, choose_H, self.options)
        judge = final_means(self.audit, judge_H, self.options)
        rank_NJ, regressed_CJ = self._held_out(choose)
        price_N = self.observed.price_N
        rank_NJ["best"] = choose.scores(self.case_N, price_N)
        rank_NJ["best_shrunk"] = self._shrunk(choose, regressed_CJ, len(choose_H))
        rank_NJ["oracle"] = judge.scores(self.case_N, price_N)
        found = {name: self._judged(rank, judge) for name, rank in rank_NJ.items()}
        kept = final_means(keep_best(self.audit), judge_H, self.options)
        return found | {name + KEPT: self._judged(rank_NJ[name], kept) for name in GATES}

    def _held_out(self, choose: Finals) -> tuple[dict[str, Doubles], Doubles]:
        """Rankings `[N, J]` by planners that were fitted on the other folds' contexts, and the
        regression's accuracies `[C, J]`."""
        makers = _planner_makers(self.audit, self.settings, self.options)
        shape = self.available_NJ.shape
        rank_NJ = {name: np.full(shape, np.nan) for name in makers}
        regressed_CJ = np.full(choose.accuracy_CJ.shape, np.nan)
        first_N = np.flatnonzero(self.draw_N == 0)
        for fold in np.unique(self.fold_C):
            held_N = np.flatnonzero(self.fold_C[self.case_N] == fold)
            train_C = np.flatnonzero(self.fold_C != fold)
            train, observed_C = choose.take(train_C), self.observed.take(first_N[train_C])
            held = self.observed.take(held_N)
            for name, make in makers.items():
                planner = make(observed_C, train)
                rank_NJ[name][held_N] = planner.rank(held)
                if isinstance(planner, RegressionPlanner):
                    held_C = np.flatnonzero(self.fold_C == fold)
                    regressed_CJ[held_C] = planner.accuracy(self.observed.take(first_N[held_C]))
        return rank_NJ, regressed_CJ

    def _shrunk(self, choose: Finals, regressed_CJ: Doubles, hosts: int) -> Doubles:
        """Scores `[N, J]` with each context's accuracies drawn towards the regression's.

        Few hosts leave noise in a context's own means. The weight of these is the share of their
        variance around the regression that is not noise between hosts.
        """
        own_CJ = choose.accuracy_CJ - np.nanmean(choose.accuracy_CJ, axis=1, keepdims=True)
        known = np.isfinite(own_CJ)
        total = float(((own_CJ - regressed_CJ)[known] ** 2).mean())
        noise = self.host_spread()[1] ** 2 / hosts
        weight = max(0.0, 1.0 - noise / total) if total > 0 else 1.0
        accuracy_CJ = weight * own_CJ + (1.0 - weight) * regressed_CJ
        rent_NJ = self.observed.price_N[:, None] * choose.rent_CJ[self.case_N]
        return np.asarray(accuracy_CJ[self.case_N] - rent_NJ)

    def _judged(self, rank_NJ: Doubles, judge: Finals) -> Contender:
        """Figures of the best available options, on the judging hosts."""
        pick_N = best_available(rank_NJ, self.available_NJ)
        at = self.case_N, pick_N
        score_N = judge.accuracy_CJ[at] - self.observed.price_N * judge.rent_CJ[at]
        params_N = self.params_K[self.options.topology_J[pick_N]]
        figures = (score_N, params_N, judge.test_CJ[at], judge.compute_CJ[at])
        return Contender(*(self.by_case(values_N) for values_N in figures))

    def by_case(self, values_N: Doubles) -> Doubles:
        """`[C, D]` from one or several values of each case, next to each other."""
        shape = len(self.context_C), self.settings.draws, -1
        return np.asarray(values_N.reshape(shape).mean(axis=2))

    # ---- searches, noise, table ----------------------------------------------------------------

    def searches(self) -> list[tuple[int, Searches]]:
        """Searches of every size, one in each case on each host."""
        settings, hosts = self.settings, self.hosts
        if not settings.searches:
            return []
        run_N = np.arange(len(self.case_N) * hosts)
        case_N, host_N = run_N // hosts, run_N % hosts
        context_N, observed = self.case_N[case_N], self.observed.take(case_N)
        most = len(self.params_K)
        sizes = sorted({1, *(size for size in settings.searches if size < most), most})
        at = context_N, host_N, self.draw_N[case_N], observed
        return [(size, asha(self.audit, *at, size, settings.seed)) for size in sizes]

    def search_contender(self, found: Searches) -> Contender:
        """What searches reach."""
        params_N = self.params_K[found.topology_N]
        figures = (found.score_N, params_N, found.test_N, found.compute_N)
        return Contender(*(self.by_case(values_N) for values_N in figures))

    def host_spread(self) -> tuple[float, float]:
        """Standard deviations between hosts: of accuracy, and without what a host's topologies
        have in common."""
        accuracy_CHK = self.audit.records.accuracy_CHKT[..., -1].astype(np.float64)
        common_CHK = np.nanmean(accuracy_CHK, axis=2, keepdims=True)
        spread = [
            float(np.sqrt(np.nanmean(np.var(values_CHK, axis=1, ddof=1))))
            for values_CHK in (accuracy_CHK, accuracy_CHK - common_CHK)
        ]
        return spread[0], spread[1]

    def table(self) -> tuple[tuple[float, int], ...]:
        """Price -> topology without caps, from all contexts and hosts."""
        finals = final_means(self.audit, np.arange(self.hosts))
        table = TablePlanner(finals, self.settings.terms.price, self.settings.price_bins)
        pick_P = best_available(table.rank_PJ, np.ones_like(table.rank_PJ, dtype=np.bool_))
        return tuple(zip(table.price_P.tolist(), pick_P.tolist(), strict=True))


def keep_best(audit: Audit) -> Audit:
    """The audit of runs that keep, at every step, the one so far that was best on `val_control`.

    What has been trained before the first step is not kept. Compute stays as it is.
    """
    records = audit.records
    steps = records.control_CHKT.shape[-1]
    control_CHKT = np.nan_to_num(records.control_CHKT, nan=-np.inf)
    control_CHKT[..., 0] = -np.inf
    before_CHKT = np.maximum.accumulate(control_CHKT, axis=-1)[..., :-1]
    newest_CHKT = np.zeros(control_CHKT.shape, dtype=np.int64)
    newest_CHKT[..., 1:] = np.where(control_CHKT[..., 1:] > before_CHKT, np.arange(1, steps), 0)
    kept_CHKT = np.maximum.accumulate(newest_CHKT, axis=-1)
    accuracy_CHKT = np.take_along_axis(records.accuracy_CHKT, kept_CHKT, axis=-1)
    gained_CHK = accuracy_CHKT[..., -1] - records.accuracy_CHKT[..., -1]
    kept = replace(records, accuracy_CHKT=accuracy_CHKT, test_CHK=records.test_CHK + gained_CHK)
    return replace(audit, records=kept)


def _gates(found: Mapping[str, Contender], suffix: str = "") -> tuple[Gate, ...]:
    """Gates of the contenders whose names end so."""
    best = [found[name + suffix] for name in ("best", "best_shrunk", "oracle")]
    return tuple(
        Gate(name + suffix, least, *(it.minus(found[name + suffix]) for it in best))
        for name, least in GATES.items()
    )


def _planner_makers(
    audit: Audit, settings: RegretSettings, options: Options
) -> dict[str, Callable[[Observed, Finals], Planner]]:
    """Planners by name, made from the observed part and the figures of training contexts."""
    info, prices = audit.info, settings.terms.price
    return {
        "bare": lambda _, __: BarePlanner(options),
        "one": lambda _, finals: OnePlanner(finals, mean_price(prices)),
        "table": lambda _, finals: TablePlanner(finals, prices, settings.price_bins),
        "regression": lambda observed, finals: RegressionPlanner(
            info, observed, finals, options, settings.seed
        ),
    }


def _mean_contender(ways: Sequence[Contender]) -> Contender:
    """Mean of a contender that was judged in several ways."""
    names = [f.name for f in fields(Contender)]
    return Contender(*(np.mean([getattr(way, name) for way in ways], axis=0) for name in names))
