"""Parameters of a block: convolution 3x3, group norm and maybe ReLU, of many rows.

Shape letters: R rows, C channels in, O channels out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor


class BlockParameters(NamedTuple):
    """Parameters of a block, of every row."""

    weight: Tensor
    """`[R, O, C, 3, 3]`"""
    scale: Tensor
    """`[R, O]`"""
    shift: Tensor
    groups: int
    relu: bool


def block_with_relu(
    state: Mapping[str, Tensor], conv: str, norm: str, groups: int
) -> BlockParameters:
    """Return the parameters of `conv_norm_relu` of two modules, from those of a seed by name."""
    weight, scale, shift = (state[n] for n in (f"{conv}.weight", f"{norm}.weight", f"{norm}.bias"))
    return BlockParameters(weight, scale, shift, groups, relu=True)


def scaled_block(
    state: Mapping[str, Tensor], conv: str, norm: str, scale: str, groups: int
) -> BlockParameters:
    """Return the parameters of `conv_scaled_norm` of three modules."""
    weight, gamma = state[f"{conv}.weight"], state[f"{scale}.gamma"].flatten(1)
    own = state[f"{norm}.weight"] * gamma, state[f"{norm}.bias"] * gamma
    return BlockParameters(weight, *own, groups, relu=False)
