"""Training batches shared by all members of a population.

Resident data are indexed on the device, in an order that depends on (seed, epoch) alone; streamed
data come from the user's loader in its own order.

Shape letters: B batch, N samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from esper.device.rng import permutations
from esper.leyline.streams import stream_keys


class BatchSource(Protocol):
    """Batches by number, as many as are asked for."""

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets `[1, B, ...]` of a batch, on the device."""
        ...


class ResidentBatches:
    """Batches of samples in memory; every epoch has its own permutation."""

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        batch_size: int,
        seed: int,
        device: torch.device | None = None,
    ) -> None:
        """`device`: where batches are needed, if the samples are elsewhere."""
        self.inputs, self.targets = inputs, targets
        self._device = targets.device if device is None else device
        self.batch_size = min(batch_size, len(targets))
        self.per_epoch = len(targets) // self.batch_size
        """Batches of an epoch; a last one with fewer samples is left out."""
        self._seed = seed
        self._order: tuple[int, Tensor] | None = None

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets `[1, B, ...]` of a batch."""
        epoch, place = divmod(number, self.per_epoch)
        first = place * self.batch_size
        index_B = self._permutation(epoch)[first : first + self.batch_size]
        x, target = self.inputs[index_B], self.targets[index_B]
        return x[None].to(self._device), target[None].to(self._device)

    def _permutation(self, epoch: int) -> Tensor:
        if self._order is None or self._order[0] != epoch:
            key = stream_keys(self._seed, "grow", "epoch", epoch)
            self._order = epoch, permutations(key, len(self.targets), self.targets.device)[0]
        return self._order[1]


class StreamedBatches:
    """Batches from a loader, one pass after the other; a resumed run starts a new pass."""

    def __init__(
        self,
        open_pass: Callable[[], Iterator[tuple[Tensor, Tensor]]],
        device: torch.device,
        agree: Callable[[Tensor], Tensor] = lambda part: part,
    ) -> None:
        """`open_pass`: starts a pass over the data, of inputs and targets `[B, ...]`.

        `agree`: makes a batch the same on all ranks.
        """
        self._open_pass, self._device, self._agree = open_pass, device, agree
        self._pass: Iterator[tuple[Tensor, Tensor]] | None = None
        self._next = -1

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        """The next batch; any number but the next one starts a new pass."""
        if self._pass is None or number != self._next:
            self._pass = self._open_pass()
        self._next = number + 1
        try:
            inputs, targets = next(self._pass)
        except StopIteration:
            self._pass = self._open_pass()
            inputs, targets = next(self._pass)
        inputs, targets = (part.to(self._device, non_blocking=True) for part in (inputs, targets))
        return self._agree(inputs)[None], self._agree(targets)[None]
