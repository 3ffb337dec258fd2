"""Life lines of one round for a page: a window of members, however many there are; one of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

from esper.karn import views
from esper.karn.stages import STAGE_COLOURS, stage_name
from esper.karn.views.contributions import contribution_by_step
from esper.karn.views.damage import reader
from esper.karn.views.plain import to_plain
from esper.karn.views.seeds import newest_seed_round
from esper.karn.views.tables import EventTables
from esper.leyline.codec import Json
from esper.leyline.statistics import Estimate

MEMBERS: Final = 8
"""Members in a window."""


@reader
def read_life_lines(run: Path, at: int | None, first_member: int) -> dict[str, Json]:
    """Seeds of a round (None: the newest) and of `MEMBERS` members from one on."""
    tables = EventTables.of(run)
    newest = newest_seed_round(tables)
    at = newest if at is None else min(at, newest)
    lives = views.read_seeds(run, at, at)
    setup = views.read_setup(run)
    members = setup.members if setup else max((one.member + 1 for one in lives), default=0)
    first = max(0, min(first_member, members - 1)) // MEMBERS * MEMBERS
    window = range(first, min(members, first + MEMBERS))
    shown = [one for one in lives if one.member in window]
    steps, measured = views.read_steps(run, at), views.read_contributions(run, at, at)
    seeds = views.seed_growth(shown, measured)
    return {
        "round": at,
        "newest": newest,
        "members": members,
        "first": first,
        "window": len(window),
        "steps": setup.episode_length if setup else _last_step(seeds),
        "seeds": to_plain(seeds),
        "accuracy": [_point(one.step, one.accuracy) for one in steps],
        "train_accuracy": [
            _point(one.step, Estimate(one.train_accuracy, math.nan, math.nan)) for one in steps
        ],
        "contribution": [_point(*one) for one in contribution_by_step(measured)],
    }


def growth_entry(found: views.MemberGrowth) -> dict[str, Json]:
    """A member in a round as JSON, its sentences with the steps done when they came true."""
    plain = to_plain(found)
    assert isinstance(plain, dict)
    happened = ((0 if one.step is None else one.step + 1, one.what) for one in found.happened)
    return plain | {"happened": [{"at": at, "text": what} for at, what in happened]}


def stage_look() -> list[Json]:
    """Code, name and colour of every stage, in order."""
    return [
        {"stage": stage.name, "name": stage_name(stage), "colour": STAGE_COLOURS[stage]}
        for stage in STAGE_COLOURS
    ]


def _point(step: int, found: Estimate) -> Json:
    """A point of a curve above the lines, after its step."""
    return to_plain((step + 1, found.value, found.low, found.high))


def _last_step(seeds: tuple[views.SeedGrowth, ...]) -> int:
    spans = [span for seed in seeds for span in seed.stages]
    return max((max(span.first, span.end or 0) for span in spans), default=1)
