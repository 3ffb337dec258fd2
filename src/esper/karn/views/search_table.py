"""What a search (`grow`) has on disk: its settings, the table of its runs, its result.

The table is there from the first run on, the result once networks are judged on test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

from esper.karn.views.damage import UNREADABLE, problem_of
from esper.karn.views.documents import (
    Entries,
    FileState,
    entries,
    estimate,
    file_state,
    objects,
    read_entries,
    real,
    text,
    texts,
)
from esper.karn.views.documents import whole as integer
from esper.leyline.codec import Json
from esper.leyline.errors import EsperError
from esper.leyline.statistics import Estimate
from esper.plotting.pareto import validation_front
from esper.storage import run_files as f

_FILES: Final = (f.GROW, f.SEARCH, f.RESULT)
_NAMES: Final = {"lr": "rate", "augment": "augmentation", "start": "weights of run"}
"""Of entries of a recipe whose own names are no words."""
_LIMITS: Final = (("params", "params"), ("macs", "macs"), ("latency_ms", "latency"))
"""Limits of a budget, and what of a run they limit."""


@dataclass(frozen=True, slots=True)
class SearchTable:
    """A search as it is on disk; what is not there is empty."""

    info: Entries
    rows: tuple[Entries, ...]
    result: Entries
    spent: Entries = field(default_factory=dict)
    """Of the result, or of the table before there is one: `seconds`, `runs`."""
    problems: tuple[str, ...] = ()
    """One line for each of its files that cannot be read."""

    def require_whole(self) -> None:
        """Raise if a part cannot be read."""
        if self.problems:
            raise EsperError(self.problems[0])

    @property
    def sign(self) -> float:
        """1 where a higher score is better, else -1."""
        return -1.0 if self.info.get("higher_is_better") is False else 1.0

    @property
    def pick(self) -> Entries:
        """The network that was picked; empty before the result."""
        number = integer(self.result, "pick")
        return {} if number is None else self.judged.get(number, {})

    @property
    def judged(self) -> dict[int, Entries]:
        """Networks that were judged on test, by number; the model as given among them."""
        found = (*objects(self.result, "networks"), entries(self.result, "host"))
        return {number: one for one in found if (number := integer(one, "number")) is not None}

    def variant(self, row: Entries) -> str:
        """Width and depth of a run's network, as `x0.5 d2`."""
        place, names = integer(row, "variant") or 0, texts(self.info, "variants")
        return names[place] if place < len(names) else str(place)

    def length(self, row: Entries) -> float:
        """How long a run was trained; 1: as long as a run of the model as given in full."""
        full = real(self.info, "length") * real(self.info, "batch_size")
        return real(row, "trained") * real(entries(row, "recipe"), "batch_size") / full


def read_search(run: Path) -> SearchTable:
    """Read a search; raises if its settings cannot be read, and notes which other part cannot."""
    return _read_search(run, tuple(file_state(run / name) for name in _FILES))


@lru_cache(maxsize=4)
def _read_search(run: Path, states: tuple[FileState, ...]) -> SearchTable:
    """Every view of a search reads the same files one after the other."""
    if not (run / f.GROW).exists():  # it is written a moment after the folder
        return SearchTable({}, (), {})
    info, problems = read_entries(run / f.GROW, f.GROW_SCHEMA), list[str]()

    def part(name: str) -> Entries:
        try:
            return read_entries(run / name) if (run / name).exists() else {}
        except UNREADABLE as error:
            problems.append(problem_of(error))
            return {}

    table, result = part(f.SEARCH), part(f.RESULT)
    rows = tuple(objects(table, "rows"))
    return SearchTable(info, rows, result, result or table, tuple(problems))


def gain(score: float, reference: float, sign: float) -> float:
    """How much better a score is than another one; positive is better."""
    return sign * (score - reference)


def pick_gain(search: SearchTable) -> Estimate:
    """How much better the pick is than the model as given, on the same test samples."""
    pick, host, found = search.pick, entries(search.result, "host"), entries(search.result, "gain")
    if found:
        return estimate(found)
    apart = gain(real(pick, "test_score"), real(host, "test_score"), search.sign)
    return Estimate(apart, math.nan, math.nan)


def merit(row: Entries) -> float:
    """The validation score so that higher is better; unknown ones last."""
    score = real(row, "score")
    return -math.inf if math.isnan(score) else -score if row.get("lower_is_better") else score


def scored(rows: Sequence[Entries]) -> list[Entries]:
    """Runs with a validation score: those that have ended, and those judged on their way."""
    return [row for row in rows if row.get("diverged") is not True and merit(row) > -math.inf]


def settled(rows: Sequence[Entries], live: bool) -> list[Entries]:
    """Runs whose validation score stays: while a search is live, not those under way."""
    return [row for row in scored(rows) if not (live and is_cut(row))]


def is_cut(row: Entries) -> bool:
    """Whether a run was judged before its end."""
    batches = real(entries(row, "recipe"), "batches")
    return text(row, "status") == "cut" and real(row, "trained") < batches


def within(rows: Sequence[Entries], info: Entries) -> list[Entries]:
    """Runs whose networks the budget allows."""
    budget = entries(info, "budget")
    limits = [(name, real(budget, limit)) for limit, name in _LIMITS]
    return [row for row in rows if not any(real(row, name) > most for name, most in limits)]


def validation_frontier(rows: Sequence[Entries]) -> set[int | None]:
    """Numbers of the runs that none dominates on validation."""
    some = scored(rows)
    merits, sizes = [merit(row) for row in some], [real(row, "params") for row in some]
    front = validation_front(merits, sizes, [real(row, "loss") for row in some])
    return {integer(some[index], "number") for index in front}


def judged_at(row: Entries) -> float:
    """Seconds of the search when a run was judged; NaN: it was not, or that is not recorded."""
    return real(row, "at") or math.nan


def given_run(rows: Sequence[Entries]) -> Entries:
    """The best run of the model as given."""
    given = [row for row in scored(rows) if text(row, "origin") == "given"]
    return max(given, key=lambda row: (merit(row), -last_if_nan(real(row, "loss"))), default={})


def last_if_nan(value: float) -> float:
    """The value to sort by, smallest first; an unknown one comes last."""
    return math.inf if math.isnan(value) else value


# ---- recipes -----------------------------------------------------------------------------------


def recipe_entries(row: Entries) -> dict[str, Json]:
    """How a run is trained, seed and starting weights included; its length apart."""
    recipe = {**entries(row, "recipe"), "seed": row.get("seed"), "start": row.get("start")}
    return {name: value for name, value in recipe.items() if name != "batches"}


def recipe_differences(row: Entries, given: Entries) -> str:
    """What differs from the recipe of the model as given, as in `rate 0.01, seed 7`."""
    reference, recipe = recipe_entries(given), recipe_entries(row)
    named = {name: _NAMES.get(name, name.replace("_", " ")) for name in recipe}
    return ", ".join(
        f"{named[name]} {value:.3g}" if isinstance(value, float) else f"{named[name]} {value}"
        for name, value in recipe.items()
        if value != reference.get(name)
    )


def recipe_text(row: Entries) -> str:
    """A recipe in words.

    >>> recipe_text({"recipe": {"optimizer": "sgd", "lr": 0.1, "batches": 1200, "batch_size": 16}})
    'sgd, rate 0.1, 1,200 batches of 16'
    """
    recipe = entries(row, "recipe")
    own = "x" if text(recipe, "optimizer") == "own" else ""  # a multiple of the user's own rates
    smoothing, augment = real(recipe, "label_smoothing"), text(recipe, "augment")
    parts = [
        text(recipe, "optimizer"),
        f"rate {own}{real(recipe, 'lr'):.3g}",
        f"{real(recipe, 'batches'):,.0f} batches of {real(recipe, 'batch_size'):.0f}",
        "" if augment == "none" else augment,
        f"smoothing {smoothing:g}" if smoothing > 0 else "",
    ]
    return ", ".join(part for part in parts if part)
