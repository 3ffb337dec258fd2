"""Code and commands on the pages of docs/."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def blocks(page: str) -> list[str]:
    """Blocks of Python on a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def shell_lines(page: Path) -> list[list[str]]:
    """Commands in blocks for the shell; lines that end in a backslash are joined."""
    found = re.findall(r"```sh\n(.*?)```", page.read_text(), flags=re.DOTALL)
    lines = "".join(found).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines]
