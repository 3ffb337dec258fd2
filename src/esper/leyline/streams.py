"""Keys of named random streams, independent of the number of members.

A stream is named by a path such as (seed, round, member, "slot", "r0c1"). Its key is a 64-bit hash
of that path. Integer parts may be arrays, so one call returns the keys of all members.
"""

from __future__ import annotations

import zlib
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from esper.leyline.seeds import require_seed

GOLDEN: Final = 0x9E3779B97F4A7C15
"""Odd constant near 2**64 / golden ratio: the increment between consecutive counters."""
MIX_1: Final = 0xBF58476D1CE4E5B9
MIX_2: Final = 0x94D049BB133111EB
"""Multipliers of the 64-bit finaliser (splitmix64)."""

_TEXT: Final = 1 << 48
"""Offset that keeps text parts of a path distinct from small integers."""

UInt64Array = npt.NDArray[np.uint64]


def mix64(bits: UInt64Array) -> UInt64Array:
    """Scramble 64-bit words so that each input bit reaches every output bit."""
    with np.errstate(over="ignore"):
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(MIX_1)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(MIX_2)
    return np.asarray(bits ^ (bits >> np.uint64(31)), dtype=np.uint64)


def stream_keys(seed: int, *path: str | int | npt.NDArray[np.int64]) -> UInt64Array:
    """Return the keys of the streams named by `path`; array parts broadcast.

    >>> one = stream_keys(7, "round", 0, "member", 3)
    >>> many = stream_keys(7, "round", 0, "member", np.arange(8))
    >>> bool(many[3] == one)
    True
    """
    require_seed(seed, "seed")
    key = mix64(np.asarray(np.uint64((int(seed) + MIX_1) & 0xFFFFFFFFFFFFFFFF)))
    for part in path:
        step = name_word(part) if isinstance(part, str) else _mixed(part)
        with np.errstate(over="ignore"):
            key = mix64((key ^ step) + np.uint64(GOLDEN))
    return key


@cache
def name_word(name: str) -> UInt64Array:
    """Return what a text part of a path is mixed into a key as."""
    word = _mixed(_TEXT + zlib.crc32(name.encode()))
    word.setflags(write=False)
    return word


def _mixed(part: int | npt.NDArray[np.int64]) -> UInt64Array:
    with np.errstate(over="ignore"):
        return mix64(np.asarray(part, dtype=np.int64).astype(np.uint64) + np.uint64(GOLDEN))


def stream_seed(seed: int, *path: str | int) -> int:
    """Return the key of one stream as a non-negative seed for a library's generator."""
    return int(stream_keys(seed, *path)) & 0x7FFFFFFFFFFFFFFF
