"""`Headline`: the result of a run as every list, page and report shows it.

What was judged comes first: a pick on test (grow), a controller on fresh hosts (train), policies
on the same hosts (compare, audit). Before that it is a validation or a training score, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Final

from esper.karn.views.contenders import Contender, judged_contenders, read_contenders
from esper.karn.views.damage import UNREADABLE
from esper.karn.views.documents import (
    Entries,
    FileState,
    entries,
    file_state,
    listed,
    read_entries,
    real,
)
from esper.karn.views.documents import whole as integer
from esper.karn.views.search_table import SearchTable, merit, pick_gain, settled, within
from esper.leyline.statistics import Estimate
from esper.plotting.numbers import ends, number, signed, signed_ends, signed_interval
from esper.storage import run_files as f


class Basis(StrEnum):
    """What a headline rests on."""

    TEST = "test"
    """Data that nothing was chosen by (grow)."""
    JUDGED = "judged"
    """Fresh hosts (train), the same hosts for all (compare, audit)."""
    VALIDATION = "validation"
    TRAINING = "training"
    NONE = ""


@dataclass(frozen=True, slots=True)
class Fact:
    """One figure of a headline."""

    name: str
    value: str
    beside: str = ""
    """Its interval, or what it is."""


@dataclass(frozen=True, slots=True)
class Headline:
    """The result of a run; empty if it has none yet."""

    text: str = ""
    """In a few words."""
    basis: Basis = Basis.NONE
    score: float = math.nan
    gain: Estimate | None = None
    """Over the user's model (grow), the same networks from the start (train), the reference
    (compare, audit); positive is better, None: it is that one, or not known."""
    facts: tuple[Fact, ...] = ()
    """The result, then what it is to be compared with."""

    @property
    def is_judged(self) -> bool:
        """Whether it is more than what was seen during training."""
        return self.basis in (Basis.TEST, Basis.JUDGED)


NONE: Final = Headline()


# ---- grow --------------------------------------------------------------------------------------


def search_headline(search: SearchTable, live: bool = False) -> Headline:
    """The pick on test, or the best validation score so far."""
    metric, pick = str(search.info.get("metric") or "score"), search.pick
    if pick:
        return _of_pick(search, metric, pick)
    best = max(settled(within(search.rows, search.info), live), key=merit, default=None)
    if best is None:
        return NONE
    score, size = real(best, "score"), f"{real(best, 'params'):,.0f} parameters"
    said = f"validation {metric} {score:.4f} so far, {size}"
    facts = (Fact(f"validation {metric}", number(score), f"best so far, {size}"),)
    return Headline(said, Basis.VALIDATION, score, facts=facts)


def _of_pick(search: SearchTable, metric: str, pick: Entries) -> Headline:
    host = entries(search.result, "host")
    score, se, params = real(pick, "test_score"), real(pick, "test_se"), real(pick, "params")
    error = "" if math.isnan(se) else f"± {se:.4f}"
    said = " ".join(part for part in (f"test {metric} {score:.4f}", error) if part)
    said = f"{said}, {params:,.0f} parameters"
    facts = [Fact(f"test {metric}", number(score), error)]
    if integer(pick, "number") == integer(host, "number"):
        facts.append(Fact("parameters", f"{params:,.0f}", "your model"))
        return Headline(f"{said}: your model", Basis.TEST, score, facts=tuple(facts))
    more = pick_gain(search)
    known = not math.isnan(more.value)
    if known:
        said = f"{said}, {signed_interval(more)} against your model"
        facts.append(Fact("gain over your model", signed(more.value), _at_95(signed_ends(more))))
    theirs = real(host, "params")
    facts.append(Fact("your model", number(real(host, "test_score")), f"{theirs:,.0f} parameters"))
    facts.append(
        Fact("parameters", f"{params:,.0f}", f"{params / max(1.0, theirs):.2f} times yours")
    )
    return Headline(said, Basis.TEST, score, more if known else None, tuple(facts))


# ---- train -------------------------------------------------------------------------------------


def training_headline(run: Path, score: float, rounds: int) -> Headline:
    """The controller on fresh hosts beside others; before that the newest training score.

    `score`: mean of the newest round; `rounds`: how many are complete.
    """
    path = run / f.REPORT / f.LEARNING
    try:
        contenders, judged = _judged(path, file_state(path))
    except UNREADABLE:  # not there yet, or damaged: what shows the judged policies says so
        return _of_training(score, rounds)
    found = {one.label: one for one in contenders}
    if f.JUDGED_LEARNER not in found:
        return _of_training(score, rounds)
    return _of_learner(found[f.JUDGED_LEARNER], _beside(found), judged, rounds)


@lru_cache(maxsize=256)
def _judged(path: Path, state: FileState) -> tuple[tuple[Contender, ...], int]:
    """How a learner was judged, after how many rounds.

    Its file holds the whole history, too, and lists are read often.
    """
    document = read_entries(path)
    return tuple(judged_contenders(document)), len(listed(document, "history"))


def _beside(found: dict[str, Contender]) -> list[tuple[str, Contender]]:
    """What a controller must beat: its own networks from the start, and the best simple policy."""
    simple = [found[name] for name in f.JUDGED_SIMPLE if name in found]
    best = max(simple, key=lambda one: one.score.value, default=None)
    static = found.get(f.JUDGED_STATIC)
    said = [] if static is None else [("same networks from the start", static)]
    return [*said, *([] if best is None else [("best simple policy", best)])]


def _of_learner(
    mine: Contender, others: Sequence[tuple[str, Contender]], judged: int, rounds: int
) -> Headline:
    early = f"after round {judged}" if 0 < judged < rounds else ""
    beside = ", ".join(part for part in (early, _ends_and_n(mine)) if part)
    facts = [Fact("judged score", number(mine.score.value), beside)]
    gains = [_gain_over(one) for _, one in others]
    for (what, one), more in zip(others, gains, strict=True):
        beside = f"{what}; gain {signed_interval(more)}"
        facts.append(Fact(one.label, number(one.score.value), beside))
    if not math.isnan(mine.test.value):
        facts.append(Fact("test accuracy", number(mine.test.value), "on fresh hosts"))
    against = ", ".join(f"{one.label} {one.score.value:.4f}" for _, one in others)
    said = f"judged score {mine.score.value:.4f}"
    said = f"{said} {early}" if early else said
    said = f"{said}; {against}" if against else said
    gain = gains[0] if gains else None
    return Headline(said, Basis.JUDGED, mine.score.value, gain, tuple(facts))


def _gain_over(other: Contender) -> Estimate:
    """How much better the learner is, of which the others' differences are."""
    apart = other.difference
    return Estimate(0.0 - apart.value, 0.0 - apart.high, 0.0 - apart.low)


def _of_training(score: float, rounds: int) -> Headline:
    if math.isnan(score):
        return NONE
    fact = Fact("training score", number(score), f"mean of round {rounds}, not judged")
    return Headline(f"training score {score:.4f}", Basis.TRAINING, score, facts=(fact,))


# ---- compare, audit ----------------------------------------------------------------------------


def policies_headline(run: Path) -> Headline:
    """The best policy, and how much better it is than the reference."""
    try:
        found = read_contenders(run)
    except UNREADABLE:  # the part that shows them names the damage
        return NONE
    if not found or math.isnan(found[0].score.value):
        return NONE
    best = found[0]
    facts = [Fact(f"best score: {best.label}", number(best.score.value), _ends_and_n(best))]
    said = f"best score {best.score.value:.4f}: {best.label}"
    reference = next((one for one in found if one.is_reference), None)
    gain = None if reference is None or reference is best else best.difference
    if reference is not None and gain is not None:
        beside = f"the reference; gain {signed_interval(gain)}"
        facts.append(Fact(reference.label, number(reference.score.value), beside))
        said = f"{said}, {signed_interval(gain)} against {reference.label}"
    return Headline(said, Basis.JUDGED, best.score.value, gain, tuple(facts))


def _ends_and_n(one: Contender) -> str:
    return ", ".join(part for part in (_at_95(ends(one.score)), f"n = {one.n}") if part)


def _at_95(interval: str) -> str:
    return f"95 % {interval}" if interval else ""
