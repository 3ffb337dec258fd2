"""Counter-based random tensors: element i of a stream is a hash of (key, i).

A key gives the same numbers on every device and in every batch, so a member's initial weights do
not depend on the number of members. Keys come from `esper.leyline.streams`.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from torch import Tensor

from esper.device.triton_support import can_use_kernels
from esper.device.upload import upload
from esper.leyline.streams import GOLDEN, MIX_1, MIX_2, UInt64Array

GOLDEN_32: Final = 0x9E3779B1
"""Odd constant near 2**32 / golden ratio."""
MIX_32_1: Final = 0x85EBCA6B
MIX_32_2: Final = 0xC2B2AE35
"""Multipliers of a 32-bit finaliser (murmur3)."""


def _signed(word: int, bits: int = 64) -> int:
    """Reinterpret a word as a signed integer (torch has no unsigned arithmetic)."""
    return word - (1 << bits) if word >= 1 << (bits - 1) else word


def _shift_right(bits: Tensor, count: int) -> Tensor:
    """Logical shift: torch's `>>` extends the sign bit."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


def _mix64(bits: Tensor) -> Tensor:
    """`leyline.streams.mix64` on int64 tensors, bit for bit."""
    bits = (bits ^ _shift_right(bits, 30)) * _signed(MIX_1)
    bits = (bits ^ _shift_right(bits, 27)) * _signed(MIX_2)
    return bits ^ _shift_right(bits, 31)


def random_bits(keys: UInt64Array, count: int, device: torch.device) -> Tensor:
    """Return `[len(keys), count]` words: row n is the start of stream `keys[n]`."""
    keys_N = upload(np.atleast_1d(keys).view(np.int64), device)
    counters = torch.arange(1, count + 1, device=device, dtype=torch.int64) * _signed(GOLDEN)
    return _mix64(keys_N[:, None] + counters[None, :])


def permutations(keys: UInt64Array, count: int, device: torch.device) -> Tensor:
    """Return `[len(keys), count]` permutations: row n sorts positions by stream `keys[n]`."""
    # Flipping the sign bit makes a signed sort order the words as unsigned.
    return torch.argsort(random_bits(keys, count, device) ^ -(1 << 63), dim=1, stable=True)


def derive_keys(keys: Tensor, part: Tensor | int) -> Tensor:
    """Return the keys (int64) of substream `part` of each stream in `keys`, on the device."""
    return _mix64(keys ^ part)


def random_words(keys_R: Tensor, count: int, first: int = 0) -> Tensor:
    """Return `[R, count]` int32 words: element i of row r is a 32-bit hash of (keys_R[r], i).

    Four times as fast as `random_bits`. Only the upper bits are well mixed. `first`: i of the first
    element.
    """
    if can_use_kernels(keys_R):
        from esper.device.hash_kernel import hash_words

        return hash_words(keys_R, first + count, GOLDEN_32, MIX_32_1, MIX_32_2)[:, first:]
    low_R1, high_R1 = keys_R.view(torch.int32).view(-1, 2, 1).unbind(1)
    index = torch.arange(first, first + count, dtype=torch.int32, device=keys_R.device)
    bits = index.mul_(_signed(GOLDEN_32, 32)) + low_R1
    shifted = torch.bitwise_right_shift(bits, 16).bitwise_and_((1 << 16) - 1)
    bits.bitwise_xor_(shifted).add_(high_R1).mul_(_signed(MIX_32_1, 32))
    torch.bitwise_right_shift(bits, 13, out=shifted).bitwise_and_((1 << 19) - 1)
    return bits.bitwise_xor_(shifted).mul_(_signed(MIX_32_2, 32))


def uniform(keys: UInt64Array, count: int, device: torch.device) -> Tensor:
    """Return `[len(keys), count]` float32 values in (0, 1), excluding both ends."""
    return to_unit_interval(_shift_right(random_bits(keys, count, device), 40))


def to_unit_interval(bits: Tensor) -> Tensor:
    """Map 24-bit words to float32 in (0, 1); more bits could round up to 1."""
    return ((bits.to(torch.float32) + 0.5) * 2.0**-24).clamp(max=1.0 - 2.0**-24)


def normal(keys: UInt64Array, count: int, device: torch.device) -> Tensor:
    """Return `[len(keys), count]` standard normal float32 values (Box-Muller on pairs)."""
    pairs = (count + 1) // 2
    u = uniform(keys, 2 * pairs, device)
    radius = torch.sqrt(-2.0 * torch.log(u[:, :pairs]))
    angle = 2.0 * math.pi * u[:, pairs:]
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1)[:, :count]


def normal_rows(keys_R: Tensor, count: int) -> Tensor:
    """Return `[R, count]` standard normal float32 values; row r is a stream of `keys_R[r]`.

    Faster than `normal`: 32 random bits for each value.
    """
    pairs = (count + 1) // 2
    bits = random_words(keys_R, 2 * pairs).bitwise_right_shift_(8).bitwise_and_((1 << 24) - 1)
    u = to_unit_interval(bits)
    radius = u[:, :pairs].log().mul_(-2.0).sqrt_()
    angle = u[:, pairs:].mul_(2.0 * math.pi)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)[:, :count]


@contextlib.contextmanager
def forked_rng(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed the global generators for a block of user code, and restore them afterwards.

    `device`: device the code computes on, if it does more than build modules.
    """
    numpy_state, python_state = np.random.get_state(), random.getstate()
    devices = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)
