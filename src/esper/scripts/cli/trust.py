"""May a task file be run? Whoever names one on the command line says so; a file of settings or a
run folder, which may come from others, does not.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from esper.leyline.errors import EsperError, shown
from esper.scripts.cli.flags import peek
from esper.tasks.task_files import is_file_reference

LONGEST_NAME: Final = 200
"""Characters that are repeated of a name that a terminal cannot show as it is."""


def require_trust(task: str, argv: Sequence[str], source: Path | None, trusted: bool) -> None:
    """Refuse to run a task file that only `source` names, unless it is trusted or a person says so.

    `argv`: the command line; `source`: the file or folder its settings come from; `trusted`: what
    --trust says.
    """
    if source is None or trusted or not is_file_reference(task) or peek(argv, "--task") == task:
        return
    name = shlex.quote(task) if task.isprintable() else shown(task, LONGEST_NAME)
    if not _agreed(f"{source} names the task file {name}, and its code would be run. Run it?"):
        raise EsperError(
            f"{source} names the task file {name}, which is only run if you say so: add --trust "
            f"or --task {name}"
        )


def _agreed(question: str) -> bool:
    """What a person at the terminal answers; nobody there: no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
