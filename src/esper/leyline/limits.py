"""Upper limits of integer settings.

Larger values would never finish or would overflow 64-bit arithmetic. Whether a run fits into memory
is checked elsewhere (`tolaria.memory_check`).
"""

from __future__ import annotations

from numbers import Integral
from typing import Final

from esper.leyline.errors import EsperError, shown

MAX_COUNT: Final = 10**9
"""Rounds, epochs, checkpoints and other counts."""
MAX_MEMBERS: Final = 10**6
"""Members of a population."""
MAX_EPISODE_LENGTH: Final = 10**6
"""Steps per episode."""
MAX_BATCHES_PER_STEP: Final = 10**6
"""Batches per step."""
MAX_EPOCHS: Final = 1000
"""PPO epochs per update."""
MAX_NETWORK_WIDTH: Final = 2048
"""Units of a layer of the policy network. Orthogonal initialisation of this width takes half a
minute on a CPU, and eight times as long for twice the width."""


def is_integer(value: object) -> bool:
    """Whether `value` is an integer (Python or numpy), and not a bool.

    >>> is_integer(3), is_integer(3.0), is_integer(True)
    (True, False, False)
    """
    return isinstance(value, Integral) and not isinstance(value, bool)


def require_at_most(where: str, value: int | None, most: int = MAX_COUNT) -> None:
    """Raise if `value` is not an integer or exceeds `most`; `where` prefixes the message.

    >>> require_at_most("rounds=", 100)
    """
    if value is None:
        return
    if not is_integer(value):
        raise EsperError(f"{where}{shown(value)}: must be an integer")
    if value > most:
        raise EsperError(f"{where}{shown(value)}: must be {most:,} or less")


def require_counts(most: int = MAX_COUNT, **counts: int) -> None:
    """Raise if a flag's number is below 1 or above `most`."""
    for name, value in counts.items():
        flag = f"--{name.replace('_', '-')}"
        require_at_most(f"{flag} ", value, most)
        if value < 1:
            raise EsperError(f"{flag} {value}: must be 1 or more")
