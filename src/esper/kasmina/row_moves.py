"""Rows of an activation on their way to seeds and back, where our kernels run.

Shape letters: R rows, G rows of one group.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from torch import Tensor

from esper.kasmina import fused


def fit(h: Tensor) -> bool:
    """Whether there are kernels for rows like these."""
    return fused.half_type(h) == h.dtype


def join(h: Tensor, source: Tensor, detach: bool) -> Tensor:
    """`h` with copies of the rows `source` behind it; `detach`: they have no way back."""
    from esper.kasmina.kernels.rows import Join

    out: Tensor = Join.apply(h, source, detach)
    return out


def fork(h: Tensor, index: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """`h`, and copies of the rows of each group."""
    from esper.kasmina.kernels.rows import Fork

    out: tuple[Tensor, ...] = Fork.apply(h, *index)
    return out


def give_back(
    h: Tensor, index: Sequence[Tensor], alpha: Sequence[Tensor], update: Sequence[Tensor]
) -> Tensor:
    """`h` with alpha times its update added to each row of each group."""
    from esper.kasmina.kernels.rows import Return

    parts = chain.from_iterable(zip(index, alpha, update, strict=True))
    out: Tensor = Return.apply(h, *parts)
    return out
