"""Who takes our kernels: CUDA tensors where Triton can build them; everyone else takes torch's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import support
from esper.device.triton_support import can_build_kernels, can_use_kernels
from esper.kasmina import Population
from esper.kasmina.layers.counting import count_macs
from esper.kasmina.ops import fused
from esper.kasmina.ops.kernel_scope import kernel_scope
from esper.kasmina.ops.kernels.layout import live_rows
from esper.kasmina.ops.pooling import max_pool2d
from esper.kasmina.stacked.store import ParameterStore
from esper.leyline.errors import EsperError
from esper.tolaria import SharedBatchIterator
from support import batch, make_population, tiny_host

WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None  # an import of it fails from here on
import numpy as np
from esper.tolaria import SharedBatchIterator
from support import make_population, CLASSES
population = make_population(members=2)
pixels = np.random.default_rng(0).integers(0, 256, (8, 1, 8, 8), dtype=np.uint8)
labels = np.arange(8) % CLASSES
for x, y in SharedBatchIterator(pixels, labels, 2, 4, 2, augmentation="crop_flip").step(0):
    population.train_batch(x, y)
print(*sys.modules)
"""


def test_without_triton_everything_runs_and_no_kernel_is_loaded():
    tests = Path(support.__file__).parent
    paths = os.pathsep.join([str(tests), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TRITON],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert done.returncode == 0, done.stderr
    assert not [
        name for name in done.stdout.split() if name.startswith("esper.kasmina.ops.kernels.")
    ]


def test_kernels_need_triton_and_a_compiler(monkeypatch):
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setitem(sys.modules, "triton", None)
    assert not can_build_kernels.__wrapped__()
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "")
    assert not can_build_kernels.__wrapped__()


def test_a_tensor_of_the_host_takes_torchs_way():
    x = torch.randn(2, 3, 5, 7)
    assert not can_use_kernels(x)
    assert torch.equal(max_pool2d(x), F.max_pool2d(x, 2, ceil_mode=True))


@pytest.mark.parametrize(
    ("channels", "outputs", "side", "groups"),
    [(8, 24, 5, 1), (8, 8, 7, 1), (8, 8, 3, 2), (300, 8, 3, 1), (8, 300, 1, 1)],
)
def test_a_convolution_that_ours_are_not_trusted_with_is_torchs(channels, outputs, side, groups):
    x = torch.randn(2, channels, 4, 4)
    weight = torch.randn(outputs, channels // groups, side, side)
    assert fused.conv2d(x, weight, groups, torch.bfloat16) is None


@pytest.mark.parametrize(
    ("images", "channels", "fits"),
    [
        (2**17 - 8, 1, True),  # 2**31 - 2**17 pixels: rounded up to tiles still below 2**31
        (2**17 - 7, 1, False),
        (2**17, 1, False),
        (2**11, 64, True),  # 2**31 numbers
        (2**11 + 1, 64, True),
        (2**14, 256, True),  # 2**36 numbers
        (2**14 + 1, 256, False),
    ],
)
def test_a_row_that_32_bits_cannot_count_is_torchs(images, channels, fits):
    """Images of 128x128; the numbers of a row may exceed 32 bits, its pixels may not."""
    assert fused.row_fits(images, channels, 128, 128) == fits
    if not fits:
        x = torch.empty(images, channels, 128, 128, device="meta")
        weight = torch.empty(channels, channels, 3, 3, device="meta")
        assert fused.conv2d(x, weight, 1, torch.bfloat16) is None


@pytest.mark.parametrize(
    ("pixels", "fits"),
    [
        (2**31 - 2**17, True),
        (2**31 - 2**17 + 1, False),
        (2**31 - 1, False),
        (2**31, False),
        (2**31 + 1, False),
    ],
)
def test_pixels_of_a_row_are_counted_in_32_bits(pixels, fits):
    assert fused.row_fits(pixels, 1, 1, 1) == fits
    assert fused.row_fits(pixels, 4, 1, 1) == fits


@pytest.mark.parametrize("pixels", [2**25 - 1, 2**25, 2**25 + 1])
def test_numbers_of_a_row_are_not(pixels):
    """64 channels: 2**31 numbers, and a pixel less and more."""
    assert fused.row_fits(pixels, 64, 1, 1)


@pytest.mark.parametrize("numbers", [2**31 - 1, 2**31, 2**31 + 1])
def test_numbers_of_an_image_are_counted_in_32_bits(numbers):
    assert not fused.image_fits(1, 1, numbers)
    assert not fused.row_fits(1, 1, 1, numbers)


def test_an_image_that_32_bits_cannot_address_twice_is_torchs():
    assert fused.image_fits(2, 2**14, 2**14)
    assert not fused.image_fits(2, 2**14, 2**14 + 1)
    assert not fused.row_fits(1, 2, 2**14, 2**14 + 1)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.skipif(not can_build_kernels(), reason="needs triton and a C compiler")
def test_on_a_gpu_every_door_takes_a_kernel(monkeypatch):
    """Each kernel's door is replaced by one that only notes that it was opened."""
    from esper.kasmina.ops.kernels import (
        batches,
        convolution,
        depthwise,
        normalise,
        pooling,
        update,
    )
    from esper.kasmina.ops.kernels.gradients import ConvolutionKernels

    opened = set()

    def noting(module, name):
        real = getattr(module, name)
        called = f"{module.__name__.rpartition('.')[2]}.{name}"
        monkeypatch.setattr(module, name, lambda *a, **k: (opened.add(called), real(*a, **k))[1])

    noting(batches, "gather_batch")
    noting(update, "row_norms")
    noting(update, "update_rows")
    for module in (convolution, depthwise):
        noting(module, "_run")
        noting(module, "gradient_of_weights")
        kernels = ConvolutionKernels(module._run, module.gradient_of_weights)
        monkeypatch.setattr(module, "KERNELS", kernels)
    noting(normalise, "sizes")
    noting(pooling, "_sizes")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 1, 8, 8), dtype=np.uint8)
    iterator = SharedBatchIterator(pixels, np.arange(8) % 5, 2, 4, 1, device="cuda")
    population = Population(tiny_host, ["r0c0"], ["depthwise"], 2, device="cuda")
    population.plant([0, 1], "r0c0", "depthwise")
    for x, y in iterator.step(0):
        with torch.autocast("cuda", torch.bfloat16):
            population.train_batch(x, y)
    asked = {"batches.gather_batch", "update.row_norms", "update.update_rows"}
    asked |= {
        f"{m}.{n}" for m in ("convolution", "depthwise") for n in ("_run", "gradient_of_weights")
    }
    assert opened == asked | {"normalise.sizes", "pooling._sizes"}


def test_a_plain_host_has_torchs_pooling_with_the_same_output():
    population = make_population(members=2)
    x = batch(1)[0][0]
    plain = population.member(1).to_plain()
    pools = [module for module in plain.modules() if isinstance(module, nn.MaxPool2d)]
    assert [type(pool) for pool in pools] == [nn.MaxPool2d] * 3
    assert {(pool.kernel_size, pool.ceil_mode) for pool in pools} == {(2, True)}
    torch.testing.assert_close(plain(x), population.member(1)(x), rtol=0, atol=1e-6)


def test_pooling_costs_no_macs_and_holds_no_parameters():
    host = tiny_host()
    assert not list(host.pools.parameters())
    assert count_macs(host.pools[0], torch.randn(1, 4, 8, 8)) == 0


def test_a_store_without_parameters_has_no_update_to_make():
    from esper.kasmina.layers.initialisation import Initialiser
    from esper.kasmina.training.optim import OptimConfig, StackedOptimizer, gradient_norm

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    store = ParameterStore(Initialiser(nn.ReLU), 3, device)
    store.flat_EP.grad = torch.zeros_like(store.flat_EP)
    norm = gradient_norm(store)
    assert norm.tolist() == [0.0, 0.0, 0.0]
    StackedOptimizer(OptimConfig()).step("key", store, torch.ones(3, device=device), norm)
    assert store.flat_EP.shape == (3, 0)


def test_a_mask_of_rows_that_does_not_fit_is_one_line():
    live = torch.tensor([1.0, 0.0, 1.0])
    with kernel_scope(live_R=live):
        assert live_rows(3) is live
        assert live_rows(1) is None, "what all rows share is computed once, whoever is live"
        with pytest.raises(EsperError, match=r"^kernel of 4 rows: the mask of live rows has 3;"):
            live_rows(4)
    assert live_rows(4) is None
