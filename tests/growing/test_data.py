"""Whatever users call data is read as it is: same samples, same dtypes, parts that do not meet."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from esper.growing.data.parts import GrowPart
from esper.growing.data.reading import GrowData
from esper.growing.data.streams import StreamSource
from grow_support import read_parts
from support import refused

N, F = 300, 4


def inputs(samples: int = N) -> Tensor:
    """Every sample is unique: its first number is its own."""
    values = torch.randn(samples, F, generator=torch.Generator().manual_seed(0))
    values[:, 0] = torch.arange(samples)
    return values


def labels(samples: int = N, classes: int = 3) -> Tensor:
    return torch.arange(samples) % classes


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


class Samples(Dataset[Any]):
    """A map-style dataset; `noise` is what a random transform does."""

    def __init__(self, style: str = "tuple", samples: int = N, noise: float = 0.0) -> None:
        self.style, self.noise = style, noise
        self.x, self.y = inputs(samples), labels(samples)
        self.reads: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, number: int) -> Any:
        self.reads[number] += 1
        x, y = self.x[number].clone(), int(self.y[number])
        x[1:] += self.noise * torch.randn(F - 1)
        if self.style == "dict":
            return {"x": x, "label": y}
        if self.style == "two":
            return x, x[:2], y
        return (x, y)


class Stream(IterableDataset[Any]):
    def __init__(self, samples: int = N, shuffled: bool = False) -> None:
        self.samples, self.shuffled = samples, shuffled

    def __iter__(self) -> Any:
        order = torch.randperm(self.samples) if self.shuffled else torch.arange(self.samples)
        x, y = inputs(self.samples), labels(self.samples)
        return iter([(x[i], y[i]) for i in order])


class Table:
    """As much of a Hugging Face dataset as is used: rows of Python values, or a format."""

    def __init__(self, columns: dict[str, list[Any]], kind: str | None = None) -> None:
        self.columns, self.format = columns, {"type": kind}

    @property
    def column_names(self) -> list[str]:
        return list(self.columns)

    def with_format(self, kind: str) -> Table:
        return Table(self.columns, kind)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key: int | slice) -> dict[str, Any]:
        rows = {name: values[key] for name, values in self.columns.items()}
        if self.format["type"] is None:
            return rows
        texts = {name for name, values in self.columns.items() if isinstance(values[0], str)}
        return {n: value if n in texts else torch.tensor(value) for n, value in rows.items()}


class Series:
    """As much of a pandas series as is used."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    def to_numpy(self) -> np.ndarray:
        return self.values


class Frame:
    """As much of a pandas data frame as is used."""

    iloc = None

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns = columns

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, list):
            return Frame({name: self.columns[name] for name in key})
        return Series(self.columns[key])

    def to_numpy(self) -> np.ndarray:
        return np.stack([np.asarray(values) for values in self.columns.values()], axis=1)


def table(strings: bool = False) -> Table:
    words = ["cat", "dog", "eel"]
    y = labels().tolist()
    columns = {"image": inputs().tolist(), "label": [words[i] for i in y] if strings else y}
    return Table(columns | {"id": list(range(N))})


def part(value: Any) -> GrowPart:
    assert isinstance(value, GrowPart)
    return value


def numbers_of(value: GrowPart) -> set[int]:
    x = value.inputs
    x = x if isinstance(x, Tensor) else next(iter(x.values() if isinstance(x, dict) else x))
    return {int(number) for number in x.reshape(len(value), -1)[:, 0]}


def all_samples(data: GrowData) -> list[int]:
    return sorted(n for each in (data.train, data.val, data.test) for n in numbers_of(part(each)))


# ---- what is accepted -------------------------------------------------------------------------

SOURCES: dict[str, Any] = {
    "tensors": lambda: (inputs(), labels()),
    "arrays": lambda: (inputs().numpy(), labels().numpy()),
    "small integers": lambda: (inputs().numpy(), labels().numpy().astype(np.uint8)),
    "lists": lambda: (inputs().tolist(), labels().tolist()),
    "list of arrays": lambda: [inputs(), labels()],
    "list of rows": lambda: (list(inputs()), list(labels())),
    "range of numbers": lambda: (inputs(), [y % 3 for y in range(N)]),
    "named tuple": lambda: Pair(inputs(), labels()),
    "dict of arrays": lambda: {"x": inputs(), "y": labels()},
    "frame and series": lambda: (
        Frame({str(i): inputs()[:, i] for i in range(F)}),
        Series(labels()),
    ),
    "frame": lambda: Frame({str(i): inputs()[:, i] for i in range(F)} | {"y": labels()}),
    "tensor dataset": lambda: TensorDataset(inputs(), labels()),
    "dataset": Samples,
    "dataset of dicts": lambda: Samples("dict"),
    "samples": lambda: [(x, int(y)) for x, y in zip(inputs(), labels(), strict=True)],
    "iterable dataset": Stream,
    "generator": lambda: ((x, y) for x, y in zip(inputs(), labels(), strict=True)),
    "loader": lambda: DataLoader(Samples(), batch_size=32),
    "shuffling loader": lambda: DataLoader(Samples(), batch_size=32, shuffle=True, drop_last=True),
    "loader of dicts": lambda: DataLoader(Samples("dict"), batch_size=7),
    "loader of an iterable": lambda: DataLoader(Stream(), batch_size=32),
    "loader that does not batch": lambda: DataLoader(Samples(), batch_size=None),
}


@pytest.mark.parametrize("source", SOURCES)
def test_everything_called_data_reads_alike(source):
    data = read_parts(SOURCES[source]())
    assert all_samples(data) == list(range(N))
    for each in (data.train, data.val, data.test):
        chosen = part(each)
        assert isinstance(chosen.inputs, Tensor)
        number = chosen.inputs[:, 0].long()
        torch.testing.assert_close(chosen.inputs, inputs()[number])
        assert torch.equal(chosen.targets, labels()[number])
        assert chosen.targets.dtype == torch.int64
    assert data.fingerprint == read_parts((inputs(), labels())).fingerprint
    assert data.classes is None


def test_tables_are_read_by_column():
    data = read_parts(table(), columns=("image", "label"))
    assert data.fingerprint == read_parts((inputs(), labels())).fingerprint
    data = read_parts(table(strings=True), columns=("image", "id", "label"))
    chosen = part(data.train).inputs
    assert isinstance(chosen, dict)
    assert list(chosen) == ["image", "id"]
    assert torch.equal(chosen["image"][:, 0].long(), chosen["id"])
    assert data.classes == ("cat", "dog", "eel")


@pytest.mark.parametrize("source", [lambda: Samples("two"), lambda: DataLoader(Samples("two"), 9)])
def test_several_inputs_stay_in_order(source):
    data = read_parts(source())
    chosen = part(data.train).inputs
    assert isinstance(chosen, tuple)
    assert [tuple(value.shape[1:]) for value in chosen] == [(F,), (2,)]
    assert torch.equal(chosen[0][:, :2], chosen[1])
    assert data.fingerprint == read_parts((inputs(), inputs()[:, :2], labels())).fingerprint
    assert data.fingerprint == read_parts(((inputs(), inputs()[:, :2]), labels())).fingerprint


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int16, torch.int64, torch.bool, torch.float16, torch.bfloat16]
)
def test_inputs_keep_dtype_and_values(dtype):
    pixels = torch.randint(0, 2, (N, 1, 2, 2)).to(dtype)
    data = read_parts((pixels, labels()), val=(pixels, labels()), test=(pixels, labels()))
    assert torch.equal(part(data.train).inputs, pixels)
    assert part(data.train).inputs.dtype == dtype


def test_double_precision_becomes_single_and_is_noted():
    data = read_parts((inputs().double().numpy(), labels().double().numpy() / 7))
    assert part(data.train).inputs.dtype == part(data.train).targets.dtype == torch.float32
    assert "train inputs: float64 taken as float32" in data.notes


def test_collate_functions_make_the_batches():
    def halves(samples: list[Any]) -> Any:
        x, y = zip(*samples, strict=True)
        return torch.stack(x)[:, :2], torch.tensor(y)

    data = read_parts(DataLoader(Samples(), batch_size=32, collate_fn=halves))
    assert part(data.train).inputs.shape[1:] == (2,)
    assert data.batch_size == 32
    assert all_samples(data) == list(range(N))


def test_a_sampler_of_a_subset_is_kept():
    loader = DataLoader(Samples(), batch_size=16, sampler=SubsetRandomSampler(range(0, N, 2)))
    data = read_parts(loader, val=Samples(samples=20), test=Samples(samples=30))
    assert numbers_of(part(data.train)) == set(range(0, N, 2))


def test_a_sampler_of_its_own_is_streamed():
    weights = WeightedRandomSampler([1.0] * N, N)
    loader = DataLoader(Samples(), batch_size=16, sampler=weights)
    data = read_parts(loader, val=Samples(samples=20))
    assert isinstance(data.train, StreamSource)
    assert len(list(data.train.epoch())) == N // 16


# ---- labels -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["list", "array", "object", "samples", "bytes"])
def test_strings_become_indices(kind):
    words = [["eel", "cat", "dog"][i % 3] for i in range(N)]
    x = inputs()
    made: dict[str, Any] = {
        "list": (x, words),
        "array": (x, np.array(words)),
        "object": (x, np.array(words, dtype=object)),
        "samples": list(zip(x, words, strict=True)),
        "bytes": (x, [word.encode() for word in words]),
    }
    data = read_parts(made[kind])
    assert data.classes == ("cat", "dog", "eel")
    for each in (data.train, data.val, data.test):
        chosen = part(each)
        numbers = chosen.inputs[:, 0].long().tolist()  # type: ignore[union-attr]
        assert [data.classes[i] for i in chosen.targets] == [words[i] for i in numbers]


def test_integers_are_never_renumbered():
    data = read_parts((inputs(), labels() * 5 + 1))
    assert set(part(data.train).targets.tolist()) == {1, 6, 11}
    assert data.classes is None


# ---- parts ------------------------------------------------------------------------------------


def test_cuts_are_stratified_seeded_and_disjoint():
    y = (torch.arange(1000) >= 900).long()
    one, two, other = (read_parts((inputs(1000), y), seed=seed) for seed in (3, 3, 4))
    assert (len(part(one.train)), len(one.val), len(one.test)) == (600, 200, 200)
    assert all_samples(one) == list(range(1000))
    assert one.fingerprint == two.fingerprint != other.fingerprint
    for each in (one.val, one.test):
        assert int(each.targets.sum()) == 20
    assert one.notes == (
        "val: 20% of train, stratified by class (200 samples)",
        "test: 20% of train, stratified by class (200 samples)",
    )


def test_cuts_do_not_depend_on_the_global_generator():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = read_parts(DataLoader(Samples(), batch_size=32, shuffle=True))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert one.fingerprint == read_parts(DataLoader(Samples(), 32, shuffle=True)).fingerprint


def test_numbers_are_cut_at_random():
    data = read_parts((inputs(), inputs()[:, 1]))
    assert (len(data.val), len(data.test)) == (60, 60)
    assert all_samples(data) == list(range(N))
    assert "val: 20% of train, at random (60 samples)" in data.notes


def test_given_parts_are_taken_whole():
    data = read_parts((inputs(), labels()), test=(inputs(50) + 1000, labels(50)))
    assert len(data.test) == 50
    assert len(part(data.train)) + len(data.val) == N
    data = read_parts(
        (inputs(), labels()),
        val=(inputs(50) + 1000, labels(50)),
        test=DataLoader(Samples(samples=60), 7, shuffle=True),
    )
    assert (len(part(data.train)), len(data.val), len(data.test)) == (N, 50, 60)
    line = "test: 60 of 60 samples are also in train, so its scores are too good; leave them out"
    assert data.notes == (f"{line} of one",)


def test_no_more_is_held_out_of_many_samples_than_a_score_needs():
    data = read_parts((torch.zeros(40_000, 1), torch.arange(40_000) % 2))
    assert (len(part(data.train)), len(data.val), len(data.test)) == (30_000, 5000, 5000)
    assert "val: 12% of train, stratified by class (5000 samples)" in data.notes


def test_under_200_samples_validation_is_shared():
    data = read_parts((inputs(150), labels(150)))
    assert data.test is data.val
    assert len(part(data.train)) + len(data.val) == 150
    assert any("test: the same samples as val, because train has 150" in n for n in data.notes)
    assert data.test is not read_parts((inputs(150), labels(150)), test=(inputs(5), labels(5))).val


def test_every_class_stays_in_train():
    y = labels()
    y[7], y[8], y[9] = 3, 4, 4
    data = read_parts((inputs(), y))
    assert set(part(data.train).targets.tolist()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("samples", [3, 4, 5, 7])
def test_a_handful_of_samples_is_enough(samples):
    data = read_parts((inputs(samples), torch.rand(samples)))
    assert len(data.val) >= 1 <= len(part(data.train))
    assert len(part(data.train)) + len(data.val) == samples


@pytest.mark.parametrize("classes", [True, False])
def test_copies_of_a_sample_are_cut_together(classes):
    y = labels() if classes else torch.rand(N, generator=torch.Generator().manual_seed(0))
    copied = torch.randint(0, N, (100,), generator=torch.Generator().manual_seed(1))
    data = read_parts((torch.cat([inputs(), inputs()[copied]]), torch.cat([y, y[copied]])))
    held = [numbers_of(part(each)) for each in (data.train, data.val, data.test)]
    assert sum(len(each) for each in held) == N
    assert len(part(data.train)) + len(data.val) + len(data.test) == N + 100
    assert all(60 < len(each) < 110 for each in (data.val, data.test))
    assert "train: 100 samples are copies, cut with their originals" in data.notes


def test_where_most_samples_are_copies_they_are_counted():
    data = read_parts((inputs(4).repeat(75, 1), labels(4, 2).repeat(75)))
    assert numbers_of(part(data.train)) == numbers_of(data.test) == {0, 1, 2, 3}
    assert any("test: 60 of 60 samples are also in train, so its" in note for note in data.notes)


def test_what_deserves_a_note_gets_one():
    both = (inputs(), labels())
    notes = read_parts(both, val=both).notes
    assert "val: the same object as train, so its scores are too good" in notes
    assert any("val: 300 of 300 samples are also in train, so its scores" in n for n in notes)
    new = (inputs(60) + 1000, labels(60))
    for given in (new, (new[0].clone(), new[1].clone())):
        notes = read_parts(both, val=new, test=given).notes
        assert any("test: 60 of 60 samples are also in val, so its" in note for note in notes)
    new = (inputs(60) + 1000, labels(60, 4))
    assert any(
        "val: 15 samples of labels [3] that train does not have" in note
        for note in read_parts(both, val=new).notes
    )
    loader = DataLoader(Samples(), batch_size=256)
    data = read_parts(loader)
    assert data.batch_size == 180
    assert any("batch size: 180, because the loader's 256 is more" in note for note in data.notes)


# ---- streams ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [lambda: Samples(noise=0.1), lambda: DataLoader(Samples(noise=0.1), 16, shuffle=True)],
)
def test_random_transforms_are_streamed(source):
    data = read_parts(source(), batch_size=16)
    stream = data.train
    assert isinstance(stream, StreamSource)
    assert stream.samples == 180
    assert stream.batches_per_epoch == 11
    held = numbers_of(data.val) | numbers_of(data.test)
    assert len(held) == 120
    epochs = [list(stream.epoch(number)) for number in (0, 1)]
    seen = [[int(n) for x, _ in batches for n in x[:, 0]] for batches in epochs]
    assert seen[0] != seen[1]
    for numbers in seen:
        assert len(set(numbers)) == len(numbers) == 11 * 16
        assert not set(numbers) & held
    for x, y in epochs[0]:
        assert torch.equal(y, labels()[x[:, 0].long()])
    assert "train: streamed, because reading a sample twice gives different values" in data.notes
    assert any("read once with the transforms of train" in note for note in data.notes)
    assert data.fingerprint != read_parts((inputs(), labels())).fingerprint


def test_flips_are_noticed():
    class Flipping(Samples):
        def __getitem__(self, number: int) -> Any:
            x, y = super().__getitem__(number)
            return (x.flip(0) if torch.rand(()) < 0.5 else x), y

    assert isinstance(read_parts(Flipping()).train, StreamSource)


def test_what_does_not_fit_is_streamed():
    data = read_parts(Samples(), memory_limit=N * F * 4 - 1)
    assert isinstance(data.train, StreamSource)
    assert any(note.startswith("train: streamed, because it takes more") for note in data.notes)
    assert isinstance(read_parts(Samples(), memory_limit=N * F * 4).train, GrowPart)


def test_large_data_are_not_read_twice():
    samples = Samples(samples=2000)
    read_parts(samples, memory_limit=100)
    assert sum(count > 0 for count in samples.reads.values()) < 1200


def test_endless_data_are_streamed(monkeypatch):
    class Endless(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return ((torch.ones(F), i % 2) for i in itertools.count())

    monkeypatch.setattr("esper.growing.data.sources.MAX_UNCOUNTED", 1000)
    data = read_parts(Endless(), val=Samples(samples=30))
    assert isinstance(data.train, StreamSource)
    assert any(note.endswith("or does not end") for note in data.notes)


def test_streams_may_be_chosen():
    assert isinstance(read_parts((inputs(), labels()), stream="always").train, StreamSource)
    assert isinstance(read_parts(Samples(noise=1.0), stream="never").train, GrowPart)


def test_streams_without_length_count_by_steps():
    data = read_parts(Stream(shuffled=True), val=Samples(samples=30), batch_size=8)
    stream = data.train
    assert isinstance(stream, StreamSource)
    assert (stream.samples, stream.batches_per_epoch, stream.batch_size) == (None, None, 8)
    assert data.test is data.val
    taken = [batch for epoch in range(2) for batch in stream.epoch(epoch)]
    assert {len(y) for _, y in taken} == {8}
    assert len(taken) == 2 * (N // 8)


def test_string_labels_stream():
    words = ["cat", "dog", "eel"]
    rows = [(x, words[int(y)]) for x, y in zip(inputs(), labels(), strict=True)]
    data = read_parts(rows, stream="always")
    assert data.classes == ("cat", "dog", "eel")
    assert isinstance(data.train, StreamSource)
    x, y = next(data.train.epoch())
    assert torch.equal(y, labels()[x[:, 0].long()])  # type: ignore[index,call-overload]


def test_examples_are_the_first_samples():
    data = read_parts((inputs(), labels()), val=Samples(samples=9), test=Samples(samples=9))
    assert torch.equal(data.example(3).inputs, inputs()[:3])  # type: ignore[arg-type]
    assert len(read_parts(Samples(), stream="always").example(3)) == 3


def test_sample_weights_follow_their_samples_and_do_not_weigh_scores():
    x = inputs()
    data = read_parts((x, labels()), sample_weights=x[:, 0].abs().numpy())
    assert torch.equal(data.train.weights, data.train.inputs[:, 0])
    assert data.val.weights is None
    weighted = data.with_weighted_targets()
    assert torch.equal(weighted.train.targets[:, 1], data.train.inputs[:, 0])
    assert torch.equal(weighted.val.targets[:, 0].long(), data.val.targets)
    assert bool((weighted.val.targets[:, 1] == 1).all())
    assert data.fingerprint != read_parts((x, labels())).fingerprint


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.ones(N - 1), f"for {N} samples"),
        (np.full(N, -1.0), "weight -1 of sample 0"),
        (["heavy"] * N, "give an array of one number for each sample"),
    ],
)
def test_wrong_sample_weights_are_refused_in_one_line(weights, words):
    assert words in refused(lambda: read_parts((inputs(), labels()), sample_weights=weights))


def test_streams_take_no_sample_weights():
    train = TensorDataset(inputs(), labels())
    said = refused(lambda: read_parts(train, stream="always", sample_weights=np.ones(N)))
    assert "train is streamed, as requested" in said
