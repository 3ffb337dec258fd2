"""A line that says calmly when a run has ended, its writer is gone, or a file is unreadable."""

from __future__ import annotations

from rich.text import Text
from textual.widgets import Static

from esper.karn.tui.formats import notice
from esper.karn.tui.reader import RunShot


class NoticeLine(Static):
    """Hidden while there is nothing to say."""

    def show(self, shot: RunShot) -> None:
        """Show the run as it is now."""
        unread = f"Not up to date: {shot.problem}" if shot.problem else ""
        self.say(" ".join(part for part in (notice(shot.summary), unread) if part))

    def say(self, text: str) -> None:
        """Show a sentence; hide the line if there is none."""
        self.display = bool(text)
        self.update(Text(text))
