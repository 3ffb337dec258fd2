"""Where samples come from: arrays, datasets, loaders, tables with columns, iterables.

A source can be read as a whole, or in batches, epoch after epoch. `random`: whether reading
the same sample again gives other values, as random transforms do.
"""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
)

from esper.growing.data.arrays import Place
from esper.growing.data.parts import RawPart, input_bytes, join_parts
from esper.growing.data.samples import collate_samples, convert_batch, split_sample
from esper.leyline.arrays import Ints
from esper.leyline.errors import EsperError
from esper.leyline.user_errors import user_code

CHUNK: Final = 256
"""Samples read at a time."""
PROBED_SAMPLES: Final = 8
PROBED_READS: Final = 4
"""Samples that are read several times to find random transforms: a coin flip in each goes unseen
once in 10 million times."""
MAX_UNCOUNTED: Final = 1_000_000
"""Samples that are read into memory from data of unknown length, which may be endless."""

END: Final = object()
"""After the last batch of a loader."""

Batches = Iterator[RawPart]


class Source(abc.ABC):
    """Samples given as one of the parts."""

    length: int | None = None
    """Number of samples, each of which can be read by its number; None: unknown."""
    batch_size: int | None = None
    """Batch size that the user chose."""
    once = False
    """Whether it can be read a single time, as generators can."""

    def __init__(self, place: Place) -> None:
        self.place, self.where = place, place.where

    @abc.abstractmethod
    def in_order(self) -> Batches:
        """Yield all samples once, in batches of any size, in their own order."""

    def epoch(self, batch_size: int, keep: Ints | None, seed: int) -> Batches:
        """Yield the batches of one epoch of training, in a new random order.

        `keep`: numbers of samples to use.
        """
        numbers = np.arange(self.length or 0) if keep is None else keep
        order = np.random.default_rng(seed).permutation(numbers)
        for start in range(0, len(order), batch_size):
            yield self.take(order[start : start + batch_size])

    def random(self) -> bool:
        """Whether two reads of a sample differ."""
        return False

    def take(self, index_N: Ints) -> RawPart:
        """Read single samples by number."""
        raise EsperError(f"{self.where}: a stream has no numbered samples")

    def read(self, limit: float = math.inf) -> RawPart | None:
        """Read everything; None if it takes more than `limit` bytes, or does not seem to end."""
        pieces: list[RawPart] = []
        size, samples = 0, 0
        for piece in self.in_order():
            pieces.append(piece)
            size += input_bytes(piece.inputs)
            samples += len(piece)
            expected = size if self.length is None else size / max(1, samples) * self.length
            if expected > limit or (self.length is None and samples > MAX_UNCOUNTED):
                return None
        if not pieces:
            raise EsperError(self.empty_message())
        return join_parts(pieces, self.where)

    def empty_message(self) -> str:
        """Return the line that says why there is nothing to read."""
        return f"{self.where} is empty: give at least one sample"

    def _convert(self, batch: object) -> RawPart:
        return convert_batch(*split_sample(batch, self.place), self.place)


class ArraySource(Source):
    """Inputs and targets of all samples, in memory."""

    def __init__(self, inputs: object, targets: object, place: Place) -> None:
        super().__init__(place)
        self.part = convert_batch(inputs, targets, place)
        self.length = len(self.part)

    def in_order(self) -> Batches:
        """Yield everything as one batch."""
        if self.length:
            yield self.part

    def take(self, index_N: Ints) -> RawPart:
        """Return the given samples."""
        return self.part.take(index_N)


class DatasetSource(Source):
    """A map-style dataset: `len(data)` and `data[i]`."""

    def __init__(self, data: Any, place: Place) -> None:
        super().__init__(place)
        self.data = data
        with user_code(f"{self.where}: len() of the {type(data).__name__} fails"):
            self.length = len(data)

    def in_order(self) -> Batches:
        """Yield the samples by number."""
        for start in range(0, self.length or 0, CHUNK):
            numbers = range(start, min(start + CHUNK, self.length or 0))
            yield collate_samples([self._sample(number) for number in numbers], self.place, start)

    def take(self, index_N: Ints) -> RawPart:
        """Read the given samples."""
        return collate_samples([self._sample(int(number)) for number in index_N], self.place)

    def random(self) -> bool:
        """Read the first samples several times."""
        numbers = range(min(PROBED_SAMPLES, self.length or 0))
        return _differ(lambda: [self._sample(number) for number in numbers])

    def _sample(self, number: int) -> object:
        with user_code(f"{self.where}: sample {number} of the {type(self.data).__name__} fails"):
            return self.data[number]


class TableSource(DatasetSource):
    """A table of named columns, as of Hugging Face: `data[a:b]` is a dict of columns."""

    def __init__(self, data: Any, place: Place) -> None:
        style = getattr(data, "format", None)
        if isinstance(style, Mapping) and style.get("type") is None:
            data = data.with_format("torch")  # plain Python lists otherwise
        super().__init__(data, place)

    def in_order(self) -> Batches:
        """Yield rows in slices, which is much faster than one by one."""
        for start in range(0, self.length or 0, CHUNK):
            with user_code(f"{self.where}: rows from {start} on fail"):
                rows = self.data[start : min(start + CHUNK, self.length or 0)]
            yield self._convert(rows)


class LoaderSource(Source):
    """A `DataLoader`; its collate function makes the batches."""

    def __init__(self, loader: DataLoader[Any], place: Place) -> None:
        super().__init__(place)
        self.loader = loader
        self.batch_size = loader.batch_size
        self.numbers = _sampled_numbers(loader)
        """Numbers of the samples that the loader draws; None: only its sampler knows."""
        if self.numbers is not None:
            self.length = len(self.numbers)
            if self.length and not len(loader):
                raise EsperError(
                    f"{self.where}: the DataLoader has drop_last=True, batch_size="
                    f"{loader.batch_size} and {self.length} samples, so it yields nothing; lower "
                    f"batch_size"
                )

    def in_order(self) -> Batches:
        """Yield the samples in the order of the dataset, or of the loader if it is its own."""
        loader = self.loader
        if self.numbers is not None:
            loader = self._loader(self.numbers, self.batch_size or CHUNK, shuffle=False, seed=0)
        yield from self._batches(iter(loader))

    def take(self, index_N: Ints) -> RawPart:
        """Read the samples of these places in the loader's own set."""
        assert self.numbers is not None
        loader = self._loader(self.numbers[index_N], len(index_N), shuffle=False, seed=0)
        return join_parts(list(self._batches(iter(loader))), self.where)

    def epoch(self, batch_size: int, keep: Ints | None, seed: int) -> Batches:
        """Yield the loader's own batches, or those of its dataset without held-out samples."""
        if keep is None or self.numbers is None:
            yield from self._batches(seeded_pass(self.loader, seed))
            return
        shuffle = not isinstance(self.loader.sampler, SequentialSampler)
        yield from self._batches(iter(self._loader(self.numbers[keep], batch_size, shuffle, seed)))

    def random(self) -> bool:
        """Read the first samples, or the first batch, several times."""
        if self.numbers is None:
            return _differ(lambda: next(iter(self.loader), None), reads=2)
        dataset, collate = self.loader.dataset, self.loader.collate_fn
        some = [int(number) for number in self.numbers[:PROBED_SAMPLES]]
        with user_code(f"{self.where}: samples of the {type(dataset).__name__} fail"):
            return _differ(lambda: collate([dataset[number] for number in some]))

    def _loader(self, numbers: Ints, batch_size: int, shuffle: bool, seed: int) -> DataLoader[Any]:
        """Return a loader like the user's own, over some of the samples."""
        own = self.loader
        return DataLoader(
            Subset(own.dataset, [int(number) for number in numbers]),
            batch_size=min(batch_size, max(1, len(numbers))),
            shuffle=shuffle,
            num_workers=own.num_workers,
            collate_fn=own.collate_fn,
            worker_init_fn=own.worker_init_fn,
            generator=torch.Generator().manual_seed(seed),
        )

    def _batches(self, given: Iterator[Any]) -> Batches:
        for number in itertools.count():
            with user_code(f"{self.where}: batch {number} of the DataLoader fails"):
                batch = next(given, END)
            if batch is END:
                return
            yield self._convert(batch)


def seeded_pass(data: Iterable[Any], seed: int) -> Iterator[Any]:
    """Read all of it once; generators of a `DataLoader`'s own, and of its sampler, start from a
    seed, and stay as the user has them."""
    own = _generators(data)
    return _drawing(data, own, seed) if own else iter(data)


def _generators(data: object) -> list[torch.Generator]:
    if not isinstance(data, DataLoader):
        return []
    batches = data.batch_sampler
    holders = (data, data.sampler, batches, getattr(batches, "sampler", None))
    found = [value for one in holders for value in getattr(one, "__dict__", {}).values()]
    return list({id(v): v for v in found if isinstance(v, torch.Generator)}.values())


def _drawing(data: Iterable[Any], own: list[torch.Generator], seed: int) -> Iterator[Any]:
    states = [torch.Generator(one.device).manual_seed(seed).get_state() for one in own]
    reading: Iterator[Any] | None = None
    batch: object = None
    while batch is not END:
        before = [one.get_state() for one in own]
        try:
            _set_states(own, states)
            reading = iter(data) if reading is None else reading  # draws, too
            batch = next(reading, END)
            states = [one.get_state() for one in own]
        finally:
            _set_states(own, before)
        if batch is not END:
            yield batch


def _set_states(generators: list[torch.Generator], states: list[Tensor]) -> None:
    for one, state in zip(generators, states, strict=True):
        one.set_state(state)


def _sampled_numbers(loader: DataLoader[Any]) -> Ints | None:
    """Return the samples of a loader if each is drawn once an epoch, in any order."""
    sampler, plain = loader.sampler, isinstance(loader.batch_sampler, BatchSampler)
    if not plain or not hasattr(loader.dataset, "__getitem__"):
        return None
    if isinstance(sampler, SubsetRandomSampler):
        return np.sort(np.asarray([int(number) for number in sampler.indices], dtype=np.int64))
    whole = isinstance(sampler, SequentialSampler) or (
        isinstance(sampler, RandomSampler)
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
    )
    size: Any = loader.dataset
    return np.arange(len(size), dtype=np.int64) if whole else None


class IterableSource(Source):
    """An iterable of samples: an `IterableDataset`, a generator, a streamed table."""

    def __init__(self, data: Iterable[Any], place: Place) -> None:
        super().__init__(place)
        self.data = data
        self.once = isinstance(data, Iterator)

    def in_order(self) -> Batches:
        """Yield the samples as they come."""
        return self._batches(iter(self.data), CHUNK)

    def epoch(self, batch_size: int, keep: Ints | None, seed: int) -> Batches:
        """Yield the samples as they come, in batches."""
        return self._batches(seeded_pass(self.data, seed), batch_size)

    def _batches(self, given: Iterator[Any], batch_size: int) -> Batches:
        for number in itertools.count():
            with user_code(f"{self.where}: reading from sample {number * batch_size} on fails"):
                samples = list(itertools.islice(given, batch_size))
            if not samples:
                return
            yield collate_samples(samples, self.place, number * batch_size)

    def random(self) -> bool:
        """Start twice and compare the first samples; not possible for generators."""
        if self.once:
            return False
        return _differ(lambda: list(itertools.islice(iter(self.data), PROBED_SAMPLES)), reads=2)

    def empty_message(self) -> str:
        """A generator may have been used up."""
        if self.once:
            return (
                f"{self.where}: the {type(self.data).__name__} is exhausted or empty; make a new "
                f"one, or give a list or Dataset, which can be read again"
            )
        return super().empty_message()


# ---- random transforms -------------------------------------------------------------------------


def _differ(read: Callable[[], object], reads: int = PROBED_READS) -> bool:
    """Whether repeated reads give different values."""
    first = read()
    return any(not _same(first, read()) for _ in range(reads - 1))


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, Mapping):
        return one.keys() == two.keys() and all(_same(one[key], two[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(two) and all(map(_same, one, two))
    if isinstance(one, Tensor | np.ndarray | float):
        # NaN is not equal to itself.
        return bool(np.asarray((one == two) | ((one != one) & (two != two))).all())
    return bool(one == two)
