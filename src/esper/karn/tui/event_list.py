"""The newest events of a training run, one sentence each, newest first."""

from __future__ import annotations

import time

from rich.console import Group, RenderableType
from rich.text import Text

from esper.karn.tui.panel import Panel, hint
from esper.karn.tui.policy_health import WARNING_STYLE
from esper.karn.tui.reader import RunShot
from esper.karn.views import Sentence, recent_sentences
from esper.karn.views.sentences import UNUSUAL


class EventList(Panel):
    """What was recorded, newest first."""

    TITLE = "Events"

    def content(self, shot: RunShot, width: int, height: int) -> RenderableType:
        """One line per sentence."""
        told = recent_sentences(shot.events, shot.setup)
        return Group(*map(_line, reversed(told))) if told else hint("no event is recorded yet")


def _line(said: Sentence) -> Text:
    at = time.strftime("%H:%M:%S", time.localtime(said.time))
    place = "" if said.round is None else f"round {said.round + 1}"
    style = WARNING_STYLE if said.type in UNUSUAL else ""
    return Text.assemble(
        (f"{at} {place:<9} ", "dim"), (said.text, style), no_wrap=True, overflow="ellipsis"
    )
