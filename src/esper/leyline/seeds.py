"""Which seeds are for learning, and which are kept to judge what was learnt?"""

from __future__ import annotations

from typing import Final

from esper.leyline.errors import EsperError

EVALUATION_SEEDS: Final = range(10_000_019, 10_020_019)
"""Run seeds policies are compared on, fixed beforehand; nothing is trained or tuned on them."""


def require_training_seed(seed: int, where: str) -> None:
    """Refuse to learn from what is kept to judge by; `where` names the setting.

    >>> require_training_seed(3, "--seed")
    """
    if seed in EVALUATION_SEEDS:
        raise EsperError(
            f"{where} {seed}: {EVALUATION_SEEDS[0]} to {EVALUATION_SEEDS[-1]} are kept for "
            f"evaluation, take another"
        )


def require_evaluation_seeds(first: int, count: int, where: str) -> None:
    """Refuse to judge by seeds that may have been learnt from."""
    last = first + count - 1
    if first not in EVALUATION_SEEDS or last not in EVALUATION_SEEDS:
        raise EsperError(
            f"{where} {first}: seeds {first} to {last} are not all kept for evaluation, which are "
            f"{EVALUATION_SEEDS[0]} to {EVALUATION_SEEDS[-1]}"
        )
