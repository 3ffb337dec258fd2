"""Words and figures as the terminal interface writes them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rich.text import Text

from esper.karn.views import RunKind, RunState, RunSummary

_STATES: Final = {
    RunState.RUNNING: ("▶", "bold #56b4e9"),
    RunState.FINISHED: ("✓", "bold"),
    RunState.INTERRUPTED: ("‖", "bold #e69f00"),
    RunState.FAILED: ("✗", "bold #e69f00"),
    RunState.KILLED: ("✗", "bold #e69f00"),
    RunState.BROKEN: ("!", "bold #e69f00"),
}
"""Blue and orange, which every eye distinguishes; the mark says the same without colour."""
_LEVELS: Final = "▁▂▃▄▅▆▇█"


def state_text(state: RunState) -> Text:
    """A state with its mark."""
    mark, style = _STATES[state]
    return Text(f"{mark} {state.value}", style)


def notice(run: RunSummary) -> str:
    """One calm sentence about a run that nobody writes to; empty while it runs."""
    if run.state is RunState.FINISHED:
        return run.verdict and f"Finished: {run.verdict}."
    if run.state is RunState.INTERRUPTED:
        return f"Interrupted, with everything saved. {_resume(run)}"
    if run.state is RunState.FAILED:
        return f"Ended by an error: {run.problem}. {_resume(run)}"
    if run.state is RunState.KILLED:
        return f"Its process was killed; this is what it saved. {_resume(run)}"
    if run.state is RunState.BROKEN:
        return f"Cannot be read: {run.problem}"
    return ""


def _resume(run: RunSummary) -> str:
    if run.resume:
        return f"Resume with: {run.resume}"
    if run.kind is RunKind.GROW:
        return f"The same command with --resume {Path(run.path)} continues."
    return "The same command continues."


def known(value: float | None) -> bool:
    """Whether there is a figure."""
    return value is not None and math.isfinite(value)


def topology(blueprints: Iterable[str]) -> str:
    """Blueprint of every slot.

    >>> topology(("norm", "")), topology(("", ""))
    ('norm, empty', 'none')
    """
    found = tuple(blueprints)
    return ", ".join(name or "empty" for name in found) if any(found) else "none"


def middle(text: str, most: int) -> str:
    """A name with its middle left out, so that both of its ends are there.

    >>> middle("explained variance", 9), middle("norm", 9)
    ('expl…ance', 'norm')
    """
    if len(text) <= most:
        return text
    tail = max(0, most - 1) // 2
    return f"{text[: max(0, most - 1) - tail]}…{text[len(text) - tail :]}"


def sparkline(values: Iterable[float], width: int) -> str:
    """The last `width` values as bars of one line.

    >>> sparkline((0.0, 1.0, 2.0), 10)
    '▁▅█'
    """
    last = [value for value in values if math.isfinite(value)][-width:]
    if not last:
        return ""
    low, high = min(last), max(last)
    scale = (len(_LEVELS) - 1) / (high - low) if high > low else 0.0
    return "".join(_LEVELS[round((value - low) * scale)] for value in last)
