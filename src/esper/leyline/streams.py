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

_WORD: Final = 0xFFFFFFFFFFFFFFFF
_GOLDEN: Final = np.array(GOLDEN, dtype=np.uint64)
_MIXERS: Final = (np.array(MIX_1, dtype=np.uint64), np.array(MIX_2, dtype=np.uint64))
_SHIFTS: Final = tuple(np.array(bits, dtype=np.uint64) for bits in (30, 27, 31))
"""As arrays, which numpy converts in half the time of scalars."""
_TEXT: Final = 1 << 48
"""Offset that keeps text parts of a path distinct from small integers."""

UInt64Array = npt.NDArray[np.uint64]


def mix64(bits: UInt64Array) -> UInt64Array:
    """Scramble 64-bit words so that each input bit reaches every output bit."""
    with np.errstate(over="ignore"):
        return _mix(bits)


def _mix(bits: UInt64Array) -> UInt64Array:
    bits = (bits ^ (bits >> _SHIFTS[0])) * _MIXERS[0]
    bits = (bits ^ (bits >> _SHIFTS[1])) * _MIXERS[1]
    return np.asarray(bits ^ (bits >> _SHIFTS[2]))


def _mix_integer(bits: int) -> int:
    """`mix64` of one word below 2**64: in Python, a tenth of the time of numpy's scalars."""
    bits = (bits ^ (bits >> 30)) * MIX_1 & _WORD
    bits = (bits ^ (bits >> 27)) * MIX_2 & _WORD
    return bits ^ (bits >> 31)


def stream_keys(seed: int, *path: str | int | npt.NDArray[np.int64]) -> UInt64Array:
    """Return the keys of the streams named by `path`; array parts broadcast.

    >>> one = stream_keys(7, "round", 0, "member", 3)
    >>> many = stream_keys(7, "round", 0, "member", np.arange(8))
    >>> bool(many[3] == one)
    True
    """
    require_seed(seed, "seed")
    key, at = _mix_integer((int(seed) + MIX_1) & _WORD), 0
    while at < len(path) and isinstance(part := path[at], str | int):
        key = _mix_integer(((key ^ _word(part)) + GOLDEN) & _WORD)
        at += 1
    keys = np.array(key, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for part in path[at:]:
            if isinstance(part, str | int):
                keys = _mix((keys ^ np.array(_word(part), dtype=np.uint64)) + _GOLDEN)
            else:
                keys = _mix((keys ^ _mixed(part)) + _GOLDEN)
    return keys


def _word(part: str | int) -> int:
    """Return what a text or an integer of a path is mixed into a key as."""
    if isinstance(part, str):
        return _name_integer(part)
    if not -(1 << 63) <= part < 1 << 63:
        raise OverflowError(f"{part} in the name of a random stream: must fit 64 bits")
    return _mix_integer(((int(part) & _WORD) + GOLDEN) & _WORD)


def text_number(name: str) -> int:
    """Return the integer that a text part of a path counts as; an array may hold several."""
    return _TEXT + zlib.crc32(name.encode())


@cache
def _name_integer(name: str) -> int:
    return _word(text_number(name))


@cache
def name_word(name: str) -> UInt64Array:
    """Return what a text part of a path is mixed into a key as."""
    word = np.array(_name_integer(name), dtype=np.uint64)
    word.setflags(write=False)
    return word


def _mixed(part: npt.NDArray[np.int64]) -> UInt64Array:
    return _mix(np.asarray(part, dtype=np.int64).astype(np.uint64) + _GOLDEN)


def stream_seed(seed: int, *path: str | int) -> int:
    """Return the key of one stream as a non-negative seed for a library's generator."""
    return int(stream_keys(seed, *path)) & 0x7FFFFFFFFFFFFFFF
