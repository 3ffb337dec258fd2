"""Every registered task is complete: its data hold, its host grows and trains with its settings."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch

from epoch_order import epoch_order
from esper.kasmina import OptimConfig
from esper.leyline.signals import GateSignals
from esper.tasks.registry import _TASKS, get_task_spec, register_task, task_names
from esper.tasks.spec import OptimSettings, TaskSpec
from esper.tasks.task_data import PARTS, TaskData, TaskPart
from support import refused

BIG = "synthetic_cifar"
SMALL = ["digits_baseline", "digits_impaired", "synthetic"]
ENTRIES = {
    "digits_baseline", "digits_impaired", "synthetic", "synthetic_cifar", "mnist1d",
    "fashion_mnist", "cifar_baseline", "cifar_scale", "cifar_impaired", "cifar_minimal",
    "cifar_multichannel", "cifar_deep", "cifar_resnet8", "mnist1d_signal", "tinyshakespeare",
    "tinystories", "cifar_resnet8_narrow", "cifar_tiny10", "fashion_resnet8",
    "fashion_resnet8_narrow", "fashion_tiny8", "digits_tiny8", "digits_tiny8_lean",
    "mnist1d_signal8", "clusters_tabular", "clusters_tabular8",
}  # fmt: skip


def some_data(train: int = 20, labels: int = 10) -> TaskData:
    """Images of one pixel each, for checks."""

    def part(count: int) -> TaskPart:
        numbers = np.arange(count, dtype=np.int64) % labels
        return TaskPart(numbers.astype(np.uint8)[:, None, None, None], numbers)

    one = np.ones(1, dtype=np.float32)
    return TaskData(part(train), part(10), part(10), part(10), mean=one, std=one)


def changed(task: str, **settings: object) -> TaskSpec:
    return dataclasses.replace(get_task_spec(task), **settings)


def test_the_tasks_of_the_design_are_there():
    assert set(task_names()) >= ENTRIES
    assert list(task_names()) == sorted(task_names())


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_a_task_is_found_under_its_own_name(name):
    assert get_task_spec(name).name == name


def test_unknown_task_names_the_nearest():
    line = refused(lambda: get_task_spec("digits_impared"))
    assert "'digits_impared'" in line
    assert "did you mean 'digits_impaired'?" in line


def test_a_name_is_taken_once():
    mine = register_task(changed("synthetic", name="mine"))
    assert get_task_spec("mine") is mine
    assert "already registered" in refused(lambda: register_task(mine))
    del _TASKS["mine"]


def test_listing_tasks_loads_neither_torch_nor_sklearn_nor_data():
    code = (
        "import sys, esper.tasks.registry as r; spec = r.get_task_spec('synthetic_cifar'); "
        "[r.get_task_spec(name) for name in r.task_names()]; "
        "print({'torch', 'sklearn'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


@pytest.mark.parametrize("name", SMALL)
def test_data_fit_the_spec(name):
    spec = get_task_spec(name)
    data = spec.load()
    assert data.sample_shape == spec.input_shape
    for part in PARTS:
        labels = getattr(data, part).labels
        assert np.bincount(labels, minlength=spec.num_classes).min() > 0
    x = data.normalised(data.train)
    assert x.dtype == np.float32
    assert abs(x.mean()) < 1e-2
    assert abs(x.std() - 1) < 1e-2


@pytest.mark.parametrize("name", SMALL)
def test_a_population_of_the_task_trains_one_step_with_its_settings(name):
    spec = get_task_spec(name)
    data = spec.load()
    population = spec.population(members=2, seed=1)
    assert population.slots == spec.slots
    assert population.blueprints == spec.blueprints
    assert population.config.host_lr == spec.optim.host_lr
    population.germinate([0, 1], spec.slots[0], "conv_light")
    x = torch.from_numpy(data.normalised(data.train))
    y = torch.from_numpy(data.train.labels)
    length = spec.batch_size * spec.batches_per_step
    order = torch.from_numpy(epoch_order(1, 2, len(data.train), length))
    before = population.network.host.flat_EP.detach().clone()
    population.set_rates(*spec.optim.rates_at(0, spec.episode_length))
    population.begin_step()
    for at in order.split(spec.batch_size, dim=1):
        stats = population.train_batch(x[at], y[at])
    population.end_step(GateSignals.unmeasured(2, len(spec.slots)))
    assert torch.isfinite(stats.loss_E).all()
    assert (population.network.host.flat_EP.detach() != before).any(dim=1).all()


def test_the_large_task_has_the_shapes_of_cifar_baseline():
    spec = get_task_spec(BIG)
    assert (spec.batch_size, spec.batches_per_step, spec.load_data.validation) == (512, 24, 2048)
    host = spec.host_factory()
    assert host.channels == (8, 16, 32)
    population = spec.population(members=1)
    with torch.no_grad():
        assert population.forward(torch.zeros(1, 2, *spec.input_shape)).shape == (1, 2, 10)


@pytest.mark.parametrize(
    ("name", "kernel", "batches"), [("digits_baseline", 3, 6), ("digits_impaired", 1, 10)]
)
def test_digits_hosts_are_those_of_the_design(name, kernel, batches):
    spec = get_task_spec(name)
    host = spec.host_factory()
    assert host.channels == (2, 4, 8)
    assert host.blocks[1].conv.weight.shape[-1] == kernel
    assert (spec.batch_size, spec.batches_per_step, spec.episode_length) == (64, batches, 24)


def test_settings_name_every_field_of_kasminas_optimiser():
    law = {f.name: f.default for f in dataclasses.fields(OptimConfig)}
    mine = {f.name: f.default for f in dataclasses.fields(OptimSettings)}
    assert law.items() <= mine.items()
    settings = OptimSettings(kind="adamw", weight_decay=0.5, clip_norm=None, betas=(0.8, 0.9))
    made = settings.population_config("loop")
    assert made.optim == OptimConfig("adamw", weight_decay=0.5, clip_norm=None, betas=(0.8, 0.9))
    assert made.executor == "loop"


def test_rates_follow_the_schedule():
    constant = OptimSettings(host_lr=0.1, seed_lr=0.2)
    assert {constant.rates_at(t, 9) for t in range(9)} == {(0.1, 0.2)}
    cosine = dataclasses.replace(constant, schedule="cosine")
    host = [cosine.rates_at(t, 9)[0] for t in range(9)]
    assert host[0] == 0.1
    assert host == sorted(host, reverse=True)
    assert 0 < host[-1] < 0.004


def test_a_batch_larger_than_the_training_part_is_one_line():
    line = refused(changed("digits_baseline", batch_size=990).load)
    assert "batch size 990" in line
    assert "989 training samples" in line
    assert len(changed("digits_baseline", batch_size=989).load().train) == 989


def test_labels_out_of_range_are_one_line():
    line = refused(lambda: some_data().check("mine", 9, (1, 1, 1), batch=4))
    assert "labels 0 to 9 in train, valid are 0 to 8" in line
    some_data().check("mine", 10, (1, 1, 1), batch=4)


def test_samples_of_another_shape_are_one_line():
    assert "expected (1, 2, 2)" in refused(lambda: some_data().check("mine", 10, (1, 2, 2), 4))


def test_parts_that_disagree_are_one_line():
    data = some_data()
    empty = TaskPart(data.test.inputs[:0], data.test.labels[:0])
    short = TaskPart(data.test.inputs, data.test.labels[:-1])
    wide = TaskPart(np.zeros((10, 1, 1, 2), dtype=np.uint8), data.test.labels)
    grids = TaskPart(data.test.inputs, np.zeros((10, 2), dtype=np.int64))
    floats = TaskPart(data.test.inputs, data.test.labels.astype(np.float32))
    for part, words in (
        (empty, "test is empty"),
        (short, "10 inputs, 9 labels"),
        (wide, "in train (1, 1, 1)"),
        (grids, "labels of shape (10, 2)"),
        (floats, "float32; for images give int64 of shape (10,)"),
    ):
        assert words in refused(lambda part=part: dataclasses.replace(data, test=part))


def test_normalisation_that_cannot_be_is_one_line():
    data = some_data()
    zero, two = np.zeros(1, dtype=np.float32), np.ones(2, dtype=np.float32)
    assert "std above 0" in refused(lambda: dataclasses.replace(data, std=zero))
    assert "both have 1 values" in refused(lambda: dataclasses.replace(data, mean=two, std=two))


def test_vectors_signals_and_tokens_are_data_too():
    none, y = np.zeros(0, dtype=np.float32), np.arange(4, dtype=np.int64)
    v = TaskPart(np.arange(8, dtype=np.float32).reshape(4, 2), y)
    mean, std = v.inputs.mean(axis=0), v.inputs.std(axis=0)
    vectors = TaskData(v, v, v, v, mean=mean, std=std)
    assert vectors.kind == "vectors"
    assert np.allclose(vectors.normalised(v).mean(axis=0), 0)
    t = TaskPart(np.ones((4, 3), dtype=np.int64), np.ones((4, 3), dtype=np.int64))
    tokens = TaskData(t, t, t, t, mean=none, std=none)
    assert tokens.kind == "tokens"
    assert tokens.normalised(t) is t.inputs
    tokens.check("text", 2, (3,), batch=4)
    signals = TaskPart(v.inputs[:, None, None, :], y)
    assert TaskData(signals, signals, signals, signals, mean[:1], std[:1]).kind == "images"
    beyond = dataclasses.replace(tokens, test=TaskPart(t.inputs + 1, t.labels))
    line = refused(lambda: beyond.check("text", 2, (3,), batch=4))
    assert "tokens 2 to 2 in test, valid are 0 to 1" in line
    waves = TaskPart(np.arange(24, dtype=np.float32).reshape(4, 2, 3), y)
    each = waves.inputs.mean(axis=(0, 2)), waves.inputs.std(axis=(0, 2))
    native = TaskData(waves, waves, waves, waves, *each)
    assert native.kind == "signals"
    assert np.allclose(native.normalised(waves).mean(axis=(0, 2)), 0, atol=1e-6)
    assert "both have 1 or 2 values" in refused(
        lambda: TaskData(waves, waves, waves, waves, none, none)
    )
    odd = TaskPart(np.ones((4, 3, 2), dtype=np.uint8), y)
    assert "give images" in refused(lambda: TaskData(odd, odd, odd, odd, none, none))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"topology": "cnm"}, "did you mean 'cnn'?"),
        ({"augmentation": "flop"}, "did you mean 'flip'?"),
        ({"augmentation": "flip", "input_shape": (4,)}, "is for images"),
        ({"slots": ()}, "at least one slot"),
        ({"slots": ("a1",)}, "r0c1"),
        ({"chance": 1.0}, "chance=1.0"),
    ],
)
def test_a_spec_that_cannot_work_is_one_line(settings, words):
    assert words in refused(lambda: changed("synthetic", **settings))


def test_optimiser_settings_that_cannot_work_are_one_line():
    assert "did you mean 'cosine'?" in refused(lambda: OptimSettings(schedule="cosin"))
    assert "seed_lr=0.0" in refused(lambda: OptimSettings(seed_lr=0.0))
