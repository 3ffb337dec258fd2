"""Which seeds are there, which are for learning, and which are kept to judge what was learnt?"""

from __future__ import annotations

from typing import Final

from esper.leyline.errors import EsperError, shown
from esper.leyline.limits import is_whole

LARGEST_SEED: Final = 2**64 - 1
"""Random streams are keyed by 64 bits."""
EVALUATION_SEEDS: Final = range(10_000_019, 10_020_019)
"""Run seeds policies are compared on, fixed beforehand; nothing is trained or tuned on them."""


def require_seed(seed: int, where: str) -> None:
    """Refuse what is no seed: a larger one would be another one again, modulo 2**64.

    >>> require_seed(2**64 - 1, "seed")
    """
    if not (is_whole(seed) and 0 <= seed <= LARGEST_SEED):
        raise EsperError(f"{where} {shown(seed)}: must be a whole number from 0 to {LARGEST_SEED}")


def require_training_seed(seed: int, where: str) -> None:
    """Refuse to learn from what is kept to judge by; `where` names the setting.

    >>> require_training_seed(3, "--seed")
    """
    require_seed(seed, where)
    if int(seed) in EVALUATION_SEEDS:
        raise EsperError(
            f"{where} {seed}: {EVALUATION_SEEDS[0]} to {EVALUATION_SEEDS[-1]} are kept for "
            f"evaluation, take another"
        )


def require_evaluation_seeds(first: int, count: int, where: str) -> None:
    """Refuse to judge by seeds that may have been learnt from."""
    require_seed(first, where)
    first = int(first)
    last = first + count - 1
    if first not in EVALUATION_SEEDS or last not in EVALUATION_SEEDS:
        raise EsperError(
            f"{where} {first}: seeds {first} to {shown(last)} are not all kept for evaluation, "
            f"which are {EVALUATION_SEEDS[0]} to {EVALUATION_SEEDS[-1]}"
        )
