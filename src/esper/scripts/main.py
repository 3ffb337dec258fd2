"""The `esper` command and its subcommands; `cli` holds their shared code.

esper grow mine.py:model --train mine.py:train --params 50000
esper train ppo --task digits_impaired
"""

from __future__ import annotations

import gc
import importlib
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

import esper
from esper.leyline.errors import EsperError
from esper.scripts.cli.command import REFUSED, exit_status_of
from esper.scripts.cli.help import HELP_FLAGS
from esper.scripts.cli.streams import shows_life


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand."""

    module: str
    """Module in this package whose `main` runs it."""
    summary: str
    """One-line description for the help."""


COMMANDS: Final = {
    "train": Command("train", "train a population of hosts under a policy; ppo learns one"),
    "eval": Command("evaluate", "evaluate a saved controller on fresh hosts"),
    "compare": Command("compare", "compare policies and controllers on the same fresh hosts"),
    "audit": Command("audit", "train many topologies in many contexts: what is deciding worth"),
    "sweep": Command("sweep", "search settings of train ppo with Optuna"),
    "bench": Command("bench", "judge policies on the records of audits, without training"),
    "tasks": Command("tasks", "list tasks and the location of their data"),
    "runs": Command("runs", "list runs and their progress"),
    "doctor": Command("doctor", "show the environment: device, versions, executor, data"),
    "grow": Command("grow", "grow your model on your data within a budget"),
    "show": Command("show", "show the outcome of a run"),
    "query": Command("query", "ask a run with SQL: rounds, seeds, members, events"),
    "tui": Command("tui", "watch runs in the terminal, live or after their end"),
    "export": Command("export", "write a network of a run as .onnx, .pt2 or .safetensors"),
    "report": Command("report", "write the report of a run as one HTML page"),
    "serve": Command("serve", "show runs in the browser, also while they are written"),
}
"""Subcommands by name."""
LONG: Final = ("train", "eval", "compare", "audit", "bench", "grow", "export", "report")
"""Those that work for long: on a terminal they show a clock while they print nothing."""


def main() -> int:
    """Run the subcommand named on the command line; returns its exit status."""
    status = exit_status_of(lambda: dispatch(sys.argv[1:]))
    if "torch" in sys.modules:
        gc.freeze()  # else collecting all that torch holds takes seconds after the last line
    return status


def dispatch(words: list[str]) -> int:
    """As `main`, with the arguments after `esper`."""
    if not words or words[0] in HELP_FLAGS:
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
    shown = words[0] in LONG and "--quiet" not in words
    with shows_life(words[0]) if shown else nullcontext():
        command = importlib.import_module(f"esper.scripts.{COMMANDS[words[0]].module}")
        status: int = command.main()
    return status


def _help() -> str:
    lines = ["usage: esper COMMAND [--help] [settings]", ""]
    lines += [f"  {word:<8} {command.summary}" for word, command in COMMANDS.items()]
    lines += ["", "esper COMMAND --help lists the settings; esper --version prints the version."]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
