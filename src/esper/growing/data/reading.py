"""Read what a user gives as data into three parts; nothing is normalised or changed.

    data = read_data((x, y))                      # arrays, tensors, lists, data frames
    data = read_data(train_loader, val=val_loader)
    data = read_data(table["train"], test=table["test"], columns=("image", "label"))

What fits in memory is read once. What does not, and what random transforms change with every read,
becomes a `StreamSource`. Parts that are not given are cut from train.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from esper.device.memory import free_bytes
from esper.growing.data.arrays import Notes, Place
from esper.growing.data.encoding import Encoding, encode_parts
from esper.growing.data.labels import LabelMap
from esper.growing.data.opening import open_source
from esper.growing.data.part_checks import (
    check_classes,
    check_lengths,
    check_like_train,
    check_values,
    describe_samples,
    note_new_classes,
    note_overlap,
)
from esper.growing.data.parts import GrowPart, RawPart, fingerprint, named_inputs, sample_keys
from esper.growing.data.sources import Source
from esper.growing.data.streams import StreamSource
from esper.growing.settings import GrowSettings, StreamChoice
from esper.leyline.arrays import Ints
from esper.leyline.errors import EsperError, shown
from esper.tasks.objectives import check_sample_weights
from esper.tasks.splits import cut_samples, has_classes, random_cut

DEFAULTS: Final = GrowSettings()
HELD_OUT: Final = 0.2
"""Share of train that becomes val, and test, where they are not given."""
MAX_HELD_OUT: Final = 5000
"""Samples of each, at most: more are worth more to training than to a score."""
MEMORY_SHARE: Final = 0.25
"""Share of the free memory that a part may take."""
FEW_SAMPLES: Final = 200
"""Number of training samples below which val and test share what is cut from them."""
STREAM_BATCH: Final = 64
"""Batch size of a stream if the user gives none."""


def _share_held_out(samples: int) -> float:
    """Share of train that becomes val, and test.

    >>> _share_held_out(1000), _share_held_out(50_000)
    (0.2, 0.1)
    """
    return min(HELD_OUT, MAX_HELD_OUT / max(1, samples))


@dataclass(frozen=True, eq=False)
class GrowData:
    """Data in three parts, checked, and what was decided about them."""

    train: GrowPart | StreamSource
    val: GrowPart
    """Guides growth and choices."""
    test: GrowPart
    """Used once, at the end."""
    classes: tuple[str, ...] | None
    """Names of the classes in the order of their indices, if labels were strings."""
    fingerprint: str
    """SHA-256 of shapes, dtypes and contents; of a stream without its contents."""
    notes: tuple[str, ...]
    """What was decided, one line each."""
    batch_size: int | None = None
    """Batch size that the user asked for, or that the loader has; None: no wish."""
    val_is_cut: bool = False
    """Whether val was cut from train, and is not test as well."""
    encoding: Encoding | None = None
    """How rows of a table became inputs; None: inputs are as they were given."""

    @property
    def test_is_val(self) -> bool:
        """Whether test has the samples of val."""
        test, val = self.test, self.val
        if len(test) != len(val) or not torch.equal(test.targets, val.targets):
            return False
        pairs = zip(named_inputs(test.inputs), named_inputs(val.inputs), strict=True)
        return all(torch.equal(one, other) for (_, one), (_, other) in pairs)

    @property
    def sample(self) -> GrowPart:
        """Some training samples: the first ones, or the first batch of a stream."""
        return self.train.example if isinstance(self.train, StreamSource) else self.train

    def example(self, samples: int = 2) -> GrowPart:
        """Return the first training samples."""
        return self.sample.take(slice(samples))

    def with_weighted_targets(self) -> GrowData:
        """The same data with weights in the targets; samples of val and test count 1 each."""
        assert isinstance(self.train, GrowPart), "a stream has no weights"
        train, val, test = (p.with_weighted_targets() for p in (self.train, self.val, self.test))
        return replace(self, train=train, val=val, test=test)


def read_data(
    train: Any,
    val: Any = None,
    test: Any = None,
    settings: GrowSettings = DEFAULTS,
    sample_weights: Any = None,
    two_inputs: bool = False,
) -> GrowData:
    """Read the data of a search; `sample_weights`: one for each sample of train.

    `two_inputs`: the model takes categorical columns as codes beside the numbers.
    """
    notes, columns, encoding = Notes(), settings.columns, None
    parts = {"train": train, "val": val, "test": test}
    if settings.categorical is not None:
        parts, encoding = encode_parts(parts, settings.categorical, columns, two_inputs)
        columns = None
        notes.add(f"categorical columns: {encoding}")
    with torch.random.fork_rng(devices=[]):  # loaders draw from torch's global generator
        sources = {
            name: open_source(given, Place(name, columns, notes))
            for name, given in parts.items()
            if name == "train" or given is not None
        }
        for name, given in (("val", val), ("test", test)):
            if given is train:
                notes.add(f"{name}: the same object as train, so its scores are too good")
        weights = None if sample_weights is None else _weights(sample_weights)
        data = _Reader(sources, notes, settings, weights).read(settings.stream)
        return replace(data, encoding=encoding)


def _weights(given: Any) -> Tensor:
    try:
        return torch.as_tensor(np.asarray(given), dtype=torch.float32)
    except (TypeError, ValueError) as error:
        raise EsperError(
            f"sample_weights={shown(given)}: give an array of one number for each sample"
        ) from error


def _labelled(given: dict[str, RawPart], labels: LabelMap) -> dict[str, GrowPart]:
    """Parts with labels as class indices; all their numbers are finite."""
    parts = {
        name: GrowPart(raw.inputs, labels.indices(raw.targets, name)) for name, raw in given.items()
    }
    for name, part in parts.items():
        check_values(part, name)
    return parts


class _Reader:
    """Reads the sources of one `read_data` call."""

    def __init__(
        self,
        sources: dict[str, Source],
        notes: Notes,
        settings: GrowSettings,
        weights: Tensor | None,
    ) -> None:
        self.sources, self.notes, self.seed = sources, notes, settings.seed
        self.limit = MEMORY_SHARE * free_bytes(torch.device("cpu"))
        self.source, self.weights = sources["train"], weights
        self.wanted = settings.batch_size
        self.batch_size = self.wanted or self.source.batch_size

    def read(self, stream: StreamChoice) -> GrowData:
        """Read all parts."""
        given = {name: self._whole(name) for name in self.sources if name != "train"}
        reason, whole = self._reason_to_stream(stream)
        if whole is None:
            if self.weights is not None:
                raise EsperError(
                    f"sample_weights: train is streamed, {reason}, and its samples have no numbers "
                    f"to find their weights by; give data that fit in memory, or weigh in loss="
                )
            self.notes.add(f"train: streamed, {reason}")
            return self._streamed(given, reason)
        return self._in_memory(whole, given)

    def _whole(self, name: str) -> RawPart:
        """Read a part that must fit in memory."""
        part = self.sources[name].read(self.limit)
        if part is None:
            raise EsperError(
                f"{name} takes more than {self.limit / 2**30:.2g} GiB, a quarter of the free "
                f"memory: give fewer samples"
            )
        check_lengths(part, name)
        return part

    def _reason_to_stream(self, stream: StreamChoice) -> tuple[str, RawPart | None]:
        """Return why train is streamed, or the whole of it."""
        if stream == "always":
            return "as requested", None
        if stream == "auto" and self.source.random():
            return "because reading a sample twice gives different values", None
        whole = self.source.read(self.limit if stream == "auto" else np.inf)
        if whole is not None:
            check_lengths(whole, "train")
            return "", whole
        if self.source.once:
            raise EsperError(
                f"train: a generator, whose samples take more than {self.limit / 2**30:.2g} GiB or "
                f"do not end; give a Dataset or DataLoader, which can be read in every epoch"
            )
        return f"because it takes more than {self.limit / 2**30:.2g} GiB or does not end", None

    # ---- in memory ------------------------------------------------------------------------

    def _in_memory(self, whole: RawPart, given: dict[str, RawPart]) -> GrowData:
        labels = LabelMap.of([whole.targets])
        parts = _labelled({"train": whole} | given, labels)
        for name in given:
            check_like_train(parts[name], parts["train"], name)
        check_classes(parts["train"], labels.classes)
        for name in given:
            note_new_classes(parts[name], parts["train"], name, self.notes)
            note_overlap(parts[name], parts["train"], (name, "train"), self.notes)
        if {"val", "test"} <= parts.keys():  # networks are chosen by val
            note_overlap(parts["test"], parts["val"], ("test", "val"), self.notes)
        if self.weights is not None:
            check_sample_weights(self.weights, len(whole))
            parts["train"] = replace(parts["train"], weights=self.weights)
        parts = self._cut(parts)
        self._fit_batch_size(len(parts["train"]))
        return GrowData(
            parts["train"], parts["val"], parts["test"], labels.classes,
            fingerprint((name, parts[name]) for name in ("train", "val", "test")),
            tuple(self.notes.lines), self.batch_size,
            "val" not in self.sources and parts["test"] is not parts["val"],
        )  # fmt: skip

    def _cut(self, parts: dict[str, GrowPart]) -> dict[str, GrowPart]:
        """Cut the parts that are missing from train."""
        train = parts["train"]
        missing = [name for name in ("val", "test") if name not in parts]
        few = len(train) < FEW_SAMPLES and "test" in missing
        cut = [name for name in missing if name == "val" or not few]
        made, share = dict(parts), _share_held_out(len(train))
        if cut:
            by_class = has_classes(train.targets.numpy())
            pieces, together = cut_samples(
                train.targets.numpy(),
                sample_keys(train),
                [share] * len(cut),
                self.seed,
                by_class,
            )
            for name, index_N in zip((*cut, "train"), pieces, strict=True):
                piece = train.take(index_N)
                made[name] = piece if name == "train" else replace(piece, weights=None)
            how = "stratified by class" if by_class else "at random"
            for name in cut:
                self.notes.add(f"{name}: {share:.0%} of train, {how} ({len(made[name])} samples)")
            if together:
                self.notes.add(f"train: {together} samples are copies, cut with their originals")
            else:
                for name in cut:
                    note_overlap(made[name], made["train"], (name, "train"), self.notes)
        if few:
            made["test"] = made["val"]
            self.notes.add(
                f"test: the same samples as val, because train has {len(train)} samples, under "
                f"{FEW_SAMPLES}; give test= for an honest score"
            )
        return made

    def _fit_batch_size(self, samples: int) -> None:
        if self.batch_size is None or self.batch_size <= samples:
            return
        if self.wanted is not None:
            raise EsperError(
                f"batch_size={self.wanted} is larger than the {samples} training samples; set it "
                f"to {samples} or less"
            )
        self.notes.add(
            f"batch size: {samples}, because the loader's {self.batch_size} is more than the "
            f"training samples"
        )
        self.batch_size = samples

    # ---- streamed -------------------------------------------------------------------------

    def _streamed(self, given: dict[str, RawPart], reason: str) -> GrowData:
        keep = self._held_out(given, reason)
        size = self.batch_size or STREAM_BATCH
        if keep is not None:
            self._fit_batch_size(len(keep))
            size = min(size, len(keep))
        first = next(iter(self.source.epoch(size, keep, self.seed)), None)
        if first is None:
            raise EsperError(self.source.empty_message())
        check_lengths(first, "train")
        labels = LabelMap.of([first.targets, *(raw.targets for raw in given.values())])
        train = StreamSource(self.source, size, labels, keep, self.seed)
        parts = _labelled(given, labels)
        for name, part in parts.items():
            check_like_train(part, train.example, name)
        if given["test"] is given["val"]:
            parts["test"] = parts["val"]
        else:
            note_overlap(parts["test"], parts["val"], ("test", "val"), self.notes)
        stamp = f"stream of {train.samples} samples, {describe_samples(train.example)}"
        return GrowData(
            train, parts["val"], parts["test"], labels.classes,
            fingerprint(((name, parts[name]) for name in ("val", "test")), stamp),
            tuple(self.notes.lines), train.batch_size,
        )  # fmt: skip

    def _held_out(self, given: dict[str, RawPart], reason: str) -> Ints | None:
        """Read missing parts from the stream, into `given`; returns the samples left to train."""
        missing = [name for name in ("val", "test") if name not in given]
        if not missing:
            return None
        source = self.source
        if source.length is None:
            if missing == ["test"]:
                given["test"] = given["val"]
                self.notes.add(
                    "test: the same samples as val, because none can be cut from a stream; give "
                    "test= for an honest score"
                )
                return None
            raise EsperError(
                f"train is streamed ({reason}) and its samples have no numbers, so none can be "
                f"held out: give val= as well"
            )
        share = _share_held_out(source.length)
        *pieces, keep = random_cut(source.length, [share] * len(missing), self.seed)
        for name, index_N in zip(missing, pieces, strict=True):
            given[name] = source.take(index_N)
            check_lengths(given[name], name)
            self.notes.add(
                f"{name}: {share:.0%} of train, at random ({len(index_N)} samples), "
                f"read once with the transforms of train"
            )
        return keep
