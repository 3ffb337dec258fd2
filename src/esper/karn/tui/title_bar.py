"""Lines above a run: which one in which state, how far it is, its result, what is under way."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text
from textual.widgets import Static

from esper.karn.stages import stage_name
from esper.karn.tui.formats import state_text
from esper.karn.tui.reader import RunShot
from esper.karn.tui.stage_marks import stage_mark
from esper.karn.views import RunSummary
from esper.leyline.stages import SeedStage
from esper.plotting.durations import duration
from esper.plotting.numbers import fixed

_BAR = 24
_SHORT_BAR = 10


class TitleBar(Static):
    """Name, kind, state; progress, time and speed; result; what is under way."""

    def show(self, shot: RunShot) -> None:
        """Show the run as it is now."""
        width, run = self.app.size.width, shot.summary
        result = Text(run.headline, style="bold", no_wrap=True, overflow="ellipsis")
        lines = [_name(shot, width), _progress(shot, width), *([result] if run.headline else [])]
        self.update(Group(*lines, *([_under_way(run)] if run.live is not None else [])))


def _name(shot: RunShot, width: int) -> Text:
    run = shot.summary
    state = state_text(run.state)
    kind = f"  {run.kind.value}  "
    name = Text(run.name, style="bold")
    name.truncate(max(10, width - 2 - len(kind) - len(state)), overflow="ellipsis")
    return Text.assemble(name, kind, state, no_wrap=True)


def _progress(shot: RunShot, width: int) -> Text:
    run = shot.summary
    line = Text(no_wrap=True, overflow="ellipsis")
    if run.progress is not None:
        bar = _BAR if width >= 100 else _SHORT_BAR
        full = round(run.progress * bar)
        line.append("█" * full, style="#56b4e9").append("░" * (bar - full), style="dim")
        line.append(" ")
    parts = [run.amount, *([] if run.unit == "minutes" else [duration(run.seconds)])]
    if run.seconds_left is not None:
        parts.append(f"{duration(run.seconds_left)} left")
    if shot.speeds:
        parts.append(f"{fixed(shot.speeds[-1].member_steps_per_second, 1)} member-steps/s")
    return line.append("  ".join(parts))


def _under_way(run: RunSummary) -> Text:
    """What the process of the run does, and the stages that slots are in."""
    line = Text(run.under_way, no_wrap=True, overflow="ellipsis")
    for name, count in run.live.stages if run.live is not None else ():
        stage = SeedStage[name]
        line.append("  ").append_text(stage_mark(stage)).append(f" {count} {stage_name(stage)}")
    return line
