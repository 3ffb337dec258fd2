"""`Terminal`: the rich console of all commands. Strings are text, never markup or controls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from esper.leyline.text import visible_lines


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
