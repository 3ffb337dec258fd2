"""What happened in a run, a line each, newest first: events of training, runs of a search."""

from __future__ import annotations

import math
import time

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from esper.karn.tui.panel import Panel, hint
from esper.karn.tui.policy_health import WARNING_STYLE
from esper.karn.tui.reader import RunShot
from esper.karn.views import LogLine, RunKind, log_of_events
from esper.plotting.durations import duration


class EventList(Panel):
    """The log of a training run."""

    TITLE = "Events"

    def content(self, shot: RunShot, width: int, height: int) -> RenderableType:
        """When, which round or rung, and what; a long line is wrapped."""
        log = shot.log or log_of_events(shot.events, shot.setup)
        if not log:
            return hint("no event is recorded yet")
        lines = Table.grid(padding=(0, 1))
        for line in reversed(log):
            style = WARNING_STYLE if line.unusual else ""
            place = Text(_place(line, shot.summary.kind), "dim", no_wrap=True)
            lines.add_row(Text(_when(line), "dim", no_wrap=True), place, Text(line.text, style))
        return lines


class Log(EventList):
    """The log of a search, a comparison or an audit."""

    TITLE = "Log"


def _when(line: LogLine) -> str:
    if math.isfinite(line.elapsed):
        return duration(line.elapsed)
    at = line.time
    return time.strftime("%H:%M:%S", time.localtime(at)) if math.isfinite(at) else ""


def _place(line: LogLine, kind: RunKind) -> str:
    if line.round is None:
        return ""
    return f"rung {line.round}" if kind is RunKind.GROW else f"round {line.round + 1}"
