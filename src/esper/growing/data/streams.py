"""Training data that are read again in every epoch: too large for memory, or randomly transformed.

All runs share the batches. Shape letters: B batch.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from esper.growing.data.labels import LabelMap
from esper.growing.data.part_checks import check_values, describe_samples
from esper.growing.data.parts import GrowPart, Inputs, RawPart
from esper.growing.data.sources import Source
from esper.leyline.arrays import Ints
from esper.leyline.errors import EsperError
from esper.leyline.streams import stream_seed


class StreamSource:
    """Batches of a user's own data, epoch after epoch, all of one size.

    Batches of another size than the first (usually the last of an epoch) are left out, because
    captured graphs need one shape. A stream cannot be resumed within an epoch: it starts it again.
    """

    def __init__(
        self, source: Source, batch_size: int, labels: LabelMap, keep: Ints | None, seed: int
    ) -> None:
        """`keep`: numbers of the samples that are not held out; None: all."""
        self._source, self._labels, self._keep, self._seed = source, labels, keep, seed
        self.samples: int | None = source.length if keep is None else len(keep)
        """Samples of an epoch; None: unknown, so count by steps."""
        first = next(iter(source.epoch(batch_size, keep, self._epoch_seed(0))), None)
        if first is None:
            raise EsperError(source.empty_message())
        self.example: GrowPart = self._part(first, 0)
        """The first batch."""
        self.batch_size = len(self.example)

    @property
    def batches_per_epoch(self) -> int | None:
        """Whole batches of an epoch; None: unknown."""
        return None if self.samples is None else self.samples // self.batch_size

    def epoch(self, number: int = 0) -> Iterator[tuple[Inputs, Tensor]]:
        """Yield inputs and targets `[B, ...]` of one epoch."""
        source = self._source
        batches = source.epoch(self.batch_size, self._keep, self._epoch_seed(number))
        for place, raw in enumerate(batches):
            if len(raw) == self.batch_size:
                part = self._part(raw, place)
                yield part.inputs, part.targets

    def empty_epoch(self, number: int) -> EsperError:
        """What to raise for an epoch without a batch."""
        return EsperError(
            f"{self._source.where}: epoch {number} of the stream has no batch of "
            f"{self.batch_size} samples; give data that can be read again"
        )

    def _epoch_seed(self, number: int) -> int:
        return stream_seed(self._seed, "grow", "epoch", number)

    def _part(self, raw: RawPart, number: int) -> GrowPart:
        where = f"{self._source.where}: batch {number} of the stream"
        part = GrowPart(raw.inputs, self._labels.indices(raw.targets, where))
        check_values(part, where)
        if hasattr(self, "example") and describe_samples(part) != describe_samples(self.example):
            raise EsperError(
                f"{where} holds {describe_samples(part)}, the first batch held "
                f"{describe_samples(self.example)}; give every batch the same"
            )
        return part
