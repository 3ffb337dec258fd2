"""Parameters of the steps that seeds are made of, of many rows: a block (convolution 3x3, group
norm and maybe ReLU), a norm or a convolution alone, squeeze-excite.

Shape letters: R rows, C channels in, O channels out, D hidden channels.
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


class NormParameters(NamedTuple):
    """Parameters of a group norm, of every row."""

    scale: Tensor
    """`[R, C]`"""
    shift: Tensor
    groups: int


class ConvParameters(NamedTuple):
    """Parameters of a convolution without a bias, of every row."""

    weight: Tensor
    """`[R, C, C or 1, side, side]`; 1: depthwise."""

    @property
    def depthwise(self) -> bool:
        """Whether every channel is convolved by itself."""
        return self.weight.shape[2] == 1 < self.weight.shape[1]


class ExciteParameters(NamedTuple):
    """Parameters of squeeze-excite, of every row: two layers and a factor of each channel."""

    squeeze: Tensor
    """`[R, D, C]`"""
    shift: Tensor
    """`[R, D]`"""
    excite: Tensor
    """`[R, C, D]`"""
    end: Tensor
    """`[R, C]`"""
    gamma: Tensor


StepParameters = BlockParameters | NormParameters | ConvParameters | ExciteParameters
"""Tensors first, then settings."""


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
    own = scaled_norm_step(state, norm, scale, groups)
    return BlockParameters(state[f"{conv}.weight"], *own, relu=False)


def scaled_norm_step(
    state: Mapping[str, Tensor], norm: str, scale: str, groups: int
) -> NormParameters:
    """Return the parameters of `scaled_norm` of two modules."""
    gamma = state[f"{scale}.gamma"].flatten(1)
    return NormParameters(state[f"{norm}.weight"] * gamma, state[f"{norm}.bias"] * gamma, groups)
