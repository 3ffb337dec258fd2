"""Likely mistakes with data, models and losses are one line that names the place and the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from esper.growing.data.reading import GrowData
from esper.growing.model_checks import check_against_model, model_failure
from esper.kasmina.tracing import trace_model
from esper.leyline.errors import EsperError
from esper.tasks.objectives import make_training_loss
from grow_support import read_parts
from support import refused

N = 240
X = torch.randn(N, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(N) % 4


def changed(values: Tensor, place: Any, value: float) -> Tensor:
    copy = values.clone()
    copy[place] = value
    return copy


class Items(Dataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> Any:
        item = self.items[number]
        if isinstance(item, Exception):
            raise item
        return item


class Nothing(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([])


class Image:
    """What PIL gives."""

    def getbands(self) -> tuple[str, ...]:
        return ("R", "G", "B")


class Sparse:
    def toarray(self) -> np.ndarray:
        return np.zeros((N, 3))


class Parts(dict[str, Any]):
    """As a DatasetDict of Hugging Face."""

    column_names = {"train": ["x", "y"], "test": ["x", "y"]}  # noqa: RUF012

    def with_format(self, kind: str) -> Parts:
        return self


def exhausted() -> Any:
    made = ((x, y) for x, y in zip(X, Y, strict=True))
    list(made)
    return made


def long_generator() -> Any:
    return ((torch.zeros(1000), i % 2) for i in range(N))


OBJECTS = np.empty(N, dtype=object)
OBJECTS[:] = [np.zeros(3 + i % 2) for i in range(N)]


class Frame:
    """As much of a pandas data frame as is used."""

    iloc = None

    def __init__(self, **columns: Any) -> None:
        self.columns, self.values = list(columns), list(columns.values())

    def to_numpy(self) -> np.ndarray:
        return np.array(list(zip(*self.values, strict=True)), dtype=object)


TEXTS = Frame(age=[3.0] * N, city=[4.0] * 9 + ["Rome"] * (N - 9))
GAPS = Frame(city=[True] * N, age=[1, None] * (N // 2))
DATA: list[tuple[Any, dict[str, Any], str]] = [
    # -- not data
    (None, {}, "train: None; give (inputs, targets) of arrays or tensors, a Dataset, a DataLoa"),
    ("data.csv", {}, "train: 'data.csv' is a path or name, not data; load it, then give"),
    (Path("data.csv"), {}, "train: 'data.csv' is a path or name"),
    (nn.Linear(3, 4), {}, "train: a model (Linear), not data"),
    (Items, {}, "train: the class Items; give an instance of it"),
    (exhausted, {}, "train: the function exhausted; give what it returns, as in exhausted()"),
    (3, {}, "train: got a int; give (inputs, targets)"),
    ({"train": 1, "test": 2}, {}, "train: a dict of parts (train, test); give each by itself"),
    (Parts(), {}, "train: a dict of parts (train, test); give each by itself, as in train=dat"),
    # -- no targets
    (X, {}, "train: one array of shape (240, 3) without targets; give (inputs, targets)"),
    (TensorDataset(X), {}, "train: samples are tuples of 1, without targets; yield (input, targ"),
    (Items(list(X)), {}, "train: samples are single arrays, without targets; yield (input, tar"),
    (DataLoader(Items(list(X)), 8), {}, "train: samples are single arrays, without targets"),
    ((X,), {}, "train: a tuple of 1; give (inputs, targets)"),
    (Items([{"x": x, "kind": 0} for x in X]), {}, "train: of the columns 'x, kind' none is a tar"),
    (Items([{"x": x, "y": 0, "label": 0} for x in X]), {}, "several may be the target (y, label)"),
    (Items([{"label": 0} for x in X]), {}, "train: samples hold only 'label', the target; add a"),
    (Items([(x, {"boxes": 1}) for x in X]), {}, "the target of a sample is a dict with 'boxes'"),
    (Items(["text"] * N), {}, "train: samples are str; yield (input, target), or a dict"),
    # -- columns
    ({"x": X, "y": Y}, {"columns": ("x", "lable")}, "unknown column 'lable' in train: "),
    ({"x": X, "y": Y}, {"columns": "y"}, "columns='y': name the inputs and then the target"),
    ((X, Y), {"columns": ("x", "y")}, "columns=('x', 'y') is for tables and dicts; arrays are"),
    (Items([(x, 1) for x in X]), {"columns": ("x", "y")}, "names keys of dict samples, but these"),
    # -- sizes
    ((X[:0], Y[:0]), {}, "train is empty: give at least one sample"),
    (Items([]), {}, "train is empty: give at least one sample"),
    (Nothing(), {}, "train is empty: give at least one sample"),
    ((X, Y[:-3]), {}, "train: 240 inputs, 237 targets; give one target for each sample"),
    ((X, X[:9], Y), {}, "train: 9 inputs 1, 240 targets; give one target for each sample"),
    (exhausted(), {}, "train: the generator is exhausted or empty; make a new one, or give a list"),
    (long_generator(), {"memory_limit": 1e5}, "train: a generator, whose samples take more than"),
    ((X, Y), {"batch_size": 300}, "batch_size=300 is larger than the 144 training samples; set"),
    ((X, Y), {"batch_size": 0}, "batch_size=0: give a whole number of 1 or more"),
    ((X, Y), {"batch_size": 2.5}, "batch_size=2.5: give a whole number of 1 or more"),
    ((X, Y), {"batch_size": "8"}, "batch_size='8': give a whole number of 1 or more"),
    ((X[:, :0], Y), {}, "train inputs: samples of shape (0,) have no features; give at least one"),
    (((X[:, :0], X[:, :0]), Y), {}, "train inputs: samples of shape (0,) have no features"),
    (Items([(x[:0], 0) for x in X]), {"stream": "always"}, "samples of shape (0,) have no feat"),
    (DataLoader(TensorDataset(X, Y), 300, drop_last=True), {}, "drop_last=True, batch_size=300 an"),
    ((X[:1], X[:1, 0]), {}, "train has 1 samples: too few to cut 1 more part from it; give val="),
    ((X, Y), {"stream": "yes"}, "unknown stream 'yes': valid: auto, always, never"),
    (Nothing(), {"stream": "always"}, "train is streamed (as requested) and its samples have no n"),
    # -- values
    ((changed(X, (7, 1), np.nan), Y), {}, "train inputs: 1 of 240 samples are not finite, the f"),
    ((changed(X, (7, 1), np.inf), Y), {}, "is inf in sample 7 at [1]; leave these samples out or"),
    ((X, changed(X[:, 0], 5, np.nan)), {}, "train targets: 1 of 240 samples are not finite, the f"),
    ((X.to(torch.complex64), Y), {}, "train inputs: complex numbers; give real ones"),
    ((X.numpy() * 1j, Y), {}, "train inputs: complex numbers; give real and imaginary parts"),
    ((OBJECTS, Y), {}, "train inputs: an object array of ragged samples; pad or crop all"),
    ((X.numpy().astype(object), Y), {}, "train inputs: an object array of float; give numbers, as"),
    ((np.array([["a", "b"]] * N), Y), {}, "train inputs: strings such as 'a'; networks take numb"),
    ((TEXTS, Y), {}, "train inputs: column 'city' holds text such as 'Rome'; categorical='aut"),
    ((GAPS, Y), {}, "train inputs: column 'age' holds NoneType such as 'None'; encode it as num"),
    ((np.zeros((N, 3), "datetime64[s]"), Y), {}, "train inputs: dates (datetime64[s]); give numb"),
    (([[1.0], [1.0, 2.0]], [0, 1]), {}, "train inputs: a ragged list, its rows of 1 to 2 entries"),
    ((X.to_sparse(), Y), {}, "train inputs: a torch.sparse_coo tensor; give a dense one"),
    ((Sparse(), Y), {}, "train inputs: a sparse Sparse; give x.toarray()"),
    ((torch.tensor(1.0), Y), {}, "train inputs: one number; give an array with one row per samp"),
    ((X, torch.tensor(1)), {}, "train targets: one number; give an array with one for each samp"),
    ((np.ma.masked_array(X.numpy()), Y), {}, "train inputs: a masked array; fill its gaps, as in"),
    ((object(), Y), {}, "train inputs: got a object; give a numpy array, a tensor or a list"),
    (Items([(torch.zeros(3 + (i == 9)), 0) for i in range(N)]), {}, "sample 9 has shape (4,), sam"),
    (Items([(x, torch.zeros(1 + (i == 9))) for i, x in enumerate(X)]), {}, "train targets: sample"),
    (Items([(Image(), 0)] * N), {}, "train inputs of sample 0: a PIL image, networks take tensors"),
    (Items([(x, 0) for x in X[:5]] + [OSError("gone")]), {}, "train: sample 5 of the Items fails"),
    # -- labels
    ((X, ["a", 1] * (N // 2)), {}, "train targets: labels of mixed types (int, str); give all as"),
    ((X, ["a", None] * (N // 2)), {}, "train targets: the label of sample 1 is missing; leave it"),
    (Items([(x, None) for x in X]), {}, "train: the label of sample 0 is missing; leave it out"),
    ((X, np.array([["a", "b"]] * N)), {}, "strings of shape (240, 2); give one label per sample"),
    ((X, Y * 0 + 3), {}, "train: all 240 labels are 3; there is nothing to learn from one class"),
    ((X, ["a"] * N), {}, "train: all 240 labels are 'a'; there is nothing to learn from one clas"),
    # -- other parts
    ((X, Y), {"val": (X[:, :2], Y)}, "val has samples of inputs (2,) float32, targets () int64; t"),
    ((X, Y), {"test": (X.half(), Y)}, "test has samples of inputs (3,) float16, targets () int64"),
    ((X, Y), {"val": (X, Y.float())}, "targets () float32; train has inputs (3,) float32, targets"),
    ((X, Y), {"val": (X, ["a"] * N)}, "val: targets are strings such as 'a', those of train are n"),
    ((X, ["a", "b"] * 120), {"val": (X, Y)}, "val: targets are numbers, those of train are str"),
    ((X, ["a", "b"] * 120), {"test": (X[:1], ["c"])}, "test: label 'c' of sample 0 is not in trai"),
    ((X, Y), {"val": X}, "val: one array of shape (240, 3) without targets"),
    ((X, Y), {"val": (X[:0], Y[:0])}, "val is empty: give at least one sample"),
    (Items([(x, 0) for x in X]), {"val": (X, Y), "memory_limit": 99}, "val takes more than"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "options", "words"), DATA)
def test_data_that_will_not_do_are_one_line(given, options, words):
    assert words in refused(lambda: read_parts(given, **options))


def test_batches_of_different_lengths_are_one_line():
    def pad(samples: list[Any]) -> Any:
        x, y = zip(*samples, strict=True)
        return torch.zeros(len(x), int(max(y))), torch.tensor(y)

    loader = DataLoader(Items([(0, 3 + i) for i in range(20)]), batch_size=5, collate_fn=pad)
    line = refused(lambda: read_parts(loader))
    assert "train: inputs of batch 1 are (12,) per sample, of batch 0 (7,); pad or crop" in line


def test_streams_that_change_are_one_line():
    rows = [(X[i] if i < 64 else X[i].half(), int(Y[i])) for i in range(N)]
    data = read_parts(iter_again(rows), val=(X, Y), stream="always")
    line = refused(lambda: list(data.train.epoch()))  # type: ignore[union-attr]
    assert "batch 1 of the stream holds inputs (3,) float16" in line
    rows = [(changed(X[i], 0, np.nan) if i == 70 else X[i], int(Y[i])) for i in range(N)]
    data = read_parts(iter_again(rows), val=(X, Y), stream="always")
    line = refused(lambda: list(data.train.epoch()))  # type: ignore[union-attr]
    assert "train: batch 1 of the stream inputs: 1 of 64 samples are not finite" in line


def iter_again(rows: list[Any]) -> Any:
    class Rows(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(rows)

    return Rows()


# ---- models -----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [torch.jit.script, lambda m: torch.jit.trace(m, X[:2])])
@pytest.mark.parametrize("as_instance", [True, False])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_script_modules_are_one_line(make, as_instance):
    scripted = make(nn.Linear(3, 4))
    model = scripted if as_instance else lambda: scripted
    line = refused(lambda: trace_model(model, X[:2]))
    assert "is a ScriptModule of torch.jit, whose code cannot be grown; give the module" in line
    parts = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), scripted)
    assert refused(lambda: trace_model(parts, X[:2])).startswith("Sequential: 2 is a ScriptModule")


def data(targets: Any = Y) -> GrowData:
    return read_parts((X, targets))


def spoilt(output: Tensor) -> Tensor:
    return changed(output, (3, 0), np.nan)


OUT = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))

OUTPUTS: list[tuple[Any, Any, Any, str]] = [
    (Y, "auto", OUT.long(), "the model returns int64, which has no gradient; return logits"),
    (Y, "auto", spoilt(OUT), "returns NaN or infinite numbers for sample 3 before training"),
    (Y, "auto", OUT.softmax(1), "outputs are probabilities that sum to 1: loss 'cross_entropy' ta"),
    (Y, "auto", OUT[:, :3], "train: label 3 of sample"),
    (Y + 1, "auto", OUT, "train labels are 1 to 4, the model has 4 outputs: labels count from 0"),
    (Y - 1, "auto", OUT, "is negative; labels are 0 to 3"),
    (Y[:, None], "auto", OUT, "class labels are [144], one index per sample, as in y.squeeze(1)"),
    (Y.float(), "auto", OUT, "are float32 of whole numbers up to 3, and the model has 4 outputs"),
    (X, "auto", OUT, "outputs (4,) and targets (3,) per sample would broadcast to wrong pairs"),
    (X[:, 0], "cross_entropy", OUT, "loss 'cross_entropy' takes class indices, as in y.long()"),
    (
        X[:, 0],
        lambda o, t: o.sum() * torch.nan,
        OUT,
        "loss own is nan on the first samples, before",
    ),
    (Y, lambda o, t: o.sum() * torch.nan, OUT, "loss own is nan on the first samples, before tra"),
    (Y, lambda o, t: torch.tensor(1.0), OUT, "loss own has no gradient; compute it with torch"),
    (Y, "crossentropy", OUT, "unknown loss 'crossentropy'"),
]


def check(made: GrowData, loss: Any, output: Tensor) -> None:
    shape = output.shape[1:]
    fitting = make_training_loss(loss, targets=made.sample.targets, output_shape=shape)
    check_against_model(made, fitting, output)


@pytest.mark.parametrize(("targets", "loss", "output", "words"), OUTPUTS)
def test_outputs_that_do_not_fit_are_one_line(targets, loss, output, words):
    assert words in refused(lambda: check(data(targets), loss, output))


def test_labels_of_every_part_are_checked():
    made = read_parts((X, Y), val=(X[:9], Y[:9] + 3))
    line = refused(lambda: check(made, "auto", OUT))
    assert "val: label 4 of sample 1, the model has 4 outputs" in line


@pytest.mark.parametrize(
    ("targets", "loss", "output"),
    [
        (Y, "auto", OUT),
        (Y, F.cross_entropy, OUT),
        (Y % 2, "auto", OUT[:, :1]),
        (X, "mae", OUT[:, :3]),
        (X[:, 0], "auto", OUT[:, :1]),
    ],
)
def test_what_fits_is_accepted(targets, loss, output):
    check(data(targets), loss, output.detach())


class TwoInputs(nn.Module):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x * mask


def conv(channels: int = 3) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU())


IMAGES = torch.zeros(8, 3, 16, 16)

FAILURES: list[tuple[nn.Module, Any, str]] = [
    (
        conv(),
        IMAGES.permute(0, 2, 3, 1),
        "images are channels last, the first convolution takes 3 c",
    ),
    (
        conv(1),
        torch.zeros(8, 16, 16, 1),
        "channels last, the first convolution takes 1 channels fi",
    ),
    (conv(1), IMAGES, "images have 3 channels, the first convolution takes 1"),
    (conv(1), IMAGES[:, 0], "images have no channel axis, the first convolution takes 1: give x[:"),
    (conv(), IMAGES.byte(), "weights are float32, the inputs uint8: convert them in the data, as"),
    (nn.Linear(5, 2), X[:8], "its first Linear takes 5 features, samples are (3,)"),
    (nn.Linear(768, 2), IMAGES, "its first Linear takes 768: flatten the inputs, x.flatten(1)"),
    (nn.Linear(3, 2), X[:8].int(), "its weights are float32, the inputs int32"),
    (nn.Embedding(5, 2), X[:8], "its embedding takes integers: give token ids, as in x.long()"),
    (nn.Embedding(2, 2), Y[:8], "token id 3, the embedding has 2 rows: ids are 0 to 1"),
    (TwoInputs(), X[:8], "it is called with 1 argument, the inputs of a batch"),
]


@pytest.mark.parametrize(("model", "inputs", "words"), FAILURES)
def test_a_model_that_fails_is_told_why(model, inputs, words):
    def call() -> None:
        try:
            if isinstance(model, nn.Sequential) and inputs.ndim == 3:
                model(inputs.double())  # torch takes [C, H, W] for a single image
            else:
                model(inputs)
        except Exception as error:
            raise model_failure(error, model, inputs) from error
        raise AssertionError("the model did not fail")

    line = refused(call)
    assert line.startswith("the model fails on inputs")
    assert words in line


def test_mistakes_are_esper_errors():
    with pytest.raises(EsperError):
        read_parts((X, Y[:3]))
