"""Table of runs with their state and progress; Enter chooses one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from esper.karn.tui.formats import state_text
from esper.karn.views import RunSummary
from esper.plotting.numbers import UNKNOWN, fixed

_COLUMNS = ("state", "kind", "done", "result", "run", "tags", "created (UTC)")


class RunsTable(DataTable[Text]):
    """One row per run; the cursor stays on its run when others are added."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "Open"),
        Binding("up", "cursor_up", "Up", key_display="↑"),
        Binding("down", "cursor_down", "Down", key_display="↓"),
    ]

    def __init__(self) -> None:
        super().__init__(cursor_type="row", zebra_stripes=True)
        self._names: list[str] = []

    def on_mount(self) -> None:
        """Name the columns."""
        for name in _COLUMNS:
            self.add_column(name, key=name)

    def show(self, runs: Sequence[RunSummary]) -> None:
        """Show these runs."""
        at = self.cursor_row
        chosen = self._names[at] if 0 <= at < len(self._names) else ""
        self.clear()
        for run in runs:
            self.add_row(*_row(run), key=str(run.path))
        self._names = [run.name for run in runs]
        if chosen in self._names:
            self.move_cursor(row=self._names.index(chosen))


def _row(run: RunSummary) -> tuple[Text, ...]:
    return (
        state_text(run.state),
        Text(run.kind.value),
        Text(run.amount if run.unit else UNKNOWN),
        _result(run),
        Text(run.name),
        Text(", ".join(run.tags)),
        Text(run.created_short or UNKNOWN),
    )


def _result(run: RunSummary) -> Text:
    """The score, and what it rests on."""
    found = run.result
    if not found.text:
        return Text(UNKNOWN)
    return Text(f"{fixed(found.score)} {found.basis}", style="bold" if found.is_judged else "")
