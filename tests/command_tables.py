"""Generates the lists of settings of docs/commands.md and docs/lab.md from `--help`.

A setting is described once: on the page that owns its topic, else at the first command that has
it. Other lists name it, with its default where that differs.

python tests/command_tables.py       writes them anew
"""

from __future__ import annotations

import contextlib
import re
import sys
from functools import cache
from pathlib import Path
from unittest.mock import patch

from esper.growing.settings import GrowSettings
from esper.karn.query.columns import field_docs
from esper.scripts.cli import help as command_help
from esper.scripts.main import main

DOCS = Path(__file__).parents[1] / "docs"
PAGES = (DOCS / "commands.md", DOCS / "lab.md")
BLOCK = re.compile(r"<!-- (esper [a-z -]+) --help -->\n.*?<!-- end -->", re.DOTALL)
ARGUMENTS = "the [arguments of `esper.grow`](grow-reference.md#arguments)"

LEARNER = "esper train ppo"
FEW = 3
OWNERS = {
    "budget": "Described in [the budget](grow-reference.md#budget)",
    "learner": "Described on [the PPO learner](ppo.md#settings)",
    "reward": "Described on [rewards](rewards.md)",
}
"""Topic -> the page that describes its settings."""


@cache
def help_of(command: str) -> command_help.Help:
    """What a command says about itself."""
    found: list[command_help.Help] = []
    with (
        contextlib.suppress(SystemExit),
        patch.object(command_help, "render", lambda shown, _: found.append(shown) or ""),
        patch.object(sys, "argv", [*command.split(), "--help"]),
        contextlib.redirect_stdout(None),
    ):
        main()
    return found[0]


@cache
def described_before(command: str) -> dict[tuple[str, str], tuple[str, str | None]]:
    """Flag and description -> where a page has it already, and its default there."""
    found: dict[tuple[str, str], tuple[str, str | None]] = {}
    for name, says in field_docs(GrowSettings).items():
        found[f"--{name.replace('_', '-')}", says] = (ARGUMENTS, None)
    order = [one for page in PAGES for one in BLOCK.findall(page.read_text())]
    for earlier in order[: order.index(command)]:
        for settings in help_of(earlier).by_topic().values():
            for one in settings:
                key = (one.form.split()[0].rstrip(","), one.says)
                found.setdefault(key, (f"`{earlier}`", one.default))
    return found


def line(form: str, says: str, default: str) -> str:
    """A setting, as Markdown; a default that says nothing is left out."""
    shown = "" if default in ("", "None", "False", "''") else f" (`{default}`)"
    return f"- `{form}`{shown}: {says}"


def named(command: str, flags: list[str]) -> str:
    """Flags by name; whole topics of `esper train ppo` by the name of the topic."""
    topics: dict[str, list[str]] = {}
    if command != LEARNER:
        for topic, settings in help_of(LEARNER).by_topic().items():
            whole = [f"`--{one.name}`" for one in settings]
            if len(whole) > FEW and set(whole) <= set(flags):
                topics[topic] = whole
    hidden = {flag for whole in topics.values() for flag in whole}
    shown = [flag for flag in flags if flag not in hidden]
    return ", ".join([*shown, *(f"all of *{topic}*" for topic in topics)])


def list_of(command: str) -> str:
    """The settings of a command, as Markdown, and those that are described elsewhere."""
    lines: list[str] = []
    elsewhere: dict[str, list[str]] = {}
    before, by_topic = described_before(command), help_of(command).by_topic()
    for topic, settings in by_topic.items():
        own = []
        for one in settings:
            flag = one.form.split()[0].rstrip(",")
            owner, default = before.get((flag, one.says), ("", None))
            if topic in OWNERS or (owner and default in (None, one.default)):
                place = OWNERS.get(topic, f"Same as {owner}")
                elsewhere.setdefault(place, []).append(f"`{flag}`")
            elif owner:
                own.append(line(flag, f"same as {owner}.", one.default or "none"))
            else:
                own.append(line(one.form.split(", --")[0], one.says, one.default))
        lines += [f"\n**{topic}**\n", *own] if own and len(by_topic) > 1 else own
    notes = [f"\n{place}: {named(command, flags)}." for place, flags in elsewhere.items()]
    return "\n".join([*lines, *notes]).strip("\n")


def written(page: str) -> str:
    """The page with its lists as they should be."""
    return BLOCK.sub(
        lambda found: f"<!-- {found[1]} --help -->\n\n{list_of(found[1])}\n<!-- end -->", page
    )


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written(page.read_text()))
