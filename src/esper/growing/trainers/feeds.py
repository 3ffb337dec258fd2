"""Batches at fixed addresses, for captured work: gathered on the device, or copied from the host.

A captured batch (program.py: `Program.step_static`) reads its number from a counter on the device,
which it raises by one, and by it the learning rate and the random draws of that batch. Nothing is
copied per step if the data are on the device; `HostFeed` copies a batch before each replay.

Shape letters: B batch, K batches of a table, E epochs, N samples.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor

from esper.device.rng import permutations
from esper.growing.trainers.data import Batch, BatchSource, Samples
from esper.growing.trainers.kind import gather, laid_out
from esper.leyline.streams import stream_keys

TABLE: Final = 2**20
"""Sample numbers of a run that are computed ahead."""
SLOTS: Final = 2
"""Batches on their way from the host."""


class Feed(Protocol):
    """Batches of a run, in order."""

    number_1: Tensor
    """Number of the next batch `[1]`, on the device."""

    def begin(self, number: int) -> None:
        """The next batch is the one of this number."""
        ...

    def ready(self, number: int) -> int:
        """Prepare the batch of a number; how many from it on are prepared."""
        ...

    def batch(self) -> Batch:
        """The next batch, computed from values on the device."""
        ...

    def advance(self) -> None:
        """Raise the counters on the device."""
        ...


def _order_table(samples: int, size: int, seed: int, first: int, count: int,
                device: torch.device) -> Tensor:  # fmt: skip
    """Sample numbers `[K, B]` of `count` batches from `first` on, as `ResidentOrder` has them."""
    per_epoch = samples // size
    epoch, skipped = divmod(first, per_epoch)
    epochs_E = np.arange(epoch, (first + count - 1) // per_epoch + 1)
    order_EN = permutations(stream_keys(seed, "run", "epoch", epochs_E), samples, device)
    return order_EN[:, : per_epoch * size].reshape(-1, size)[skipped : skipped + count]


class ResidentFeed:
    """Samples on the device, gathered by a table of their numbers."""

    def __init__(
        self, samples: Samples, batch_size: int, seed: int, batches: int, channels_last: bool,
        table: int = TABLE,
    ) -> None:  # fmt: skip
        self._samples, self._seed, self._batches = samples, seed, batches
        self._channels_last = channels_last
        self.size = min(batch_size, len(samples))
        self.rows = max(1, min(batches, table // self.size))
        self._device = samples.targets.device
        self._table_KB = torch.zeros(self.rows, self.size, dtype=torch.int64, device=self._device)
        self._counters = torch.zeros(2, dtype=torch.int64, device=self._device)
        self._row_1, self.number_1 = self._counters[:1], self._counters[1:]
        self._end = 0

    def begin(self, number: int) -> None:
        """Compute the table from this number on."""
        self.number_1.fill_(number)
        self._fill(number)

    def _fill(self, number: int) -> None:
        count = min(self.rows, self._batches - number)
        if count > 0:
            samples = len(self._samples)
            rows = _order_table(samples, self.size, self._seed, number, count, self._device)
            self._table_KB[:count].copy_(rows)
        self._row_1.zero_()
        self._end = number + count

    def ready(self, number: int) -> int:
        """Batches left in the table, which is computed again when it is used up."""
        if number >= self._end:
            self._fill(number)
        return self._end - number

    def batch(self) -> Batch:
        """Gather the next batch."""
        index_B = self._table_KB.index_select(0, self._row_1).view(-1)
        values = [gather(v, index_B, self._channels_last) for v in self._samples.values]
        return values, self._samples.targets.index_select(0, index_B)

    def advance(self) -> None:
        """Advance to the next row of the table."""
        self._counters.add_(1)


class _Slot:
    """A batch in pinned memory, on its way to the device."""

    def __init__(self, like: list[Tensor], pinned: bool) -> None:
        self.held = [torch.empty_like(part, pin_memory=pinned) for part in like]
        self._copied = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]

    def send(self, parts: list[Tensor], to: list[Tensor]) -> None:
        if self._copied is not None:
            self._copied.synchronize()  # SYNC: with the copy of the batch before the last
        for held, part, static in zip(self.held, parts, to, strict=True):
            static.copy_(held.copy_(part), non_blocking=True)
        if self._copied is not None:
            self._copied.record()


class HostFeed:
    """Batches from the host or of a stream, copied to fixed addresses before each is computed."""

    def __init__(self, source: BatchSource, device: torch.device, channels_last: bool) -> None:
        self._source, self._device, self._channels_last = source, device, channels_last
        self.number_1 = torch.zeros(1, dtype=torch.int64, device=device)
        self._static: list[Tensor] = []
        self._slots: list[_Slot] = []

    def begin(self, number: int) -> None:
        """Nothing is read ahead."""
        self.number_1.fill_(number)

    def ready(self, number: int) -> int:
        """Copy the batch of this number."""
        values, targets = self._source.batch(number)
        parts = [*(laid_out(v, self._channels_last) for v in values), targets]
        if not self._static:
            self._static = [torch.empty_like(part, device=self._device) for part in parts]
        if parts[-1].device.type == self._device.type:
            for static, part in zip(self._static, parts, strict=True):
                static.copy_(part)
        else:
            self._send(number, parts)
        return 1

    def _send(self, number: int, parts: list[Tensor]) -> None:
        if not self._slots:
            pinned = self._device.type == "cuda"
            self._slots = [_Slot(parts, pinned) for _ in range(SLOTS)]
        self._slots[number % SLOTS].send(parts, self._static)

    def batch(self) -> Batch:
        """The batch that was copied last."""
        return self._static[:-1], self._static[-1]

    def advance(self) -> None:
        """Raise the number."""
        self.number_1.add_(1)
