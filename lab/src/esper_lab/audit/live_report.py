"""Live policies beside contenders from records, on the same cases (context, host, draw).

Gates of the closed loop: it beats the regression (c), also one that chooses when to stop before
training, and it matches a search of 4 times its compute. And a check of the simulated engine: the
score of a policy of the bench from records is that of training, up to less than hosts differ.

Shape letters: N cases, C contexts, H hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from esper.leyline.arrays import ArrayStruct, Doubles, Ints
from esper.leyline.codec import Json, read_record
from esper.leyline.errors import EsperError
from esper.leyline.statistics import Estimate, mean_estimate
from esper_lab.audit.bench import Bench, SimulatedEpisodes
from esper_lab.audit.cases import TermsSpec
from esper_lab.audit.leaderboard import BUILT_IN, LIVE_BENCH, play
from esper_lab.audit.live_rows import LiveRows, live_files, read_live
from esper_lab.audit.live_static import STATIC
from esper_lab.audit.picks import accuracy_on_test
from esper_lab.audit.policies import PLANNERS, Policy
from esper_lab.audit.records import Audit, identity_of
from esper_lab.audit.regrets import STOP, context_folds
from esper_lab.audit.search_lookup import (
    SIZES,
    Searches,
    SearchPoint,
    asha,
    matching_runs,
    search_points,
)

TIMES: Final = 4.0
"""Compute of the search that the closed loop has to match, relative to its own."""
REFERENCE: Final = "regression"
STOPPING: Final = f"{REFERENCE}{STOP}"
FROM_RECORDS: Final = ("bare", "one", "table", REFERENCE, f"table{STOP}", STOPPING, "best")


@dataclass(frozen=True, slots=True, eq=False)
class CaseResults(ArrayStruct):
    """What one contender reaches in each case."""

    name: str
    live: bool
    """It was trained; otherwise it is from records."""
    score_N: Doubles
    test_N: Doubles
    compute_N: Doubles
    """In training runs of the host."""
    params_N: Doubles


@dataclass(frozen=True, slots=True)
class LiveRow:
    """A contender on the live cases."""

    name: str
    live: bool
    score: Estimate
    """Mean score, with its interval over contexts."""
    above: Estimate
    """Score minus that of the regression (c) from records, paired by context."""
    runs: float
    """N*: compute of a search, in single runs, that reaches the mean score."""
    test: float
    compute: float
    params: float


@dataclass(frozen=True, slots=True)
class LiveGate:
    """Whether deciding in training pays."""

    policy: str
    beats: Estimate
    """Score minus that of the regression (c), paired by context."""
    beats_stopping: Estimate
    """The same for the regression that also chooses when to stop."""
    matches: Estimate
    """Score minus that of a search of `times` its compute, paired by context."""
    times: float
    """`TIMES`, or less where no search of the records takes as much compute."""
    beats_static: Estimate | None = None
    """Score minus that of its own final topology, planted from the start; None: not trained."""

    @property
    def passed(self) -> tuple[bool, bool, bool]:
        """The intervals of the first two are above 0; the third is 0 or more."""
        return self.beats.low > 0, self.beats_stopping.low > 0, self.matches.value >= 0


@dataclass(frozen=True, slots=True)
class Agreement:
    """A policy of the bench from records and by training, on the same cases."""

    policy: str
    difference: Estimate
    """Mean score by training minus that from records, with its interval over contexts."""
    largest: float
    """Largest difference of a case."""
    host_sd: float
    """Standard deviation of its score between hosts, case fixed."""
    pairs: int

    @property
    def passed(self) -> bool:
        """The mean difference is less than hosts differ."""
        return abs(self.difference.value) < self.host_sd or self.largest == 0


@dataclass(frozen=True, slots=True)
class LiveComparison:
    """Live policies and contenders from records."""

    rows: tuple[LiveRow, ...]
    """Best first."""
    gates: tuple[LiveGate, ...]
    agreements: tuple[Agreement, ...]
    search: tuple[SearchPoint, ...]
    cases: int
    contexts: int
    slots: int


def compare_live(folder: Path, audit: Audit) -> LiveComparison | None:
    """Compare the live policies of an audit folder; None if it has none."""
    files = live_files(folder)
    if not files:
        return None
    identity = identity_of(audit.info)
    found = [read_live(path, identity) for path in files]
    settings = _common_settings(audit, files, [described for _, described in found])
    rows = _common_cases([rows for rows, _ in found])
    return _Comparison(audit, rows, settings).run()


@dataclass(frozen=True, slots=True)
class _Settings:
    """Settings that all live policies share."""

    seed: int
    folds: int
    terms: TermsSpec


def _common_settings(
    audit: Audit, files: Sequence[Path], described: Sequence[dict[str, Json]]
) -> _Settings:
    first = described[0]
    contexts: Json = Bench(audit).context_C.tolist()
    for path, mine in zip(files, described, strict=True):
        if mine.get("contexts") != contexts:
            raise EsperError(
                f"{path} was run when the audit had other contexts: remove it to run it again"
            )
        for key in ("seed", "folds", "terms"):
            if mine.get(key) != first.get(key):
                raise EsperError(f"{path}: another {key} than in {files[0]}: remove one of them")
    terms = read_record(TermsSpec, first.get("terms"), str(files[0]))
    seed, folds = first.get("seed"), first.get("folds")
    if not isinstance(seed, int) or not isinstance(folds, int):
        raise EsperError(f"{files[0]} is damaged (no seed): remove that file to run it again")
    return _Settings(seed, folds, terms)


def _common_cases(found: Sequence[LiveRows]) -> list[LiveRows]:
    """The cases that all policies were run in."""
    keys = [set(zip(r.context_N.tolist(), r.draw_N.tolist(), strict=True)) for r in found]
    common = set.intersection(*keys)
    if not common:
        raise EsperError("live policies were run in no common case; run them again")
    kept = []
    for rows in found:
        pairs = zip(rows.context_N.tolist(), rows.draw_N.tolist(), strict=True)
        kept.append(rows.where(np.array([pair in common for pair in pairs], dtype=np.bool_)))
    return kept


# ---- the comparison ----------------------------------------------------------------------------


@dataclass
class _Comparison:
    """All contenders on the cases of live policies."""

    audit: Audit
    rows: list[LiveRows]
    settings: _Settings
    _fitted: dict[tuple[str, int], Policy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bench = Bench(self.audit, self.settings.terms)
        first = self.rows[0]
        self.context_N, self.host_N, self.draw_N = first.context_N, first.host_N, first.draw_N
        all_C = self.bench.context_C
        self._fold_C = context_folds(len(all_C), self.settings.folds, self.settings.seed)
        self._fold_N = self._fold_C[np.searchsorted(all_C, self.context_N)]
        self._context_C, self._place_N = np.unique(self.context_N, return_inverse=True)

    def run(self) -> LiveComparison:
        """Play the contenders from records, then compare."""
        searches = self._searches()
        points = search_points(searches)
        known = [
            self._simulated(name, self.host_N) for name in FROM_RECORDS if self._can_play(name)
        ]
        known += [self._from_search(size, found) for size, found in searches]
        live = [_from_live(rows) for rows in self.rows]
        named = {it.name: it for it in known}
        reference, stopping = named[REFERENCE], named.get(STOPPING, named[REFERENCE])
        made = [self._row(it, reference, points) for it in (*live, *known)]
        gates = [
            replace(
                self._gate(it, (reference, stopping), searches), beats_static=self._static(it, live)
            )
            for it in live
            if it.name not in PLANNERS and not it.name.endswith(STATIC)
        ]
        return LiveComparison(
            rows=tuple(sorted(made, key=lambda row: -row.score.value)),
            gates=tuple(gates),
            agreements=tuple(
                self._agreement(rows) for rows in self.rows if rows.policy in LIVE_BENCH
            ),
            search=points,
            cases=len(self.context_N),
            contexts=len(self._context_C),
            slots=len(self.audit.info.slots),
        )

    # ---- contenders ----------------------------------------------------------------------------

    def _can_play(self, name: str) -> bool:
        if name.endswith(STOP):
            return self.bench.info.steps > 1
        return name != "best" or self.bench.hosts > 1

    def _from_search(self, size: int, found: Searches) -> CaseResults:
        params_N = np.array(self.bench.info.params, dtype=np.float64)[found.topology_N]
        figures = found.score_N, found.test_N, found.compute_N, params_N
        return CaseResults(f"asha:{size}", False, *figures)

    def _searches(self) -> list[tuple[int, Searches]]:
        """Searches of every size on the live cases."""
        most = len(self.bench.topologies)
        sizes = sorted({1, *(size for size in SIZES if size < most), most})
        played = SimulatedEpisodes(self.bench, len(self.context_N))
        seed = self.settings.seed
        observed = played.reset_to(self.context_N, self.host_N, self.draw_N, seed).context
        at = self.context_N, self.host_N, self.draw_N, observed
        return [(size, asha(self.audit, *at, size, seed)) for size in sizes]

    def _simulated(self, name: str, host_N: Ints) -> CaseResults:
        """A policy of the bench, played in the records on these hosts."""
        figures = {f: np.zeros(len(host_N)) for f in ("score", "test", "compute", "params")}
        for fold in np.unique(self._fold_N).tolist():
            at = np.flatnonzero(self._fold_N == fold)
            played = SimulatedEpisodes(self.bench, len(at))
            case = self.context_N[at], host_N[at], self.draw_N[at]
            seen = played.reset_to(*case, self.settings.seed)
            found = play(played, self._policy(name, fold), seen)
            test_N = accuracy_on_test(self.bench, found)
            figures["score"][at], figures["test"][at] = found.score_N, test_N
            figures["compute"][at], figures["params"][at] = found.compute_N, found.params_N
        return CaseResults(name, False, *figures.values())

    def _policy(self, name: str, fold: int) -> Policy:
        """A policy of the bench, fitted on the contexts of the other folds."""
        if (name, fold) not in self._fitted:
            train_C = self.bench.context_C[self._fold_C != fold]
            self._fitted[name, fold] = BUILT_IN[name](self.bench, train_C)
        return self._fitted[name, fold]

    # ---- figures -------------------------------------------------------------------------------

    def _mean(self, values_N: Doubles) -> Estimate:
        """Mean over contexts, with its interval."""
        count_C = np.bincount(self._place_N)
        return mean_estimate(np.bincount(self._place_N, values_N) / count_C)

    def _row(
        self, it: CaseResults, reference: CaseResults, points: Sequence[SearchPoint]
    ) -> LiveRow:
        return LiveRow(
            name=it.name,
            live=it.live,
            score=self._mean(it.score_N),
            above=self._mean(_minus(it.score_N, reference.score_N)),
            runs=matching_runs(points, float(it.score_N.mean())),
            test=float(it.test_N.mean()),
            compute=float(it.compute_N.mean()),
            params=float(it.params_N.mean()),
        )

    def _gate(
        self,
        it: CaseResults,
        references: tuple[CaseResults, CaseResults],
        searches: Sequence[tuple[int, Searches]],
    ) -> LiveGate:
        """`references`: the regression, without and with STOP."""
        found = [search for _, search in searches]
        own = float(it.compute_N.mean())
        search_N, compute = search_at(found, TIMES * own)
        beats, beats_stopping = (
            self._mean(_minus(it.score_N, other.score_N)) for other in references
        )
        return LiveGate(
            policy=it.name,
            beats=beats,
            beats_stopping=beats_stopping,
            matches=self._mean(_minus(it.score_N, search_N)),
            times=compute / own,
        )

    def _static(self, it: CaseResults, live: Sequence[CaseResults]) -> Estimate | None:
        """Difference to the final topology, if that was trained."""
        found = [other for other in live if other.name == f"{it.name}{STATIC}"]
        return self._mean(_minus(it.score_N, found[0].score_N)) if found else None

    def _agreement(self, rows: LiveRows) -> Agreement:
        score_N = self._simulated(rows.policy, self.host_N).score_N
        every_HN = [
            self._simulated(rows.policy, np.full_like(self.host_N, host)).score_N
            for host in range(self.bench.hosts)
        ]
        spread = np.nan
        if self.bench.hosts > 1:
            spread = float(np.sqrt(np.var(every_HN, axis=0, ddof=1).mean()))
        difference_N = _minus(rows.score_N, score_N)
        return Agreement(
            policy=rows.policy,
            difference=self._mean(difference_N),
            largest=float(np.abs(difference_N).max()),
            host_sd=spread,
            pairs=len(difference_N),
        )


def _from_live(rows: LiveRows) -> CaseResults:
    params_N = rows.params_N.astype(np.float64)
    return CaseResults(rows.policy, True, rows.score_N, rows.test_N, rows.compute_N, params_N)


def _minus(ours_N: Doubles, theirs_N: Doubles) -> Doubles:
    """Differences, 0 where they are due to the float32 of the records."""
    return np.asarray(np.round(ours_N - theirs_N, 6) + 0.0)


def search_at(searches: Sequence[Searches], compute: float) -> tuple[Doubles, float]:
    """Scores `[N]` of a search that takes this mean compute, and what it takes.

    Interpolated in the logarithm of compute between sizes; at most that of the largest search.
    """
    mean_M = np.array([found.compute_N.mean() for found in searches])
    if compute >= mean_M[-1]:
        return searches[-1].score_N, float(mean_M[-1])
    if compute <= mean_M[0]:
        return searches[0].score_N, float(mean_M[0])
    after = int(np.searchsorted(mean_M, compute))
    low, high = np.log2(mean_M[after - 1]), np.log2(mean_M[after])
    share = (np.log2(compute) - low) / (high - low)
    score_N = (1 - share) * searches[after - 1].score_N + share * searches[after].score_N
    return np.asarray(score_N), compute
