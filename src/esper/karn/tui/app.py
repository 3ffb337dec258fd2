"""`EsperTUI`: the terminal interface of a folder of runs, or of one run in it."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

from esper.karn.tui.run_screen import RunScreen
from esper.karn.tui.runs_screen import RunsScreen
from esper.karn.views import kind_of


class EsperTUI(App[None]):
    """Shows runs; writes nothing and never touches what trains."""

    TITLE = "esper"
    CSS_PATH = Path(__file__).with_name("style.tcss")
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "quit", "Quit")]

    def __init__(self, root: Path, run: Path | None = None) -> None:
        """`root`: folder of runs; `run`: the one to open, which raises if it holds none."""
        super().__init__()
        self._root = root
        self._first = None if run is None else RunScreen(run, kind_of(run))

    def on_mount(self) -> None:
        """Open the list, and the run above it."""
        self.push_screen(RunsScreen(self._root))
        if self._first is not None:
            self.push_screen(self._first)
