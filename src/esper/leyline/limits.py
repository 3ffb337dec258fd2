"""How large may a whole number be that somebody sets?

Beyond these no run would ever end or fit, and arithmetic in 64 bits overflows somewhere. What fits
into the memory of a machine is another question (`tolaria.memory_check`).
"""

from __future__ import annotations

from numbers import Integral
from typing import Final

from esper.leyline.errors import EsperError, shown

LARGEST_COUNT: Final = 10**9
"""Of rounds, epochs, checkpoints and whatever else is counted."""
MOST_MEMBERS: Final = 10**6
"""Of a population."""
LONGEST_EPISODE: Final = 10**6
"""In steps."""
MOST_BATCHES: Final = 10**6
"""Of a step."""
MOST_EPOCHS: Final = 1000
"""Passes over a rollout in one update: more would take longer than the rollout."""
WIDEST_NETWORK: Final = 2048
"""Numbers in a layer of the policy network: 100 million weights, whose orthogonal first values take
a CPU half a minute, and a layer of twice the width eight times as long."""


def is_whole(value: object) -> bool:
    """Whether it is a whole number, Python's or numpy's; True and False are none.

    >>> is_whole(3), is_whole(3.0), is_whole(True)
    (True, False, False)
    """
    return isinstance(value, Integral) and not isinstance(value, bool)


def require_at_most(where: str, value: int | None, most: int = LARGEST_COUNT) -> None:
    """Refuse what is no whole number, or a larger one; `where` is put before it, None is fine.

    >>> require_at_most("rounds=", 100)
    """
    if value is None:
        return
    if not is_whole(value):
        raise EsperError(f"{where}{shown(value)}: must be a whole number")
    if value > most:
        raise EsperError(f"{where}{shown(value)}: must be {most:,} or less")
