"""Command-line syntax beyond tyro's defaults: schedules, early flag lookup, hints."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import Final, Literal

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from esper.leyline.context import NAMED_CONTEXTS, ContextSpec
from esper.simic.agent.schedule import WHOLE_RUN, Schedule
from esper.tasks.context_files import context_text, read_context

REGISTRY: Final = ConstructorRegistry()
"""Custom tyro constructors."""


@REGISTRY.primitive_rule
def _schedule_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Schedule] | None:
    """Parse a schedule from one number, or START END UPDATES; UPDATES may be `run`."""
    if info.type is not Schedule:
        return None
    return PrimitiveConstructorSpec(
        nargs=(1, 3),
        metavar="START [END UPDATES|run]",
        instance_from_str=_read_schedule,
        is_instance=lambda value: isinstance(value, Schedule),
        str_from_instance=_schedule_arguments,
    )


def _read_schedule(arguments: Sequence[str]) -> Schedule:
    """Parse one or three arguments.

    >>> _read_schedule(["2e-3", "5e-4", "50"])
    Schedule(start=0.002, end=0.0005, steps=50)
    """
    if len(arguments) == 1:
        return Schedule(float(arguments[0]))
    if len(arguments) != 3:
        raise ValueError(f"{' '.join(arguments)}: give one number, or START END UPDATES")
    return Schedule(float(arguments[0]), float(arguments[1]), _read_steps(arguments[2]))


def _read_steps(text: str) -> int | Literal["run"]:
    if text == WHOLE_RUN:
        return WHOLE_RUN
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text}: UPDATES must be a whole number or {WHOLE_RUN}") from None


def _schedule_arguments(schedule: Schedule) -> list[str]:
    """Format for `_read_schedule`."""
    if not schedule.steps:
        return [str(schedule.start)]
    return [str(schedule.start), str(schedule.end), str(schedule.steps)]


@REGISTRY.primitive_rule
def _context_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[ContextSpec | None] | None:
    """Parse contexts from a name, a JSON file or JSON text; None: the task's."""
    if info.type != (ContextSpec | None):
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="|".join(("{None}", *NAMED_CONTEXTS, "FILE.json")),
        instance_from_str=lambda given: None if given[0] == "None" else read_context(given[0]),
        is_instance=lambda value: value is None or isinstance(value, ContextSpec),
        str_from_instance=lambda spec: ["None" if spec is None else context_text(spec)],
    )


def flag_value(argv: Sequence[str], flag: str) -> str | None:
    """Look up the value of a flag before the command line is parsed; the last one wins.

    Like tyro, it accepts underscores.

    >>> flag_value(["ppo", "--rounds", "3", "--rounds=5"], "--rounds")
    '5'
    """
    found = None
    for argument, following in pairwise([*argv, ""]):
        name, given, value = argument.partition("=")
        if name.replace("_", "-") != flag:
            continue
        if given:
            found = value
        elif following and not following.startswith("-"):
            found = following
    return found


def int_flag_value(argv: Sequence[str], flag: str) -> int | None:
    """As `flag_value`, as an int; None if it is not one (parsing will report it)."""
    argument = flag_value(argv, flag)
    try:
        return int(argument) if argument is not None else None
    except ValueError:
        return None


def insert_flag_value(argv: Sequence[str], flag: str, value: str) -> list[str]:
    """Insert `value` after a flag that has none.

    >>> insert_flag_value(["--resume", "--quiet"], "--resume", "newest")
    ['--resume', 'newest', '--quiet']
    """
    filled = []
    for argument, following in pairwise([*argv, "--"]):
        filled.append(argument)
        if argument == flag and following.startswith("-"):
            filled.append(value)
    return filled


def unknown_flag(message: str, flags: Callable[[], Sequence[str]]) -> str:
    """What to write instead of an unknown flag; empty if tyro complains about something else.

    >>> unknown_flag("Unrecognized options: --epoch, 3", lambda: ["learning-rate", "epochs"])
    '--epoch: unknown; did you mean --epochs?'
    """
    unknown = re.match(r"Unrecognized options?: --([\w.-]+)", message)
    if unknown is None:
        return ""
    near = get_close_matches(unknown[1].replace("_", "-").lower(), flags(), n=1)
    return f"--{unknown[1]}: unknown;" + (f" did you mean --{near[0]}?" if near else "")
