"""Memory that comes back: on a CPU, what a batch frees is kept for the next one.

Activations are a few megabytes each. By default the C library hands blocks of that size back to
the kernel when they are freed and asks for new ones for the next batch; the kernel clears every
page again, which took a third of a train batch's time (docs/performance.md).
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Final

_TRIM_THRESHOLD: Final = -1
_TOP_PAD: Final = -2
_MMAP_THRESHOLD: Final = -3
"""Names of glibc's settings (malloc.h)."""

LARGEST_KEPT_BLOCK: Final = 2**27
"""A block beyond this many bytes goes back when it is freed: data sets, not activations."""
MOST_KEPT: Final = 2**31 - 1
"""Free bytes at the end of the heap beyond which the rest goes back."""
GROWTH: Final = 2**26
"""Bytes the heap grows by at least."""


@lru_cache(maxsize=1)
def keep_freed_memory() -> bool:
    """Tell the C library of this process; False where it has no such settings (not glibc)."""
    try:
        settings = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    wanted = (
        (_MMAP_THRESHOLD, LARGEST_KEPT_BLOCK),
        (_TRIM_THRESHOLD, MOST_KEPT),
        (_TOP_PAD, GROWTH),
    )
    taken = [settings(name, value) == 1 for name, value in wanted]
    return all(taken)
