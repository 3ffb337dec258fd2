"""Random tensors from counters: element i of a stream is a hash of (key, i).

The same key gives the same numbers on every device and whatever else is drawn beside it, so a
member's initial weights do not depend on how many members there are. Keys come from
`esper.leyline.streams`.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from esper.kasmina.devices import upload
from esper.leyline.streams import GOLDEN, MIX_1, MIX_2, UInt64Array


def _signed(word: int) -> int:
    """A 64-bit word as the signed integer with the same bits (torch has no uint64 arithmetic)."""
    return word - (1 << 64) if word >= 1 << 63 else word


def _shift_right(bits: Tensor, count: int) -> Tensor:
    """Logical shift: torch's `>>` drags the sign bit along."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


def _mix64(bits: Tensor) -> Tensor:
    """`leyline.streams.mix64` on int64 tensors; the two give the same bits."""
    bits = (bits ^ _shift_right(bits, 30)) * _signed(MIX_1)
    bits = (bits ^ _shift_right(bits, 27)) * _signed(MIX_2)
    return bits ^ _shift_right(bits, 31)


def random_bits(keys: UInt64Array, count: int, device: torch.device) -> Tensor:
    """`[len(keys), count]` words: row n holds the first `count` elements of stream `keys[n]`."""
    keys_N = upload(np.atleast_1d(keys).view(np.int64), device)
    counters = torch.arange(1, count + 1, device=device, dtype=torch.int64) * _signed(GOLDEN)
    return _mix64(keys_N[:, None] + counters[None, :])


def uniform(keys: UInt64Array, count: int, device: torch.device) -> Tensor:
    """`[len(keys), count]` float32 values in (0, 1), both ends left out."""
    return between_0_and_1(_shift_right(random_bits(keys, count, device), 40))


def between_0_and_1(bits: Tensor) -> Tensor:
    """24-bit words as float32 in (0, 1); the largest would round up to 1."""
    return ((bits.to(torch.float32) + 0.5) * 2.0**-24).clamp(max=1.0 - 2.0**-24)


def normal(keys: UInt64Array, count: int, device: torch.device) -> Tensor:
    """`[len(keys), count]` standard normal float32 values (Box-Muller on pairs)."""
    pairs = (count + 1) // 2
    u = uniform(keys, 2 * pairs, device)
    radius = torch.sqrt(-2.0 * torch.log(u[:, :pairs]))
    angle = 2.0 * math.pi * u[:, pairs:]
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1)[:, :count]


@contextlib.contextmanager
def forked_rng(seed: int) -> Iterator[None]:
    """Run module construction from its own stream; the global generators come out untouched."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)
