"""Where compiled kernels are kept on the disk, for GPUs and for CPUs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

CACHE_VARIABLE: Final = "ESPER_KERNEL_CACHE"


def cache_folder() -> Path:
    """Return the folder of compiled kernels."""
    own = os.environ.get(CACHE_VARIABLE)
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "esper" / "kernels"
