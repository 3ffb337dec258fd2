"""`Terminal`: the rich console of all commands. Strings are text, never markup or controls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from esper.leyline.text import visible_lines

PLAIN_WIDTH: Final = 110
"""Columns of a report without a terminal."""


class Terminal(Console):
    """Only `Text` and tables bring styles, and no character of a text is obeyed."""

    def __init__(self, width: int | None = None, stderr: bool = False, **more: Any) -> None:
        """`width`: where it is no terminal."""
        super().__init__(markup=False, emoji=False, stderr=stderr, **more)
        if width is not None and not self.is_terminal:
            self.width = width

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """As of any console, with `visible` text."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield segment._replace(text=visible_lines(segment.text))


def console_for_report() -> Terminal:
    """The console that reports are printed to: of the terminal's width, or `PLAIN_WIDTH`."""
    return Terminal(PLAIN_WIDTH)
