"""`Panel`: a numbered box that shows one side of a run, drawn anew when run or size change."""

from __future__ import annotations

from typing import ClassVar

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from esper.karn.tui.reader import RunShot
from esper.karn.views.damage import UNREADABLE, problem_of


class Panel(VerticalScroll):
    """Base of the panels; subclasses implement `content`."""

    TITLE: ClassVar[str]
    SHORT: ClassVar[str] = ""
    """Name where room is short; default: the title."""
    can_focus = True

    def __init__(self, number: int) -> None:
        super().__init__(id=f"panel-{number}")
        self.number = number
        self.border_title = f"{number} {self.TITLE}"
        self._shot: RunShot | None = None

    def compose(self) -> ComposeResult:
        """The text, which may be longer than the box."""
        yield Static(Text("reading the run", style="dim"), classes="panel-text")

    def show(self, shot: RunShot) -> None:
        """Show the run as it is now."""
        self._shot = shot
        self._draw()

    def on_resize(self, event: events.Resize) -> None:
        """Draw for the new size."""
        self._draw()

    def _draw(self) -> None:
        size = self.scrollable_content_region
        if self._shot is not None and size.width > 0 and size.height > 0:
            self.query_one(Static).update(self._content(self._shot, size.width, size.height))

    def _content(self, shot: RunShot, width: int, height: int) -> RenderableType:
        """The content, or why it cannot be drawn: files may hold any number."""
        try:
            return self.content(shot, width, height)
        except UNREADABLE as error:
            return hint(f"cannot be drawn: {problem_of(error)}")

    def content(self, shot: RunShot, width: int, height: int) -> RenderableType:
        """What to show in a box of this size."""
        raise NotImplementedError


def plain_table(*columns: str, right: tuple[int, ...] = ()) -> Table:
    """A table without lines; `right`: columns of figures."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for at, name in enumerate(columns):
        justify = "right" if at in right else "left"
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    return table


def not_yet(shot: RunShot, text: str) -> Text:
    """What is said before the first figures, and what is under way meanwhile."""
    now = shot.summary.under_way
    return hint(f"{text}\nnow: {now}" if now else text)


def hint(text: str) -> Text:
    """What is said in place of figures that are not there (yet)."""
    return Text(text, style="dim")
