"""How settings are written on a command line, where tyro has to be told."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Literal

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from esper.leyline.errors import EsperError
from esper.simic.training.schedules import WHOLE_RUN, Schedule

REGISTRY: Final = ConstructorRegistry()
"""Types of ours that are written in few words."""


@REGISTRY.primitive_rule
def schedule_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Schedule] | None:
    """A schedule is one number, or where it starts, where it ends and after how many updates:
    a number, or `run` for those of the whole run."""
    if info.type is not Schedule:
        return None
    return PrimitiveConstructorSpec(
        nargs=(1, 3),
        metavar="START [END UPDATES|run]",
        instance_from_str=read_schedule,
        is_instance=lambda value: isinstance(value, Schedule),
        str_from_instance=schedule_words,
    )


def read_schedule(words: Sequence[str]) -> Schedule:
    """The schedule of one or three words.

    >>> read_schedule(["2e-3", "5e-4", "50"])
    Schedule(start=0.002, end=0.0005, steps=50)
    """
    if len(words) == 1:
        return Schedule(float(words[0]))
    if len(words) != 3:
        raise ValueError(f"{' '.join(words)}: give one number, or START END UPDATES")
    return Schedule(float(words[0]), float(words[1]), _read_steps(words[2]))


def _read_steps(word: str) -> int | Literal["run"]:
    if word == WHOLE_RUN:
        return WHOLE_RUN
    try:
        return int(word)
    except ValueError:
        raise ValueError(f"{word}: UPDATES must be a whole number or {WHOLE_RUN}") from None


def schedule_words(schedule: Schedule) -> list[str]:
    """The words that `read_schedule` reads."""
    if not schedule.steps:
        return [str(schedule.start)]
    return [str(schedule.start), str(schedule.end), str(schedule.steps)]


def peek(argv: Sequence[str], flag: str) -> str | None:
    """The value of a flag before the command line is read as a whole; the last one counts.

    As when it is read, a flag may be written with underscores.

    >>> peek(["ppo", "--rounds", "3", "--rounds=5"], "--rounds")
    '5'
    """
    found = None
    for word, following in pairwise([*argv, ""]):
        name, given, value = word.partition("=")
        if name.replace("_", "-") != flag:
            continue
        if given:
            found = value
        elif following and not following.startswith("-"):
            found = following
    return found


def peek_count(argv: Sequence[str], flag: str) -> int | None:
    """As `peek`, for a whole number; what is none is left for the full reading to refuse."""
    word = peek(argv, flag)
    try:
        return int(word) if word is not None else None
    except ValueError:
        return None


def fill_in(argv: Sequence[str], flag: str, value: str) -> list[str]:
    """The command line with `value` behind a flag that stands there bare.

    >>> fill_in(["--resume", "--quiet"], "--resume", "newest")
    ['--resume', 'newest', '--quiet']
    """
    filled = []
    for word, following in pairwise([*argv, "--"]):
        filled.append(word)
        if word == flag and following.startswith("-"):
            filled.append(value)
    return filled


def require_counts(**counts: int) -> None:
    """Refuse a flag whose number is below 1."""
    for name, value in counts.items():
        if value < 1:
            raise EsperError(f"--{name.replace('_', '-')} {value}: must be 1 or more")
