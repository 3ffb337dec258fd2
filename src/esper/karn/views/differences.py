"""What a run reached beside another one, the baseline: differences with 95 % intervals.

Paired where both have values of the same hosts, members or contexts; else the runs count as
independent, and `how` says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from esper.karn.views.contenders import (
    UNKNOWN,
    by_group,
    hosts_share_draws,
    read_contenders,
)
from esper.karn.views.damage import naming_damage, reader
from esper.karn.views.documents import (
    Entries,
    entries,
    numbers,
    objects,
    read_entries,
    real,
    text,
    texts,
    whole,
)
from esper.karn.views.kinds import RunKind
from esper.karn.views.rounds import read_member_scores
from esper.karn.views.search_table import read_search
from esper.karn.views.summary import RunSummary, run_summary
from esper.leyline.errors import EsperError
from esper.leyline.statistics import (
    Estimate,
    independent_difference,
    student_estimate,
    unpaired_difference,
)
from esper.storage import run_files as f

_NORMAL_95: Final = 1.959964


@dataclass(frozen=True, slots=True)
class Difference:
    """One measure of a run minus the same of the baseline. NaN: not known."""

    label: str
    """What was measured: a policy, the pick of a search, members of a round."""
    measure: str
    higher_is_better: bool
    ours: Estimate
    theirs: Estimate
    """Of the baseline."""
    difference: Estimate
    n: int
    """Pairs; of unpaired runs the values of the run, 0 where only their mean is recorded."""
    is_paired: bool
    how: str
    """`paired: the same 6 hosts`, `unpaired: other seeds`."""


@dataclass(frozen=True, slots=True)
class _Scores:
    """One measure of a run."""

    label: str
    measure: str
    pool: str
    """What two runs must share so that their values may be paired."""
    unit: str
    keys: tuple[str, ...] = ()
    """Seed and number of each value, digest of a context: equal keys are the same."""
    values: tuple[float, ...] = ()
    """Empty where only the estimate is recorded."""
    estimate: Estimate = UNKNOWN
    higher_is_better: bool = True

    @property
    def pool_name(self) -> str:
        """The pool in short: a digest is cut."""
        return self.pool if self.pool.startswith("task") else f"data {self.pool[:8]}"


def compare_with_baseline(run: Path, baseline: Path) -> tuple[Difference, ...]:
    """Everything that both runs measured; empty if there is nothing yet."""
    ours, theirs = run_summary(run), run_summary(baseline)
    at = int(min(ours.done, theirs.done)) - 1  # the last round that both have
    reference = {(one.label, one.measure): one for one in _read_scores(baseline, theirs, at)}
    return tuple(
        _difference(one, reference[one.label, one.measure])
        for one in _read_scores(run, ours, at)
        if (one.label, one.measure) in reference
    )


def _difference(ours: _Scores, theirs: _Scores) -> Difference:
    known = set(theirs.keys)
    common = [key for key in ours.keys if key in known]
    is_paired = ours.pool == theirs.pool and len(common) > 1
    if is_paired:
        n, found = len(common), student_estimate(_at(ours, common) - _at(theirs, common))
        how = f"paired: the same {n:,} {ours.unit}"
    else:
        n, how = len(ours.values), f"unpaired: {_why_unpaired(ours, theirs)}"
        found = _unpaired(ours, theirs)
    return Difference(
        label=ours.label,
        measure=ours.measure,
        higher_is_better=ours.higher_is_better,
        ours=ours.estimate,
        theirs=theirs.estimate,
        difference=found,
        n=n,
        is_paired=is_paired,
        how=how,
    )


def _unpaired(ours: _Scores, theirs: _Scores) -> Estimate:
    if ours.values and theirs.values:
        return unpaired_difference(np.array(ours.values), np.array(theirs.values))
    return independent_difference(ours.estimate, theirs.estimate)


def _why_unpaired(ours: _Scores, theirs: _Scores) -> str:
    if ours.pool != theirs.pool:
        return f"{ours.pool_name} against {theirs.pool_name}"
    if not (ours.values and theirs.values):
        return f"values of single {ours.unit} are not recorded"
    other = "other contexts" if ours.unit == "contexts" else "other seeds"
    return other if min(len(ours.values), len(theirs.values)) > 1 else "only one value"


def _at(scores: _Scores, keys: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    by_key = dict(zip(scores.keys, scores.values, strict=True))
    return np.array([by_key[key] for key in keys])


def _sampled(
    label: str, measure: str, pool: str, unit: str, keys: Sequence[str], values: Sequence[float]
) -> list[_Scores]:
    """A measure with its values; none if they are missing."""
    if not values or len(keys) != len(values):
        return []
    estimate = student_estimate(np.array(values))
    return [_Scores(label, measure, pool, unit, tuple(keys), tuple(values), estimate)]


# ---- by kind of run ----------------------------------------------------------------------------


@reader
def _read_scores(run: Path, summary: RunSummary, at: int) -> list[_Scores]:
    return _READERS[summary.kind](run, summary, at)


def _trained(run: Path, summary: RunSummary, at: int) -> list[_Scores]:
    """How the learner was judged, and the members of a round."""
    pool = f"task {summary.task}"
    values = read_member_scores(run, at)
    keys = [f"{summary.seed}/{len(values)}/{member}" for member in range(len(values))]
    label = f"training, round {at + 1}"
    return [*_judged(run, pool), *_sampled(label, "score", pool, "members", keys, values)]


def _judged(run: Path, pool: str) -> list[_Scores]:
    """The learner on fresh hosts; the first of the judged policies is the learned one."""
    path = run / f.REPORT / f.LEARNING
    document = read_entries(path) if path.exists() else {}
    judged = entries(document, "judged")
    name = next(iter(judged), "")
    saved, seed = entries(judged, name), whole(document, "evaluation_seed")
    draws = numbers(saved, "draw_E")
    keys = [f"{seed}/{draw:.0f}" for draw in sorted(set(draws))]
    measures = {
        "score": numbers(entries(saved, "outcome"), "score_E"),
        "test accuracy": numbers(saved, "test_E"),
    }
    label = f"{name}, judged on fresh hosts"
    found = []
    for measure, values in measures.items():
        found += _sampled(label, measure, pool, "hosts", keys, by_group(values, draws))
    return found


def _grown(run: Path, summary: RunSummary, at: int) -> list[_Scores]:
    """The pick and the model as it was given, on test."""
    search = read_search(run)
    networks = (search.pick, entries(search.result, "host"))
    measure, samples = f"test {text(search.info, 'metric')}", _test_samples(run)
    return [
        _Scores(
            label,
            measure,
            pool=text(search.info, "fingerprint"),
            unit="test samples",
            keys=tuple(map(str, range(len(values)))),
            values=values,
            estimate=_normal(one),
            higher_is_better=search.sign > 0,
        )
        for label, one, values in zip(("pick", "your model"), networks, samples, strict=True)
        if math.isfinite(real(one, "test_score"))
    ]


def _test_samples(run: Path) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Metric of each test sample, of the pick and the model as given; empty if not recorded."""
    path = run / f.TEST_SAMPLES
    if not path.exists():
        return (), ()
    with naming_damage(path):
        # A map cannot be larger than its file, whatever the head of the file says.
        found = np.lib.format.open_memmap(path, mode="r")
        if found.dtype != np.float32 or found.ndim != 2 or len(found) != 2:
            raise EsperError(f"{path} is damaged: {found.dtype} {found.shape}, not float32 [2, N]")
        if found.shape[1] > f.MAX_TEST_SAMPLES:
            raise EsperError(f"{path} is damaged: more than {f.MAX_TEST_SAMPLES:,} samples")
        pick, host = found.tolist()
        return tuple(pick), tuple(host)


def _normal(network: Entries) -> Estimate:
    score, reach = real(network, "test_score"), _NORMAL_95 * real(network, "test_se")
    return Estimate(score, score - reach, score + reach)


def _compared(run: Path, summary: RunSummary, at: int) -> list[_Scores]:
    """Every policy of a comparison."""
    by_draw = hosts_share_draws(run)
    found = []
    for path in sorted((run / f.POLICIES).glob("*.json")):
        saved = read_entries(path)
        result = entries(saved, "result")
        seeds, members = numbers(result, "seed_N"), numbers(result, "member_N")
        group = seeds if by_draw else []
        keys = [f"{seed:.0f}/{member:.0f}" for seed, member in zip(seeds, members, strict=False)]
        if by_draw:
            keys = [f"{seed:.0f}" for seed in sorted(set(seeds))]
        for measure, name in (("score", "score_N"), ("test accuracy", "test_N")):
            values = by_group(numbers(result, name), group)
            label, pool = text(saved, "label"), f"task {summary.task}"
            found += _sampled(label, measure, pool, "hosts", keys, values)
    return found


def _audited(run: Path, summary: RunSummary, at: int) -> list[_Scores]:
    """Every way to choose of an audit's report; those that were trained have only their mean."""
    path = run / f.CONTENDERS
    document = read_entries(path) if path.exists() else {}
    keys = texts(document, "contexts")
    values = {text(one, "name"): numbers(one, "score_C") for one in objects(document, "contenders")
              if one.get("live") is not True}  # fmt: skip
    return [
        _Scores(
            one.label,
            "score",
            f"task {summary.task}",
            "contexts",
            keys=keys if len(of := values.get(one.label, [])) == len(keys) else (),
            values=tuple(of) if len(of) == len(keys) else (),
            estimate=one.score,
        )
        for one in read_contenders(run)
    ]


_READERS: Mapping[RunKind, Callable[[Path, RunSummary, int], list[_Scores]]] = {
    RunKind.TRAIN: _trained,
    RunKind.GROW: _grown,
    RunKind.COMPARE: _compared,
    RunKind.AUDIT: _audited,
}
