"""Policies that were compared, with intervals: of a comparison, an audit, or a final evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from esper.karn.views.damage import UNREADABLE, problem_of, reader
from esper.karn.views.documents import (
    Entries,
    entries,
    estimate,
    numbers,
    objects,
    read_entries,
    real,
    text,
)
from esper.karn.views.kinds import RunKind, kind_of
from esper.karn.views.sessions import seconds_of
from esper.karn.views.setup import read_setup
from esper.leyline.context import saved_rounds_vary
from esper.leyline.errors import EsperError
from esper.leyline.statistics import Estimate, group_means, student_estimate
from esper.storage import run_files as f

UNKNOWN: Final = Estimate(math.nan, math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class Contender:
    """One policy; means with 95 % intervals. NaN: not known."""

    label: str
    policy: str = ""
    """As named on the command line."""
    is_reference: bool = False
    """What `difference` is to."""
    n: int = 0
    """Hosts, or draws that hosts share (compare, train); cases (audit)."""
    score: Estimate = UNKNOWN
    difference: Estimate = UNKNOWN
    """Score minus that of the reference, paired; NaN for the reference."""
    test: Estimate = UNKNOWN
    """Test accuracy."""
    accuracy: Estimate = UNKNOWN
    """On `val_score`."""
    params: float = math.nan
    macs: float = math.nan
    compute: float = math.nan
    """Training compute in runs of the host."""
    seconds: float = math.nan
    """Wall time of its episodes."""
    ended: float = math.nan
    """When it was complete, in seconds since 1970 (compare)."""


@reader
def read_contenders(run: Path) -> tuple[Contender, ...]:
    """Policies of a comparison, an audit or a learner's evaluation, best first; else empty."""
    read = _READERS.get(kind_of(run))
    found = read(run) if read is not None else []
    return tuple(sorted(found, key=lambda one: (math.isnan(one.score.value), -one.score.value)))


# ---- compare -----------------------------------------------------------------------------------


def _compared(run: Path) -> list[Contender]:
    """From the result files, which are there before the comparison is complete.

    A policy whose file is damaged has a line that says so.
    """
    found, saved, problems = list[Contender](), dict[Path, Entries](), dict[Path, str]()
    for path in sorted((run / f.POLICIES).glob("*.json")):
        try:
            saved[path] = read_entries(path)
        except UNREADABLE as error:
            problems[path] = problem_of(error)
    reference = _reference(run, list(saved.values()))
    by_draw = hosts_share_draws(run)
    for path, one in saved.items():
        try:
            found.append(_policy(one, reference, by_draw))
        except UNREADABLE as error:
            problems[path] = problem_of(error)
    if problems and not found:
        raise EsperError(next(iter(problems.values())))
    return found + [Contender(f"{path.name}: cannot be read") for path in problems]


def hosts_share_draws(run: Path) -> bool:
    """Whether hosts of a run seed share a budget and data that were drawn for them."""
    try:
        return saved_rounds_vary(read_entries(run / f.SETTINGS).get("context"))
    except EsperError:  # no settings
        return False


def _reference(run: Path, saved: list[Entries]) -> Entries | None:
    """The policy that others are compared with; None until the comparison is complete."""
    try:
        label = text(read_entries(run / f.COMPARISON), "reference")
    except EsperError:  # not written yet
        return None
    return next((one for one in saved if text(one, "label") == label), None)


def _policy(saved: Entries, reference: Entries | None, by_draw: bool) -> Contender:
    """`by_draw`: hosts of a run seed share their context, so that n counts run seeds."""
    result = entries(saved, "result")
    group = numbers(result, "seed_N") if by_draw else []
    score = by_group(numbers(result, "score_N"), group)
    search = entries(result, "search")
    compute = numbers(search, "compute_N") or numbers(result, "flops_ratio_N")
    return Contender(
        label=text(saved, "label"),
        policy=text(entries(saved, "identity"), "policy"),
        is_reference=saved is reference,
        n=len(score),
        score=_estimate(score),
        difference=UNKNOWN
        if reference is None or saved is reference
        else _difference(score, group, numbers(entries(reference, "result"), "score_N")),
        test=_estimate(by_group(numbers(result, "test_N"), group)),
        accuracy=_estimate(by_group(numbers(result, "accuracy_N"), group)),
        params=_mean(by_group(numbers(result, "parameters_N"), group)),
        macs=_mean(by_group(numbers(result, "macs_N"), group)),
        compute=_mean(by_group(compute, group)),
        seconds=float(sum(numbers(result, "seconds_G"))),
        ended=seconds_of(text(saved, "ended")),
    )


def by_group(values: list[float], group: list[float]) -> list[float]:
    """The values, or the mean of each group where there are groups."""
    if len(values) != len(group):
        return values
    return list(group_means(np.array(values), np.array(group, dtype=np.int64)))


def _difference(ours: list[float], group: list[float], theirs: list[float]) -> Estimate:
    """Paired; `theirs` before they are grouped. Not known if there are more or fewer of them."""
    theirs = by_group(theirs, group)
    if len(ours) != len(theirs):
        return UNKNOWN
    return _estimate((np.array(ours) - np.array(theirs)).tolist())


def _estimate(values: list[float]) -> Estimate:
    return student_estimate(np.array(values)) if values else UNKNOWN


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else math.nan


# ---- audit -------------------------------------------------------------------------------------


def _audited(run: Path) -> list[Contender]:
    if not (run / f.CONTENDERS).exists():
        return []
    return [_choice(one) for one in objects(read_entries(run / f.CONTENDERS), "contenders")]


def _choice(one: Entries) -> Contender:
    name = text(one, "name")
    reference = name == "regression"
    return Contender(
        label=f"{name} (trained)" if one.get("live") is True else name,
        policy=name,
        is_reference=reference,
        n=int(real(one, "n")),
        score=estimate(entries(one, "score")),
        difference=UNKNOWN if reference else estimate(entries(one, "above")),
        test=Estimate(real(one, "test"), math.nan, math.nan),
        params=real(one, "params"),
        compute=real(one, "compute"),
    )


# ---- train -------------------------------------------------------------------------------------


def _judged(run: Path) -> list[Contender]:
    """The learner and others on the same fresh hosts; they are judged when training ends."""
    path, setup = run / f.REPORT / f.LEARNING, read_setup(run)
    if not path.exists():
        return []
    host = (setup.host_params, setup.host_macs) if setup else (math.nan, math.nan)
    return judged_contenders(read_entries(path), host)


def judged_contenders(
    learning: Entries, host: tuple[float, float] = (math.nan, math.nan)
) -> list[Contender]:
    """Of the file with how a learner was judged; `host`: parameters and MACs of the host."""
    judged = entries(learning, "judged")
    named = [(name, entries(judged, name)) for name in judged]
    return [_evaluated(one, named[0], host) for one in named]


def _evaluated(
    one: tuple[str, Entries], reference: tuple[str, Entries], host: tuple[float, float]
) -> Contender:
    (label, saved), outcome = one, entries(one[1], "outcome")
    group = numbers(saved, "draw_E")
    added = (by_group(numbers(outcome, name), group) for name in ("added_params_E", "added_macs_E"))
    params, macs = added
    score = by_group(numbers(outcome, "score_E"), group)
    return Contender(
        label=label,
        policy=label,
        is_reference=one is reference,
        n=len(score),
        score=_estimate(score),
        difference=UNKNOWN
        if one is reference
        else _difference(score, group, numbers(entries(reference[1], "outcome"), "score_E")),
        test=_estimate(by_group(numbers(saved, "test_E"), group)),
        accuracy=_estimate(by_group(numbers(outcome, "accuracy_E"), group)),
        params=host[0] + _mean(params),
        macs=host[1] + _mean(macs),
        compute=_mean(by_group(numbers(saved, "compute_E"), group)),
    )


_READERS: Mapping[RunKind, Callable[[Path], list[Contender]]] = {
    RunKind.TRAIN: _judged,
    RunKind.COMPARE: _compared,
    RunKind.AUDIT: _audited,
}
