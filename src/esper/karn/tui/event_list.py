"""The newest events of a training run, one sentence each, newest first."""

from __future__ import annotations

import time

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from esper.karn.tui.panel import Panel, hint
from esper.karn.tui.policy_health import WARNING_STYLE
from esper.karn.tui.reader import RunShot
from esper.karn.views import recent_sentences
from esper.karn.views.sentences import UNUSUAL


class EventList(Panel):
    """What was recorded, newest first."""

    TITLE = "Events"

    def content(self, shot: RunShot, width: int, height: int) -> RenderableType:
        """When, which round, and what; a long sentence takes several lines."""
        sentences = recent_sentences(shot.events, shot.setup)
        if not sentences:
            return hint("no event is recorded yet")
        lines = Table.grid(padding=(0, 1))
        for said in reversed(sentences):
            at = time.strftime("%H:%M:%S", time.localtime(said.time))
            place = "" if said.round is None else f"round {said.round + 1}"
            style = WARNING_STYLE if said.type in UNUSUAL else ""
            lines.add_row(Text(at, "dim"), Text(place, "dim", no_wrap=True), Text(said.text, style))
        return lines
