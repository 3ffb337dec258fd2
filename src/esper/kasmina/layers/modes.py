"""Training and eval mode of modules for the length of a block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn


@contextlib.contextmanager
def in_mode(module: nn.Module, training: bool) -> Iterator[None]:
    """Set training or eval mode; afterwards every part has its own again."""
    modes = {part: part.training for part in module.modules()}
    module.train(training)
    try:
        yield
    finally:
        for part, mode in modes.items():  # a user's model may keep a norm in eval mode
            part.training = mode
