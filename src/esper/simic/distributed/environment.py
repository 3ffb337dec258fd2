"""What `torchrun` says in the environment. Does not import torch."""

from __future__ import annotations

import os

from esper.leyline.errors import EsperError, shown


def world_size() -> int:
    """Processes of this job; 1 outside of one."""
    return environment_number("WORLD_SIZE", 1)


def environment_number(name: str, default: int) -> int:
    """A number in the environment."""
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal():
        raise EsperError(f"{name}={shown(text)} in the environment: torchrun sets a number here")
    return int(text)
