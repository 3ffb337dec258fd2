"""Validation of run seeds, and the range reserved for evaluation."""

from __future__ import annotations

from typing import Final

from esper.leyline.errors import EsperError, shown
from esper.leyline.limits import is_integer

MAX_SEED: Final = 2**64 - 1
"""Random streams are keyed by 64 bits."""
EVALUATION_SEEDS: Final = range(10_000_019, 10_020_019)
"""Run seeds reserved for comparing policies; never train or tune on them."""


def require_seed(seed: int, where: str) -> None:
    """Raise unless `seed` fits into 64 bits: a larger one would alias another modulo 2**64.

    >>> require_seed(2**64 - 1, "seed")
    """
    if not (is_integer(seed) and 0 <= seed <= MAX_SEED):
        raise EsperError(f"{where} {shown(seed)}: must be an integer from 0 to {MAX_SEED}")


def require_training_seed(seed: int, where: str) -> None:
    """Raise if `seed` is reserved for evaluation; `where` names the setting.

    >>> require_training_seed(3, "--seed")
    """
    require_seed(seed, where)
    if int(seed) in EVALUATION_SEEDS:
        raise EsperError(
            f"{where} {seed}: {EVALUATION_SEEDS[0]} to {EVALUATION_SEEDS[-1]} are reserved for "
            f"evaluation, choose another"
        )


def require_evaluation_seeds(first: int, count: int, where: str) -> None:
    """Raise unless all `count` seeds from `first` are reserved for evaluation."""
    require_seed(first, where)
    first = int(first)
    last = first + count - 1
    if first not in EVALUATION_SEEDS or last not in EVALUATION_SEEDS:
        raise EsperError(
            f"{where} {first}: seeds {first} to {shown(last)} are not all reserved for evaluation, "
            f"valid are {EVALUATION_SEEDS[0]} to {EVALUATION_SEEDS[-1]}"
        )
