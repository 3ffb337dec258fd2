"""A moving average of a network's weights, by which a run is judged before its end.

While the learning rate is high the last weights are noisy: their average scores as a run does whose
rate has fallen. At the end of a run there is nothing to gain, and its own weights are kept.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

WEIGHT: Final = 0.2
"""Of the newest weights in the average."""
POINTS: Final = 125
"""Times in a run that weights are added: five of them span a twenty-fifth of it."""
SETTLED: Final = 15
"""Additions after which what the average began with counts for little."""


class Average:
    """The average, as a network of its own."""

    def __init__(self, copy: nn.Module, network: nn.Module, batches: int) -> None:
        """`copy`: a network like the one that is trained; `batches`: length of the run."""
        self.every = max(1, batches // POINTS)
        self._copy, self._network = copy, network
        self._added = 0
        ours, theirs = named_state(copy), named_state(network)
        names = [name for name, value in theirs.items() if value.is_floating_point()]
        self._tracked = {name: theirs[name] for name in names}
        self._ours, self._theirs = ([some[name] for name in names] for some in (ours, theirs))
        with torch.no_grad():
            torch._foreach_copy_(self._ours, self._theirs)

    def add(self) -> None:
        """Add the weights of now."""
        with torch.no_grad():
            torch._foreach_lerp_(self._ours, self._theirs, WEIGHT)
        self._added += 1

    def settled(self) -> nn.Module | None:
        """The averaged network; None: too few weights were added."""
        if self._added < SETTLED:
            return None
        ours = named_state(self._copy)
        with torch.no_grad():
            for name, value in named_state(self._network).items():
                if value is not self._tracked.get(name):  # a counter, or replaced by the network
                    ours[name].copy_(value)
        return self._copy


def named_state(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, tied ones once; buffers that are not saved included."""
    return dict((*network.named_parameters(), *network.named_buffers()))
