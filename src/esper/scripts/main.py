"""The `esper` command: a verb for each module or folder beside this one; `cli` is what they share.

esper train ppo --task digits_impaired
esper tasks
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

import esper
from esper.leyline.errors import EsperError
from esper.scripts.cli.command import REFUSED, guarded


@dataclass(frozen=True, slots=True)
class Command:
    """A verb of the command."""

    module: str
    """In this folder; its `main` does it."""
    says: str
    """What it does."""


COMMANDS: Final = {
    "train": Command("train", "train many hosts side by side under a policy; ppo learns one"),
    "eval": Command("evaluate", "judge a saved controller on fresh hosts"),
    "compare": Command("compare", "policies and controllers on the same fresh hosts, in pairs"),
    "tasks": Command("tasks", "list the tasks, and where their data are"),
    "runs": Command("runs", "list the runs of the learner, and how far they are"),
    "doctor": Command("doctor", "say what there is to work with: device, executor, data"),
}
"""Every verb, and the module that does it."""


def main() -> int:
    """Hand over to the command that was named; its exit status."""
    return guarded(lambda: dispatch(sys.argv[1:]))


def dispatch(words: list[str]) -> int:
    """As `main`, with the words behind `esper`."""
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return 0 if words else REFUSED
    if words[0] == "--version":
        print(f"esper {esper.__version__}")
        return 0
    if words[0] not in COMMANDS:
        near = get_close_matches(words[0], COMMANDS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise EsperError(f"unknown command {words[0]!r}: {hint}valid: {', '.join(COMMANDS)}")
    sys.argv = [f"esper {words[0]}", *words[1:]]
    command = importlib.import_module(f"esper.scripts.{COMMANDS[words[0]].module}")
    status: int = command.main()
    return status


def _help() -> str:
    lines = ["usage: esper COMMAND [--help] [settings]", ""]
    lines += [f"  {word:<8} {command.says}" for word, command in COMMANDS.items()]
    lines += ["", "esper COMMAND --help says what can be set; esper --version tells the version."]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
