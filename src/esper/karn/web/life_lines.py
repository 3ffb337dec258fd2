"""Life lines of one round for a page: a window of members, however many there are."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from esper.karn import views
from esper.karn.stages import STAGE_COLOURS, STAGE_WORDS
from esper.karn.views.plain import to_plain
from esper.karn.views.seeds import newest_seed_round
from esper.karn.views.tables import EventTables
from esper.leyline.codec import Json

MEMBERS: Final = 8
"""Members in a window."""


def read_life_lines(run: Path, at: int | None, first_member: int) -> dict[str, Json]:
    """Seeds of a round (None: the newest) and of `MEMBERS` members from one on."""
    tables = EventTables.of(run)
    newest = newest_seed_round(tables)
    at = newest if at is None else min(at, newest)
    lives = views.read_seeds(run, at, at) if at >= 0 else ()
    setup = views.read_setup(run)
    members = setup.members if setup else max((one.member + 1 for one in lives), default=0)
    first = max(0, min(first_member, members - 1)) // MEMBERS * MEMBERS
    window = range(first, min(members, first + MEMBERS))
    shown = [one for one in lives if one.member in window]
    return {
        "round": at,
        "newest": newest,
        "members": members,
        "first": first,
        "window": len(window),
        "steps": setup.episode_length if setup else _last_step(lives),
        "seeds": to_plain(shown),
    }


def stage_look() -> list[Json]:
    """Name, word and colour of every stage, in order."""
    return [
        {"stage": stage.name, "word": STAGE_WORDS[stage], "colour": STAGE_COLOURS[stage]}
        for stage in STAGE_WORDS
    ]


def _last_step(lives: tuple[views.SeedLife, ...]) -> int:
    spans = [span for life in lives for span in life.stages]
    return max((max(span.first, span.end or 0) + 1 for span in spans), default=1)
