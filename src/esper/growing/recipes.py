"""Choices made once, before the search: batch size, length, learning rates, weight decay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from esper.growing.settings import Optimizer
from esper.leyline.errors import EsperError

RATES: Final = {"adamw": 1.5e-2, "sgd": 0.05}
"""Middle learning rate of `lr="auto"`; a third and three times as much are tried too."""
TRANSFORMER_RATE: Final = 9e-3
WEIGHT_DECAY: Final = {"adamw": 5e-2, "sgd": 5e-4, "own": 0.0}
SMOOTHING: Final = 0.1
"""Label smoothing that is tried."""
RUN_BATCHES: Final = 1500
"""Batches of a full training run, as far as the limits on epochs allow."""
FEW_BATCHES: Final = 1000
"""A run of fewer batches learns more from as many samples in smaller ones."""
MAX_BATCHES: Final = 2**31
EPOCHS: Final = (4, 80)
BATCH_SIZES: Final = (16, 128)
LONGER: Final = 9
"""Times its usual length that a run may take, if length pays."""
TIMED_EPOCHS: Final = 300
"""Epochs that it may take under a limit on time, where that is more: of large data the usual length
is a few epochs, however much time there is."""
FULL_RUNS: Final = 2.5
"""Full training runs, one after the other, that a time limit must leave room for, before runs are
made shorter: few networks in full are worth more than many in part."""


@dataclass(frozen=True, slots=True)
class Length:
    """How long a network is trained."""

    epochs: float
    batches: int

    def cut(self, batches: int) -> Length:
        """The same, for fewer batches."""
        return Length(self.epochs * batches / self.batches, batches)


def choose_batch_size(wanted: int | None, samples: int | None) -> int:
    """Batch size: as wanted, or about a fortieth of the samples, a power of 2.

    >>> choose_batch_size(None, 1100), choose_batch_size(None, 50_000), choose_batch_size(8, 100)
    (32, 128, 8)
    """
    if wanted is not None:
        return wanted
    least, most = BATCH_SIZES
    if samples is None:
        return most
    fitting = 1 << max(0, round(math.log2(max(1, samples) / 40)))
    return min(samples, max(least, min(most, fitting)))


def fewer_samples(size: int, batches: int) -> int:
    """A batch size with which there is time for enough batches, if there is for so many of a size.

    >>> fewer_samples(128, 2000), fewer_samples(128, 600), fewer_samples(64, 3)
    (128, 64, 16)
    """
    while batches < FEW_BATCHES and size // 2 >= BATCH_SIZES[0]:
        size, batches = size // 2, 2 * batches
    return size


def choose_length(epochs: float | str, per_epoch: int | None) -> Length:
    """Length of a full training run; `per_epoch`: batches of an epoch, None: unknown."""
    if epochs == "auto":
        if per_epoch is None:
            return Length(math.nan, RUN_BATCHES)
        least, most = EPOCHS
        chosen = max(least, min(most, round(RUN_BATCHES / per_epoch)))
        return Length(chosen, chosen * per_epoch)
    if per_epoch is None:
        raise EsperError(
            f"epochs={epochs}: the length of an epoch of this stream is not known; leave epochs out"
        )
    batches = float(epochs) * per_epoch
    if batches > MAX_BATCHES:
        raise EsperError(f"epochs={epochs}: {batches:.3g} batches; give fewer")
    return Length(float(epochs), max(1, round(batches)))


def longest_run(length: Length, epochs: float | str, *, timed: bool) -> int:
    """Batches that a run may take, if length pays: `length` and no more where epochs were given.

    `timed`: under a limit on time.

    >>> full = Length(epochs=4.0, batches=1404)
    >>> longest_run(full, "auto", timed=True), longest_run(full, "auto", timed=False)
    (105300, 12636)
    """
    if epochs != "auto":
        return length.batches
    per_epoch = length.batches / length.epochs  # of a stream of unknown length: NaN
    timed = timed and TIMED_EPOCHS * per_epoch > LONGER * length.batches
    return round(TIMED_EPOCHS * per_epoch) if timed else LONGER * length.batches


def choose_rates(
    lr: float | Sequence[float] | str, optimizer: object, topology: str
) -> tuple[Optimizer, tuple[float, ...]]:
    """Optimiser and the learning rates to try first."""
    kind: Optimizer = "sgd" if optimizer == "sgd" else "adamw"
    if optimizer not in ("auto", "adamw", "sgd"):
        return "own", (1 / 3, 1.0, 3.0)
    if isinstance(lr, str):
        middle = RATES[kind]
        if topology == "transformer" and kind == "adamw":
            middle = TRANSFORMER_RATE
        return kind, (middle / 3, middle, middle * 3)
    rates = (lr,) if isinstance(lr, int | float) else lr
    return kind, tuple(float(rate) for rate in rates)
