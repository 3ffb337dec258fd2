"""Asks before running a file, a task or a reward, that only a config file or run folder names,
because these may come from someone else.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from esper.leyline.errors import EsperError, shown
from esper.scripts.cli.flags import flag_value
from esper.tasks.task_files import is_file_reference

MAX_NAME_CHARS: Final = 200
"""Maximum characters of an unprintable name in a message."""


def require_trust(
    reference: str, argv: Sequence[str], source: Path | None, trusted: bool, what: str = "task"
) -> None:
    """Raise if only `source` names the file, unless it is trusted or the user agrees.

    `argv`: the command line; `source`: the file or folder of the settings; `trusted`: value of
    --trust; `what`: task or reward, also the name of the flag.
    """
    if (
        source is None
        or trusted
        or not is_file_reference(reference)
        or flag_value(argv, f"--{what}") == reference
    ):
        return
    printable = reference.isprintable()
    name = shlex.quote(reference) if printable else shown(reference, MAX_NAME_CHARS)
    if not _agreed(f"{source} names the {what} file {name}. Run its code?"):
        raise EsperError(
            f"{source} names the {what} file {name}, which is not run without your consent: add "
            f"--trust or --{what} {name}"
        )


def _agreed(question: str) -> bool:
    """Ask the user; False without a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
