"""Training batches of a run by number: the same for every run with the same seed, on every resume.

Resident data are gathered by index, in an order that depends only on (seed, epoch). A stream is
read in its own order; batch n of a run is the n-th of the stream, whichever run asks.

Shape letters: B batch, N samples.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

from esper.device.rng import forked_rng, permutations
from esper.device.streams import new_stream
from esper.growing.data.parts import GrowPart
from esper.growing.data.parts import Inputs as RawInputs
from esper.growing.data.streams import StreamSource
from esper.kasmina.tracing import Inputs
from esper.leyline.streams import stream_keys, stream_seed

Batch = tuple[list[Tensor], Tensor]
"""Raw inputs of the model, each `[B, ...]`, and targets `[B, ...]`."""
WINDOW: Final = 16
"""Batches of a stream that are kept for runs that train side by side."""


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Samples in memory: raw inputs of the model and targets, each `[N, ...]`."""

    values: list[Tensor]
    targets: Tensor

    @staticmethod
    def of(part: GrowPart, inputs: Inputs) -> Samples:
        """The samples of a part, in the order in which the model takes inputs."""
        return Samples(inputs.values(part.inputs), part.targets)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def bytes(self) -> int:
        """Memory that they take."""
        return self.targets.nbytes + sum(value.nbytes for value in self.values)

    def to(self, device: torch.device) -> Samples:
        """The same samples on a device."""
        return Samples([v.to(device) for v in self.values], self.targets.to(device))

    def take(self, index: Tensor | slice) -> Batch:
        """Some samples, in the order of an index."""
        return [value[index] for value in self.values], self.targets[index]


class BatchSource(Protocol):
    """Batches of a run, by number."""

    def batch(self, number: int) -> Batch:
        """The batch of a number; numbers rise by one from call to call, but for a start."""
        ...


class ResidentOrder:
    """Batches of samples in memory, in the order of one run; every epoch has its own."""

    def __init__(self, samples: Samples, batch_size: int, seed: int) -> None:
        self.samples, self._seed = samples, seed
        self.size = min(batch_size, len(samples))
        self.per_epoch = len(samples) // self.size
        """Batches of an epoch; a last one with fewer samples is left out."""
        self._epoch, self._order = -1, samples.targets[:0]

    def batch(self, number: int) -> Batch:
        """Inputs and targets of a batch."""
        return self.samples.take(self.index(number))

    def index(self, number: int) -> Tensor:
        """Numbers of the samples of a batch `[B]`, where the samples are."""
        epoch, place = divmod(number, self.per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._permutation(epoch)
        return self._order[place * self.size : (place + 1) * self.size]

    def _permutation(self, epoch: int) -> Tensor:
        key = stream_keys(self._seed, "run", "epoch", epoch)
        return permutations(key, len(self.samples), self.samples.targets.device)[0]


class StreamReader:
    """Batches of a stream by number, shared by all runs.

    A run that asks for a number which is neither kept nor the next one makes it read again from the
    start of that epoch, or, if epochs have no known length, from the start.
    """

    def __init__(
        self, source: StreamSource, inputs: Inputs, seed: int, device: torch.device
    ) -> None:
        """`seed`: of the random transforms of its samples."""
        self._source, self._inputs, self._seed, self._device = source, inputs, seed, device
        self._kept: OrderedDict[int, Batch] = OrderedDict()
        self._next, self._epoch, self._pass = 0, 0, source.epoch(0)
        self._side = new_stream(device)

    def batch(self, number: int) -> Batch:
        """The batch of a number, on the device, for work on the current CUDA stream."""
        if self._side is None:
            return self._kept_or_read(number)
        with torch.cuda.stream(self._side):  # one for all runs, as they share the batches
            values, targets = self._kept_or_read(number)
        lane = torch.cuda.current_stream(self._device)
        lane.wait_stream(self._side)
        for part in (*values, targets):
            part.record_stream(lane)
        return values, targets

    def _kept_or_read(self, number: int) -> Batch:
        if number not in self._kept and number != self._next:
            self._seek(number)
        while number not in self._kept:
            self._read()
        return self._kept[number]

    def _seek(self, number: int) -> None:
        per_epoch = self._source.batches_per_epoch
        epoch = 0 if per_epoch is None else number // per_epoch
        first = 0 if per_epoch is None else epoch * per_epoch
        if not first <= self._next <= number:
            self._next = first
            self._open(epoch)

    def _open(self, epoch: int) -> None:
        self._epoch, self._pass = epoch, self._source.epoch(epoch)

    def _read(self) -> None:
        per_epoch = self._source.batches_per_epoch
        if per_epoch is not None and self._next % per_epoch == 0:
            self._open(self._next // per_epoch)
        read = self._read_pass()
        if read is None:  # the end of an epoch
            self._open(self._epoch + (per_epoch is None))
            read = self._read_pass()
        if read is None:
            raise self._source.empty_epoch(self._epoch)
        inputs, targets = read
        values = [v.to(self._device, non_blocking=True) for v in self._inputs.values(inputs)]
        self._kept[self._next] = values, targets.to(self._device, non_blocking=True)
        self._next += 1
        if len(self._kept) > WINDOW:
            self._kept.popitem(last=False)

    def _read_pass(self) -> tuple[RawInputs, Tensor] | None:
        """The next batch of the epoch; None: there is no other.

        Transforms draw from global generators: seeded by number, a batch is always the same.
        """
        with forked_rng(stream_seed(self._seed, "stream", self._next)):
            return next(self._pass, None)
