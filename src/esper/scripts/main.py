"""The `esper` command and its subcommands; `cli` holds their shared code.

esper grow mine.py:model --train mine.py:train --params 50000
esper train ppo --task digits_impaired
"""

from __future__ import annotations

import gc
import importlib
import sys
from contextlib import nullcontext
from difflib import get_close_matches
from typing import Final

import esper
from esper.leyline.errors import EsperError
from esper.scripts.cli.command import REFUSED, exit_status_of
from esper.scripts.cli.help import HELP_FLAGS
from esper.scripts.cli.plugins import Command, Plugin, plugins, require_installed
from esper.scripts.cli.streams import shows_life

COMMANDS: Final = {
    "train": Command(
        "esper.scripts.train",
        "train a population of hosts under a policy; ppo learns one",
        works_long=True,
    ),
    "eval": Command(
        "esper.scripts.evaluate", "evaluate a saved controller on fresh hosts", works_long=True
    ),
    "compare": Command(
        "esper.scripts.compare",
        "compare policies and controllers on the same fresh hosts",
        works_long=True,
    ),
    "tasks": Command("esper.scripts.tasks", "list tasks and the location of their data"),
    "runs": Command("esper.scripts.runs", "list runs and their progress; tag them"),
    "doctor": Command(
        "esper.scripts.doctor", "show the environment: device, versions, executor, data"
    ),
    "grow": Command(
        "esper.scripts.grow", "grow your model on your data within a budget", works_long=True
    ),
    "show": Command("esper.scripts.show", "show the outcome of a run"),
    "query": Command("esper.scripts.query", "ask a run with SQL: rounds, seeds, members, events"),
    "tui": Command("esper.scripts.tui", "watch runs in the terminal, live or after their end"),
    "export": Command(
        "esper.scripts.export",
        "write a network of a run as .onnx, .pt2 or .safetensors",
        works_long=True,
    ),
    "report": Command(
        "esper.scripts.report", "write the report of a run as one HTML page", works_long=True
    ),
    "serve": Command(
        "esper.scripts.serve", "show runs in the browser, also while they are written"
    ),
}
"""Subcommands by name; other packages add theirs (`cli/plugins.py`)."""


def main() -> int:
    """Run the subcommand named on the command line; returns its exit status."""
    status = exit_status_of(lambda: _dispatch(sys.argv[1:]))
    if "torch" in sys.modules:
        gc.freeze()  # else collecting all that torch holds takes seconds after the last line
    return status


def _dispatch(argv: list[str]) -> int:
    """As `main`, with the arguments after `esper`."""
    if not argv or argv[0] in HELP_FLAGS:
        print(_help())
        return 0 if argv else REFUSED
    if argv[0] == "--version":
        print(f"esper {esper.__version__}")
        return 0
    return _run(argv)


def _run(argv: list[str]) -> int:
    name = argv[0]
    plugin = None if name in COMMANDS else _plugin(name)
    command = COMMANDS[name] if plugin is None else plugin.command()
    sys.argv = [f"esper {name}", *argv[1:]]
    shown = command.works_long and "--quiet" not in argv
    with shows_life(name) if shown else nullcontext():
        main = plugin.main() if plugin else importlib.import_module(command.module).main
        status: int = main()
    return status


def _plugin(name: str) -> Plugin:
    """The command of another package; raises if there is none of that name."""
    found = plugins(COMMANDS)
    if name in found:
        return found[name]
    require_installed(name)
    known = [*COMMANDS, *found]
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise EsperError(f"unknown command {name!r}: {hint}valid: {', '.join(known)}")


def _help() -> str:
    summaries = {name: command.summary for name, command in COMMANDS.items()}
    summaries |= {name: plugin.summary() for name, plugin in plugins(COMMANDS).items()}
    lines = ["usage: esper COMMAND [--help] [settings]", ""]
    lines += [f"  {name:<8} {summary}" for name, summary in summaries.items()]
    lines += ["", "esper COMMAND --help lists the settings; esper --version prints the version."]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
