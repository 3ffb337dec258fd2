"""Data that users bring: tensors are taken, mistakes are one line that names the place."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from esper.kasmina import MLPHost
from esper.tasks.listing import describe_task
from esper.tasks.spec import TaskSpec
from esper.tasks.task_data import PARTS, TaskData, TaskPart
from own_host import OwnHost
from support import refused

NONE = np.zeros(0, dtype=np.float32)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def vectors(inputs: object = None, labels: object = None, **changes: object) -> TaskData:
    """Ten samples of three columns and two classes, the same in every part."""
    x = numbers(10, 3) if inputs is None else inputs
    part = TaskPart(x, np.arange(10) % 2 if labels is None else labels)  # type: ignore[arg-type]
    settings: dict[str, object] = {"mean": np.zeros(3), "std": np.ones(3)}
    return TaskData(**dict.fromkeys(PARTS, part) | settings | changes)  # type: ignore[arg-type]


def vector_spec(**changes: object) -> TaskSpec:
    settings = {
        "name": "mine",
        "description": "",
        "load_data": vectors,
        "host_factory": lambda: MLPHost(3, 2, width=4),
        "topology": "mlp",
        "slots": ("r0c0",),
        "blueprints": ("norm",),
        "num_classes": 2,
        "input_shape": (3,),
        "batch_size": 4,
        "batches_per_step": 1,
        "episode_length": 2,
        "chance": 0.5,
    }
    return TaskSpec(**settings | changes)  # type: ignore[arg-type]


# ---- tensors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inputs",
    [
        torch.rand(10, 3),
        torch.rand(10, 3, requires_grad=True),
        torch.rand(3, 10).T,
        torch.nn.Parameter(torch.rand(10, 3)),
    ],
)
def test_tensors_become_arrays(inputs):
    data = vectors(inputs, torch.arange(10) % 2, mean=torch.zeros(3), std=[1.0, 2.0, 3.0])
    assert data.kind == "vectors"
    for part in PARTS:
        given = getattr(data, part)
        assert type(given.inputs) is type(given.labels) is np.ndarray
        assert np.array_equal(given.inputs, inputs.detach().numpy())
        assert given.labels.dtype == np.int64
    assert data.std.dtype == np.float32
    assert data.normalised(data.train)[:, 2] == pytest.approx(data.train.inputs[:, 2] / 3.0)


def test_images_and_tokens_may_be_tensors():
    pixels = torch.randint(0, 256, (10, 1, 4, 4), dtype=torch.uint8)
    assert vectors(pixels, mean=torch.tensor([127.0]), std=[70.0]).kind == "images"
    tokens = torch.randint(0, 5, (10, 6))
    assert vectors(tokens, tokens, mean=NONE, std=NONE).kind == "tokens"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TaskPart(torch.rand(10, 3, device="meta"), np.arange(10)), "a tensor on meta"),
        (
            lambda: TaskPart(torch.rand(10, 3).bfloat16(), np.arange(10)),
            "TaskPart inputs: a tensor of strided bfloat16, give a dense one of float32",
        ),
        (lambda: TaskPart(torch.rand(10, 3).to_sparse(), np.arange(10)), "sparse_coo float32"),
        (
            lambda: TaskPart([[1.0]], np.arange(1)),
            "TaskPart inputs: got a list, give a numpy array",
        ),
        (lambda: TaskPart(numbers(1, 3), (0,)), "TaskPart labels: got a tuple"),
        (lambda: TaskPart(numbers(1, 3), np.int64(3)), "TaskPart labels: got a int64"),
        (lambda: TaskPart(numbers(1, 3), np.array(3)), "TaskPart labels: a scalar"),
        (lambda: vectors(train=(numbers(10, 3), np.arange(10))), "train: got a tuple, give TaskP"),
        (lambda: vectors(mean="none"), "mean: got a str"),
        (lambda: vectors(std=torch.ones(3, device="meta")), "std: a tensor on meta"),
        (lambda: vectors(labels=torch.arange(10) / 2), "float32; for vectors give int64"),
        (lambda: vectors(numbers(0, 3), np.arange(0)), "train is empty"),
        (lambda: vectors(numbers(10)), "give images [N, C, H, W]"),
        (lambda: vectors(np.zeros((10, 1, 4, 4), dtype=np.int64)), "give images [N, C, H, W]"),
    ],
)
def test_arrays_that_will_not_do_are_one_line(make, words):
    assert words in refused(make)


# ---- columns ----------------------------------------------------------------------------------


def test_a_constant_column_is_named():
    x = numbers(10, 3)
    x[:, 1] = 7.0
    line = refused(lambda: vectors(x, mean=x.mean(axis=0), std=x.std(axis=0)))
    assert line.startswith("column 1 has mean 7, std 0:")
    assert "leave a constant column out of the inputs, or set its std to 1" in line
    x[:, 2] = 0.0
    line = refused(lambda: vectors(x, mean=x.mean(axis=0), std=x.std(axis=0)))
    assert "column 1 (and 1 more) has" in line


def test_a_constant_channel_is_named():
    x = numbers(10, 3, 4, 4)
    line = refused(lambda: vectors(x, mean=[0.0, np.nan, 0.0]))
    assert line.startswith("channel 1 has mean nan, std 1:")
    line = refused(lambda: vectors(x, std=[1.0, 1.0, np.inf]))
    assert line.startswith("channel 2 has mean 0, std inf:")
    assert "the training inputs are constant" in refused(lambda: vectors(x, mean=[0], std=[0]))


def test_a_number_that_is_not_finite_is_placed():
    x = numbers(10, 3)
    x[4, 1] = x[6, 0] = np.nan
    line = refused(lambda: vectors(x))
    assert "train: 2 of 10 inputs hold numbers that are not finite" in line
    assert "sample 4 at [1]" in line


# ---- specs ------------------------------------------------------------------------------------


def fails() -> TaskData:
    raise OSError("no such disk")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"host_factory": MLPHost(3, 2)}, "task mine: host_factory is a MLPHost, already made"),
        ({"load_data": vectors()}, "task mine: load_data is a TaskData, already made; give a fun"),
        ({"slots": "r0c0"}, "slots='r0c0', give a tuple: ('r0c0',)"),
        ({"input_shape": 3}, "input_shape=3, give a tuple: (3,)"),
        ({"num_classes": "2"}, "num_classes='2', must be 1 or more"),
        ({"batch_size": 2.0}, "batch_size=2.0"),
    ],
)
def test_a_spec_of_the_wrong_kind_is_one_line(changes, words):
    assert words in refused(lambda: vector_spec(**changes))


def test_lists_are_taken_as_tuples():
    spec = vector_spec(slots=["r0c0"], blueprints=["norm"], input_shape=[3])
    assert (spec.slots, spec.blueprints, spec.input_shape) == (("r0c0",), ("norm",), (3,))
    assert spec.load().sample_shape == (3,)


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (fails, "task mine: load_data fails: OSError at test_own_data.py:"),
        (lambda: None, "task mine: load_data returns a NoneType, not a TaskData"),
        (lambda: vectors(labels=np.arange(10)), "task mine: labels 0 to 9 in train"),
        (lambda: vectors(numbers(10, 4), mean=[0], std=[1]), "samples of (4,), expected (3,)"),
    ],
)
def test_data_that_cannot_be_loaded_are_one_line(load, words):
    assert words in refused(vector_spec(load_data=load).load)


class FrozenHost(MLPHost):
    def __init__(self) -> None:
        super().__init__(3, 2, 4)
        self.requires_grad_(False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"topology": "cnn"}, "task mine: topology 'cnn', its host declares 'mlp'"),
        ({"host_factory": FrozenHost}, "task mine: no parameter of its host trains"),
        ({"host_factory": MLPHost(3).head.__class__}, "host factory Linear fails: TypeError"),
    ],
)
def test_a_host_that_does_not_fit_the_task_is_one_line(changes, words):
    assert words in refused(lambda: vector_spec(**changes).population(2))


def test_a_host_that_fails_is_listed_as_one_line():
    spec = dataclasses.replace(
        vector_spec(), topology="cnn", host_factory=lambda: OwnHost(c_in=3), input_shape=(1, 8, 8)
    )
    assert "task mine: its host fails: RuntimeError" in refused(lambda: describe_task(spec))
