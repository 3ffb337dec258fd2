"""Checks that a saved state of an engine fits the engine that loads it."""

from __future__ import annotations

from esper.leyline.errors import EsperError


def require_same_run(mine: dict[str, int | str], state: dict[str, int | str]) -> None:
    """Raise if task, members, seed or episode length differ."""
    if set(state) != set(mine):
        raise EsperError(f"engine state has {sorted(state)}, expected {sorted(mine)}")
    for name, value in mine.items():
        if name != "round" and state[name] != value:
            raise EsperError(
                f"engine state: {name} is {state[name]!r}, expected {value!r}; "
                f"resume with the same {name}"
            )
