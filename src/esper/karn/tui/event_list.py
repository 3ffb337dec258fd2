"""The newest events of a training run, one line each, newest first."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from esper.karn.tui.panel import Panel, hint
from esper.karn.tui.policy_health import WARNING_STYLE
from esper.karn.tui.reader import RunShot
from esper.karn.views import EventLine
from esper.leyline.codec import Json
from esper.plotting.numbers import fixed

_UNUSUAL: Final = ("ANOMALY_DETECTED", "GOVERNOR_PANIC", "GOVERNOR_ROLLBACK")
_SHOWN_ELSEWHERE: Final = frozenset(
    {
        "ACTION_DISTRIBUTION",
        "COUNTERFACTUALS_MEASURED",
        "COUNTERFACTUAL_UNAVAILABLE",
        "EPISODE_OUTCOME",
        "LAST_ACTION",
        "MASK_HIT_RATES",
        "PHASE_PROFILE",
        "REWARD_SUMMARY",
        "SEED_GATE_EVALUATED",
        "STEP_COMPLETED",
        "THROUGHPUT",
    }
)
"""Left out: figures of every step or round, which other panels show."""
_FIGURES: Final[Mapping[str, tuple[str, ...]]] = {
    "ROUND_COMPLETED": ("mean_score", "best_score"),
    "CHECKPOINT_SAVED": ("reason",),
    "CHECKPOINT_LOADED": ("rounds_done",),
    "RUN_STARTED": ("policy", "task"),
    "RUN_FINISHED": ("status", "best_score"),
    "ANOMALY_DETECTED": ("detail",),
    "GOVERNOR_PANIC": ("reason",),
}
"""Fields of a type's payload that are shown."""


class EventList(Panel):
    """What was recorded, newest first."""

    TITLE = "Events"

    def content(self, shot: RunShot, width: int, height: int) -> RenderableType:
        """One line per event."""
        shown = [one for one in reversed(shot.events) if one.type not in _SHOWN_ELSEWHERE]
        return Group(*(_line(one) for one in shown)) if shown else hint("no event is recorded yet")


def _line(event: EventLine) -> Text:
    style = WARNING_STYLE if event.type in _UNUSUAL else ""
    at = time.strftime("%H:%M:%S", time.localtime(event.time))
    place = "" if event.round is None else f"round {event.round + 1}"
    place += "" if event.step is None else f" step {event.step + 1}"
    name = event.type.lower().replace("_", " ")
    return Text.assemble(
        (f"{at} ", "dim"), (f"{place:<17}", "dim"), (name, style), _details(event), no_wrap=True,
        overflow="ellipsis",
    )  # fmt: skip


def _details(event: EventLine) -> str:
    """The figures of an event; who it is about, if it is about members."""
    members = event.payload.get("member_N")
    if event.type == "MEMBER_RESTARTED":
        return ": " + ", ".join(_restarts(event.payload))
    if isinstance(members, list):
        found = sorted({str(one) for one in members}, key=lambda one: (len(one), one))
        more = " ..." if len(found) > 6 else ""
        return f" in member{'s' if len(found) > 1 else ''} {', '.join(found[:6])}{more}"
    said = [_word(event.payload.get(name)) for name in _FIGURES.get(event.type, ())]
    return ": " + ", ".join(one for one in said if one) if any(said) else ""


def _restarts(payload: Mapping[str, Json]) -> list[str]:
    """`member 3 began anew (restart 2)`, for each."""
    columns = (payload.get(name) for name in ("member_N", "restart_N"))
    listed = (column if isinstance(column, list) else [] for column in columns)
    return [
        f"member {member} began anew" + ("" if count == 1 else f" (restart {count})")
        for member, count in zip(*listed, strict=False)
    ]


def _word(value: Json) -> str:
    return fixed(value) if isinstance(value, float) else "" if value is None else str(value).lower()
