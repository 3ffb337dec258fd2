"""The numbers and names of the panels, for terminals that show one at a time."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.widgets import Static

from esper.karn.tui.panel import Panel


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
