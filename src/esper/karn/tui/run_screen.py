"""Screen of one run: title, panels of its kind, keys. Reads the run in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Final

from rich.text import Text
from textual import events, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.screen import Screen
from textual.widgets import Footer, Static

from esper.karn.tui.contenders_table import ContendersTable
from esper.karn.tui.event_list import EventList, Log
from esper.karn.tui.formats import notice
from esper.karn.tui.frontier_chart import FrontierChart
from esper.karn.tui.learning_curve import LearningCurve
from esper.karn.tui.life_lines import LifeLines
from esper.karn.tui.members_table import MembersTable
from esper.karn.tui.networks_table import NetworksTable
from esper.karn.tui.panel import Panel
from esper.karn.tui.policy_health import PolicyHealth
from esper.karn.tui.reader import RunReader, RunShot
from esper.karn.tui.run_facts import RunFacts
from esper.karn.tui.title_bar import TitleBar
from esper.karn.views import RunKind
from esper.karn.views.damage import UNREADABLE, problem_of

PANELS: Final[dict[RunKind, tuple[type[Panel], ...]]] = {
    RunKind.TRAIN: (LearningCurve, MembersTable, LifeLines, PolicyHealth, RunFacts, EventList),
    RunKind.GROW: (FrontierChart, NetworksTable, RunFacts, Log),
    RunKind.COMPARE: (ContendersTable, RunFacts, Log),
    RunKind.AUDIT: (FrontierChart, NetworksTable, ContendersTable, RunFacts, Log),
}
POLL_SECONDS: Final = 1.0
WIDE: Final = 120
HIGH: Final = 34
"""Columns and rows from which all panels are shown at once."""
VERY_WIDE: Final = 180
"""Columns from which on three are beside each other."""


class NoticeLine(Static):
    """Says calmly that a run has ended, its writer is gone, or a file is damaged; else hidden."""

    def show(self, shot: RunShot) -> None:
        """Show the run as it is now."""
        unread = f"Not up to date: {shot.problem}" if shot.problem else ""
        self.say(" ".join(part for part in (notice(shot.summary), unread) if part))

    def say(self, text: str) -> None:
        """Show a sentence; hide the line if there is none."""
        self.display = bool(text)
        self.update(Text(text))


class PanelStrip(Static):
    """`1 Learning curve  2 Members ...`, the chosen one inverted."""

    def show_panels(self, panels: Sequence[Panel], chosen: Panel) -> None:
        """Show which panel is chosen; names are shortened until they fit."""
        width = self.app.size.width - 2
        names = [panel.TITLE for panel in panels]
        if sum(len(name) + 5 for name in names) > width:
            names = [panel.SHORT or panel.TITLE for panel in panels]
        words = [
            Text(f" {panel.number} {name} ", style="reverse bold" if panel is chosen else "")
            for panel, name in zip(panels, names, strict=True)
        ]
        self.update(Text(" ").join(words))


class RunScreen(Screen[None]):
    """A run of any kind, live or ended."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "next(1)", "Next panel"),
        Binding("N", "next(-1)", "Previous", show=False),
        *(Binding(str(at), f"choose({at})", f"Panel {at}", show=False) for at in range(1, 10)),
        Binding("z", "zoom", "One / all panels"),
        Binding("space", "pause", "Pause"),
        Binding("escape,r", "runs", "Runs", key_display="r"),
    ]

    def __init__(
        self, run: Path, kind: RunKind, read: Callable[[], RunShot | None] | None = None
    ) -> None:
        """`read`: what is shown; by default the run folder, again and again."""
        super().__init__(classes=f"-{kind.value}")
        self.panels = [panel(at) for at, panel in enumerate(PANELS[kind], start=1)]
        self.chosen = self.panels[0]
        self.shot: RunShot | None = None
        self._read = read or RunReader(run).read
        self._paused = self._zoomed = False

    def compose(self) -> ComposeResult:
        """Title, notice, names of the panels, panels, keys."""
        yield TitleBar()
        yield NoticeLine()
        yield PanelStrip()
        yield Container(*self.panels, id="panels")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Start reading."""
        self.query_one(NoticeLine).display = False
        self.action_choose(1)
        self.set_interval(POLL_SECONDS, self.poll)
        self.poll()

    def on_resize(self, event: events.Resize) -> None:
        """All panels at once only if they fit."""
        self._arrange()

    def poll(self) -> None:
        """Look for something new, unless paused or still reading."""
        busy = any(worker.name == "read" and not worker.is_finished for worker in self.workers)
        if not self._paused and not busy:
            self._poll()

    @work(thread=True, name="read", exit_on_error=False)
    def _poll(self) -> None:
        try:
            shot = self._read()
        except UNREADABLE as error:
            self.app.call_from_thread(self._say, problem_of(error))
            return
        if shot is not None:
            self.app.call_from_thread(self.show, shot)

    def _say(self, text: str) -> None:
        if self.is_mounted:
            self.query_one(NoticeLine).say(text)

    def show(self, shot: RunShot) -> None:
        """Show the run as it is now."""
        if not self.is_mounted:
            return
        self.shot = shot
        self.query_one(TitleBar).show(shot)
        self.query_one(NoticeLine).show(shot)
        for panel in self.panels:
            panel.show(shot)

    # ---- keys ----------------------------------------------------------------------------------

    def action_choose(self, number: int) -> None:
        """Go to a panel."""
        if 1 <= number <= len(self.panels):
            self.panels[number - 1].focus()
            self._choose(self.panels[number - 1])

    def action_next(self, step: int) -> None:
        """Go to the next panel, or the one before."""
        at = self.panels.index(self.chosen) + step
        self.action_choose(at % len(self.panels) + 1)

    def action_zoom(self) -> None:
        """One panel or all, where all fit."""
        self._zoomed = not self._zoomed
        self._arrange()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The key for all panels is shown where all fit."""
        return action != "zoom" or self._fits

    def action_pause(self) -> None:
        """Pause or resume reading."""
        self._paused = not self._paused
        self._say("Paused; space continues." if self._paused else "")
        if not self._paused:
            if self.shot is not None:
                self.query_one(NoticeLine).show(self.shot)
            self.poll()

    def action_runs(self) -> None:
        """Back to the list of runs."""
        self.dismiss(None)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """The panel with the focus is the chosen one."""
        if isinstance(event.widget, Panel):
            self._choose(event.widget)

    def _choose(self, panel: Panel) -> None:
        self.chosen = panel
        for one in self.panels:
            one.set_class(one is panel, "-chosen")
        self.query_one(PanelStrip).show_panels(self.panels, panel)

    @property
    def _fits(self) -> bool:
        return self.size.width >= WIDE and self.size.height >= HIGH

    def _arrange(self) -> None:
        self.set_class(self._zoomed or not self._fits, "-single")
        self.set_class(self.size.width >= VERY_WIDE, "-wide")
        self.refresh_bindings()
        self.query_one(PanelStrip).show_panels(self.panels, self.chosen)
