"""`say`: prints what a file may hold."""

from __future__ import annotations

import sys
from typing import TextIO

from esper.leyline.text import visible_lines


def say(text: object, file: TextIO | None = None) -> None:
    """Print text to stdout; what a terminal would obey is shown as an escape."""
    print(visible_lines(str(text)), file=file or sys.stdout)
