"""How a kernel draws all parameters of a row at once.

Shape letters: P parameters of one member.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class FlatDraws:
    """How each of a row's P parameters is drawn, for a kernel that draws them all."""

    words: Tensor
    """Mixed name of the parameter's tensor (`streams.name_word`), int64."""
    counters: Tensor
    """Position in that tensor, times `streams.GOLDEN`, int64."""
    scales: Tensor
    """Half-width of the uniform range; 0 for a constant."""
    constants: Tensor
