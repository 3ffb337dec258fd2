"""Screen with the runs of a folder to choose from, newest first."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Footer, Static

from esper.karn import views
from esper.karn.tui.run_screen import RunScreen
from esper.karn.tui.runs_table import RunsTable
from esper.karn.views.damage import UNREADABLE, problem_of

POLL_SECONDS = 2.0


class RunsScreen(Screen[None]):
    """A table of runs; Enter opens one."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root
        self._runs: tuple[views.RunSummary, ...] = ()

    def compose(self) -> ComposeResult:
        """Title, table, keys."""
        yield Static(Text(f"Runs in {self.root}", style="bold"), id="runs-title")
        yield Static(Text("looking for runs", style="dim"), id="runs-note")
        yield RunsTable()
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Start looking."""
        self.query_one(RunsTable).focus()
        self.set_interval(POLL_SECONDS, self.poll)
        self.poll()

    def poll(self) -> None:
        """List the runs again, unless they are being listed or another screen is on top."""
        busy = any(worker.name == "list" and not worker.is_finished for worker in self.workers)
        if self.is_current and not busy:
            self._list()

    @work(thread=True, name="list", exit_on_error=False)
    def _list(self) -> None:
        try:
            runs = tuple(reversed(views.list_runs(self.root)))
        except UNREADABLE as error:
            self.app.call_from_thread(self._show, (), problem_of(error))
        else:
            note = "" if runs else f"no runs in {self.root} yet: esper grow --demo starts one"
            self.app.call_from_thread(self._show, runs, note)

    def _show(self, runs: tuple[views.RunSummary, ...], note: str) -> None:
        if not self.is_mounted:
            return
        said = self.query_one("#runs-note", Static)
        said.display = bool(note)
        said.update(Text(note))
        if runs == self._runs:
            return
        self._runs = runs
        self.query_one(RunsTable).show(runs)

    def on_data_table_row_selected(self, event: RunsTable.RowSelected) -> None:
        """Open the run."""
        run = self._runs[event.cursor_row]
        self.app.push_screen(RunScreen(run.path, run.kind))
