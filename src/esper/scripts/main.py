"""The `esper` command: one door, a word for each room behind it.

esper train fixed --task digits_impaired
esper tasks
"""

from __future__ import annotations

import importlib
import sys
from difflib import get_close_matches
from typing import Final

from esper.scripts.door import REFUSED

COMMANDS: Final = {
    "train": "train many hosts side by side under a policy",
    "tasks": "list the tasks, and where their data are",
}
"""Word -> what it does; the module of that name in this folder does it."""


def main() -> int:
    """Hand over to the command that was named; its exit status."""
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return 0 if words else REFUSED
    if words[0] not in COMMANDS:
        near = get_close_matches(words[0], COMMANDS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        print(f"error: unknown command {words[0]!r}: {hint}valid: {', '.join(COMMANDS)}",
              file=sys.stderr)  # fmt: skip
        return REFUSED
    sys.argv = [f"esper {words[0]}", *words[1:]]
    command = importlib.import_module(f"esper.scripts.{words[0]}")
    status: int = command.main()
    return status


def _help() -> str:
    lines = ["usage: esper COMMAND [--help] [settings]", ""]
    lines += [f"  {word:<8} {says}" for word, says in COMMANDS.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
