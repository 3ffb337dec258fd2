"""Tasks on published data: their hosts are those of the design, and they train on synthetic data.

Where `$ESPER_DATA_DIR` holds the published files, those are read too:

    ESPER_DATA_DIR=DIR pytest tests/tasks/test_real_tasks.py
"""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from esper.kasmina.layers.counting import count_parameters
from esper.leyline.signals import GateSignals
from esper.tasks.data_locations import VARIABLE, find_data
from esper.tasks.registry import get_task_spec, task_names
from esper.tasks.synthetic_data import _synthetic_tokens, with_synthetic_data
from esper.tasks.synthetic_images import SyntheticImages
from esper.tasks.task_data import PARTS, DataFiles
from support import refused

REAL = [name for name in task_names() if isinstance(get_task_spec(name).load_data, DataFiles)]
RESNET = "cifar_resnet8"
CAPACITY = [
    "cifar_resnet8_narrow", "cifar_tiny10", "fashion_resnet8", "fashion_resnet8_narrow",
    "fashion_tiny8", "mnist1d_signal8",
]  # fmt: skip
"""Their hosts and episodes are checked in test_capacity_tasks.py."""
CIFAR = [n for n in REAL if n.startswith("cifar") and n not in (RESNET, *CAPACITY)]
LANGUAGE = ["tinyshakespeare", "tinystories"]


def small(name: str):
    """The task on a few made-up samples, in small batches."""
    spec = get_task_spec(name)
    return replace(
        with_synthetic_data(spec, train=64, validation=max(spec.num_classes, 16)), batch_size=8
    )


def test_the_tasks_of_the_design_are_real():
    assert len(CIFAR) == 6
    others = {"mnist1d", "mnist1d_signal", "fashion_mnist", RESNET, *LANGUAGE, *CAPACITY}
    assert others == set(REAL) - set(CIFAR)


@pytest.mark.parametrize(
    ("name", "channels", "kernel", "parameters", "slots"),
    [
        ("cifar_baseline", (8, 16, 32), 3, 6418, 3),
        ("cifar_scale", (8, 16, 32, 64, 128), 3, 99_922, 5),
        ("cifar_impaired", (1, 2, 4), 1, 77, 3),
        ("cifar_minimal", (2, 4, 8), 1, 164, 3),
        ("cifar_multichannel", (8, 16, 32), 3, 6418, 6),
        ("cifar_deep", (8, 16, 32, 32, 32, 32, 32, 32), 3, 52_818, 8),
        ("fashion_mnist", (4, 8, 16), 3, 1702, 3),
        ("mnist1d", (2, 4, 8), 3, 496, 3),
        ("mnist1d_signal", (2, 4, 8), 3, 244, 3),
    ],
)
def test_hosts_are_those_of_the_design(name, channels, kernel, parameters, slots):
    spec = get_task_spec(name)
    host = spec.host_factory()
    assert host.channels == channels
    assert host.blocks[0].conv.weight.shape[-1] == kernel
    assert count_parameters(host) == parameters
    assert len(spec.slots) == slots


def test_only_the_minimal_host_does_not_pool_and_only_multichannel_has_both_rows():
    def pools(name: str) -> int:
        host = get_task_spec(name).host_factory()
        return sum(isinstance(pool, torch.nn.MaxPool2d) for pool in host.pools)

    assert {name: pools(name) for name in CIFAR} == {
        "cifar_baseline": 3, "cifar_scale": 5, "cifar_impaired": 3, "cifar_minimal": 0,
        "cifar_multichannel": 3, "cifar_deep": 3,
    }  # fmt: skip
    rows = {name for name in CIFAR if any(s[1] == "1" for s in get_task_spec(name).slots)}
    assert rows == {"cifar_multichannel"}


@pytest.mark.parametrize("name", REAL)
def test_slots_are_those_of_the_host_in_the_order_they_are_run(name):
    spec = get_task_spec(name)
    offered = [place.slot_id for place in spec.host_factory().injection_specs()]
    assert [slot for slot in offered if slot in spec.slots] == list(spec.slots)


@pytest.mark.parametrize("name", CIFAR)
def test_cifar_is_augmented_and_validated_as_designed(name):
    spec = get_task_spec(name)
    assert spec.augmentation == "flip"
    assert spec.load_data == get_task_spec("cifar_baseline").load_data
    assert spec.load_data.nominal_sizes == (45_904, 2048)
    assert spec.chance == 0.1


def test_the_resnet_trains_as_in_the_literature_on_the_data_of_the_baseline():
    spec, baseline = get_task_spec(RESNET), get_task_spec("cifar_baseline")
    assert spec.load_data == baseline.load_data
    assert (spec.batch_size, spec.augmentation, spec.chance) == (128, "crop_flip", 0.1)
    optim = spec.optim
    assert (optim.kind, optim.momentum, optim.weight_decay) == ("sgd", 0.9, 5e-4)
    assert optim.schedule == "cosine"
    assert 15 < spec.episode_samples / 45_904 < 25
    assert len(spec.slots) == 6
    assert "twin" in spec.blueprints
    assert count_parameters(spec.host_factory()) == 75_290


@pytest.mark.parametrize("name", LANGUAGE)
def test_guessing_is_worth_nothing_in_language(name):
    assert get_task_spec(name).chance == 0


@pytest.mark.parametrize(
    "name", [n for n in REAL if n not in ("cifar_multichannel", "fashion_resnet8")]
)
def test_every_blueprint_that_fits_trains_on_synthetic_data(name):
    spec = small(name)
    data = spec.load()
    population = spec.population(members=2, seed=1)
    assert population.slots == spec.slots
    assert population.blueprints == spec.blueprints
    for member, blueprint in enumerate(("norm", spec.blueprints[1])):
        population.germinate([member], spec.slots[-1], blueprint)
    x = torch.from_numpy(data.normalised(data.train))[:16].reshape(2, 8, *spec.input_shape)
    y = torch.from_numpy(data.train.labels)[:16].reshape(2, 8, *data.train.labels.shape[1:])
    before = population.network.host.flat_EP.detach().clone()
    population.set_rates(*spec.optim.rates_at(0, spec.episode_length))
    population.begin_step()
    stats = population.train_batch(x, y)
    population.end_step(GateSignals.unmeasured(2, len(spec.slots)))
    assert torch.isfinite(stats.loss_E).all()
    assert (population.network.host.flat_EP.detach() != before).any(dim=1).all()


# ---- synthetic data --------------------------------------------------------------------------


def test_synthetic_data_have_the_shapes_and_sizes_of_the_real_data():
    spec = with_synthetic_data(get_task_spec("cifar_baseline"))
    assert spec.load_data == SyntheticImages(10, 3, 32, 45_904, 2048, 0, 32)
    assert spec.name == "cifar_baseline"
    assert "synthetic" in spec.description
    words = with_synthetic_data(get_task_spec("tinyshakespeare"), train=100).load()
    assert words.train.inputs.shape == (100, 64)
    assert len(words.val_score) == 512
    assert words.train.inputs.max() == 65
    signals = with_synthetic_data(get_task_spec("mnist1d")).load()
    assert signals.train.inputs.shape == (3200, 1, 1, 40)
    native = with_synthetic_data(get_task_spec("mnist1d_signal")).load()
    assert native.kind == "signals"
    assert (native.train.inputs == signals.train.inputs[:, :, 0]).all()
    assert np.allclose(native.normalised(native.test), signals.normalised(signals.test)[:, :, 0])


def test_any_image_task_has_synthetic_data():
    data = with_synthetic_data(get_task_spec("digits_baseline")).load()
    assert data.sample_shape == (1, 8, 8)
    assert len(data.train) == 1280


def test_made_up_text_is_always_the_same_and_can_be_learnt():
    data, again = (_synthetic_tokens(20, 16, train=400, validation=50) for _ in range(2))
    assert (data.train.inputs == again.train.inputs).all()
    assert (data.train.inputs[:, 1:] == data.train.labels[:, :-1]).all()
    pairs = np.zeros((20, 20))
    np.add.at(pairs, (data.train.inputs.ravel(), data.train.labels.ravel()), 1)
    share = (pairs + 0.1) / (pairs + 0.1).sum(axis=1, keepdims=True)
    loss = -np.log(share[data.test.inputs, data.test.labels]).mean()
    assert loss < 0.75 * np.log(20)


def test_what_has_no_synthetic_data_is_one_line():
    spec = replace(get_task_spec("digits_baseline"), input_shape=(64,), topology="mlp")
    assert "no synthetic data for samples of (64,)" in refused(lambda: with_synthetic_data(spec))


# ---- the published files ---------------------------------------------------------------------

SIZES = {
    "mnist1d": (3200, 400, 400, 1000),
    "mnist1d_signal": (3200, 400, 400, 1000),
    "fashion_mnist": (56_000, 2000, 2000, 10_000),
    "cifar_baseline": (45_904, 2048, 2048, 10_000),
}
needs_data = pytest.mark.skipif(VARIABLE not in os.environ, reason=f"${VARIABLE} is not set")


@needs_data
@pytest.mark.parametrize("name", [*SIZES, *LANGUAGE])
def test_the_published_files_are_read(name):
    spec = get_task_spec(name)
    if find_data(spec.load_data.dataset) is None:
        pytest.skip(f"{spec.load_data.dataset.title} is not there")
    data = spec.load()
    sizes = tuple(len(getattr(data, part)) for part in PARTS)
    if name in SIZES:
        assert sizes == SIZES[name]
        for part in PARTS[1:3]:
            counts = np.bincount(getattr(data, part).labels, minlength=10)
            assert np.ptp(counts) <= (counts.max() // 2 if name.startswith("mnist1d") else 1)
        x = data.normalised(data.val_score)
        assert abs(x.mean()) < 0.05
        assert abs(x.std() - 1) < 0.05
    else:
        assert sizes[1:3] == (512, 512)
        assert sizes[0] > 10_000
        assert (data.train.inputs == 0).mean() < 1e-3, "few characters are unknown"


@needs_data
def test_the_published_cifar_reads_the_same_pickled(tmp_path):
    """The published .bin files, pickled as Python 2 did: the same data and the same sums."""
    from data_support import cifar_pickle

    spec = get_task_spec("cifar_baseline")
    binary = Path(os.environ[VARIABLE]) / "cifar-10-batches-bin"
    if not binary.is_dir():
        pytest.skip("CIFAR-10 is not there")
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for path in binary.glob("*.bin"):
        records = np.fromfile(path, dtype=np.uint8).reshape(-1, 3073)
        label = (
            b"testing batch 1 of 1"
            if path.stem == "test_batch"
            else (f"training batch {path.stem[-1]} of 5".encode())
        )
        (folder / path.stem).write_bytes(cifar_pickle(records[:, 1:], records[:, 0], label))
    data, again = spec.load(), spec.load(tmp_path)
    for part in PARTS:
        assert (getattr(data, part).inputs == getattr(again, part).inputs).all()
        assert (getattr(data, part).labels == getattr(again, part).labels).all()
