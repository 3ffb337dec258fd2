"""Blocks as one operation on a CPU: torch's numbers, in any division among threads."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine_support import small_engine
from esper.kasmina import Population, PopulationConfig
from esper.kasmina.hosts.cnn import CNNHost
from esper.kasmina.lifecycle.gates import GateConfig
from esper.kasmina.lifecycle.lifecycle import LifecycleConfig
from esper.kasmina.ops import block_cpu, c_libraries, fused
from esper.kasmina.ops.block_cpu import Steps
from esper.kasmina.ops.kernel_scope import kernel_scope
from esper.kasmina.ops.layout import channels_last, is_channels_last
from esper.leyline import SeedStage
from esper.leyline.errors import EsperError
from esper.scripts.doctor import _kernel_line
from support import bring_to

pytestmark = pytest.mark.skipif(
    block_cpu.unsupported_reason() is not None, reason=str(block_cpu.unsupported_reason())
)


def draw(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def block_inputs(channels: int, outs: int, side: int, batch: int, height: int, width: int):
    """Images and parameters, as leaves."""
    x = channels_last(draw((batch, channels, height, width)))
    weight = draw((outs, channels, side, side), 1) / (channels * side**2) ** 0.5
    given = x, weight, 1 + draw((outs,), 2) / 4, draw((outs,), 3) / 4
    return [part.requires_grad_(part is not x or channels % 4 == 0) for part in given]


def by_torch(x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, steps: Steps) -> Tensor:
    h = F.conv2d(x, weight, padding=weight.shape[-1] // 2)
    h = F.group_norm(h, steps.groups, scale, shift)
    h = F.relu(h) if steps.relu else h
    return F.max_pool2d(h, 2) if steps.pool else h


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    return float(((ours.double() - theirs).norm() / theirs.norm()).detach())


@pytest.mark.parametrize(
    ("channels", "outs", "side", "height", "width"),
    [
        (3, 8, 3, 32, 32),
        (8, 16, 3, 6, 14),  # tiles of 8, 4 and 1 pixels
        (4, 12, 5, 8, 10),  # 8 and 4 channels at a time
    ],
)
@pytest.mark.parametrize("after", [(True, True), (True, False), (False, False), (False, True)])
def test_a_block_and_its_gradients_are_torch_s(channels, outs, side, height, width, after):
    given = block_inputs(channels, outs, side, 3, height, width)
    exact = [part.detach().double().requires_grad_(part.requires_grad) for part in given]
    steps = Steps(3 if outs == 12 else 1, *after)
    assert block_cpu.fits(given[0], given[1], steps)
    ours, theirs = block_cpu.conv_norm(*given, steps), by_torch(*exact, steps)
    assert ours.shape == theirs.shape
    assert is_channels_last(ours)
    assert relative_error(ours, theirs) < 1e-6
    with torch.no_grad():
        assert torch.equal(block_cpu.conv_norm(*given, steps), ours)
    pull = draw(ours.shape, 4)
    ours.backward(pull)
    theirs.backward(pull.double())
    for mine, other in zip(given, exact, strict=True):
        if mine.requires_grad:
            assert relative_error(mine.grad, other.grad) < 2e-5


def test_the_default_dtype_does_not_matter():
    given = block_inputs(8, 16, 3, 2, 8, 8)
    ours = block_cpu.conv_norm(*given, Steps(1, True, True))
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(block_cpu.conv_norm(*given, Steps(1, True, True)), ours)
    finally:
        torch.set_default_dtype(torch.float32)


def test_frozen_parts_get_no_gradient():
    given = block_inputs(8, 16, 3, 2, 8, 8)
    given[0].requires_grad_(False)
    given[1].requires_grad_(False)
    block_cpu.conv_norm(*given, Steps(1, True, True)).sum().backward()
    assert [part.grad is not None for part in given] == [False, False, True, True]


def test_the_first_of_equal_maxima_has_the_gradient():
    """With zero weights every pixel of a channel is its shift, positive or not."""
    given = block_inputs(8, 16, 3, 2, 8, 8)
    given[1].data.zero_()
    given[3].data[0] = 0.0  # where ReLU has no gradient
    twins = [part.detach().clone().requires_grad_() for part in given]
    steps, pull = Steps(1, True, True), draw((2, 16, 4, 4), 5)
    block_cpu.conv_norm(*given, steps).backward(pull)
    by_torch(*twins, steps).backward(pull)
    for mine, other in zip(given[1:], twins[1:], strict=True):
        assert torch.allclose(mine.grad, other.grad, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_not_hidden(bad):
    given = block_inputs(8, 16, 3, 2, 8, 8)
    given[0].data[1, 2, 3, 4] = bad
    out = block_cpu.conv_norm(*given, Steps(1, True, True))
    assert out[0].isfinite().all()
    assert out[1].isnan().all()
    out.sum().backward()
    assert given[1].grad.isnan().any()


@pytest.mark.parametrize("threads", [2, 3, 9])
def test_threads_divide_the_images(threads):
    """9: more than images."""
    found = []
    before = torch.get_num_threads()
    for count in (1, threads):
        given = block_inputs(8, 16, 3, 7, 8, 8)
        torch.set_num_threads(count)
        try:
            out = block_cpu.conv_norm(*given, Steps(1, True, True))
            out.backward(draw(out.shape, 4))
        finally:
            torch.set_num_threads(before)
        found.append((out.detach(), *(part.grad for part in given)))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    for one, many in zip(*found, strict=True):
        assert relative_error(many, one.double()) < 1e-6


def test_what_has_no_block_is_left_to_torch():
    x, weight, _, _ = block_inputs(8, 16, 3, 2, 8, 8)
    steps = Steps(1, True, True)
    fits = block_cpu.fits
    assert fits(x, weight, steps)
    assert not fits(x.detach().contiguous(), weight, steps)
    assert not fits(x.double(), weight.double(), steps)
    assert not fits(x, weight[:6], steps)
    assert not fits(x[:, :, :7], weight, steps)
    assert not fits(x.detach()[:, :6].contiguous(), weight[:, :6], steps)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not fits(x, weight, steps)
    seen = []
    torch.func.vmap(lambda w: seen.append(fits(x, w, steps)) or w)(weight[None])
    assert seen == [False]


def host() -> CNNHost:
    return CNNHost(n_blocks=2, base_channels=8)


def trained(kernels: str) -> tuple[Tensor, list[Tensor]]:
    """Outputs and losses of two members, one with a seed that incubates and one blended in."""
    config = PopulationConfig(
        executor="loop", lifecycle=LifecycleConfig(gates=GateConfig(min_training_steps=1))
    )
    population = Population(host, ("r0c0",), ("conv_light", "conv_heavy"), 2, 0, "cpu", config)
    x, target = draw((2, 4, 3, 16, 16)), torch.arange(8).view(2, 4)
    with torch.no_grad():
        population.forward(x)
    population.choice.executor.kernels = kernels
    bring_to(population, SeedStage.BLENDING, [0], "r0c0", "conv_heavy")
    bring_to(population, SeedStage.TRAINING, [1], "r0c0", "conv_light")
    population.set_rates(0.05, 0.05)
    population.begin_step()
    losses = [population.train_batch(x, target).loss_E for _ in range(3)]
    with torch.no_grad():
        return population.forward(x), losses


def test_a_population_trains_as_with_torch_s_operations(monkeypatch):
    calls = []
    real = block_cpu.conv_norm
    monkeypatch.setattr(block_cpu, "conv_norm", lambda *args: calls.append(1) or real(*args))
    theirs, their_losses = trained("own")
    assert not calls
    ours, our_losses = trained("fused")
    assert len(calls) > 20
    assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    for mine, other in zip(our_losses, their_losses, strict=True):
        assert torch.allclose(mine, other, rtol=1e-4, atol=1e-5)
    again, same_losses = trained("fused")
    assert torch.equal(again, ours)
    assert all(map(torch.equal, same_losses, our_losses))


def test_counting_sees_torch_s_operations(monkeypatch):
    monkeypatch.setattr(block_cpu, "conv_norm", None)
    with kernel_scope(kernels="fused", torch_convolutions=True):
        host()(channels_last(draw((2, 3, 16, 16))))


# ---- the compiler -------------------------------------------------------------------------


@pytest.fixture
def fresh_cache(tmp_path, monkeypatch):
    """An empty folder of compiled kernels, and nothing known of the compiler."""
    monkeypatch.setenv("ESPER_KERNEL_CACHE", str(tmp_path / "kernels"))
    known = c_libraries.find_compiler, block_cpu.unsupported_reason, block_cpu._functions
    for function in known:
        function.cache_clear()
    yield tmp_path / "kernels"
    for function in known:
        function.cache_clear()


def test_a_library_is_kept_and_a_damaged_one_is_built_again(fresh_cache, tmp_path, monkeypatch):
    source = tmp_path / "small.c"
    source.write_text("int small(void) { return ANSWER; }\n")
    assert c_libraries.load_library(source, {"ANSWER": 42}).small() == 42
    (kept,) = fresh_cache.iterdir()
    made = kept.stat().st_mtime_ns
    assert c_libraries.load_library(source, {"ANSWER": 42}).small() == 42
    assert kept.stat().st_mtime_ns == made
    assert c_libraries.load_library(source, {"ANSWER": 7}).small() == 7
    whole = kept.read_bytes()
    torn, turned = whole[: len(whole) // 2], whole.replace(b"small", b"smell")
    for number, bad in enumerate((b"", b"no library", torn, turned)):
        damaged = tmp_path / str(number) / kept.name
        damaged.parent.mkdir()
        damaged.write_bytes(bad)
        monkeypatch.setenv("ESPER_KERNEL_CACHE", str(damaged.parent))
        assert c_libraries.load_library(source, {"ANSWER": 42}).small() == 42
        assert damaged.read_bytes() == whole


def test_a_library_that_cannot_be_kept_is_used_all_the_same(
    fresh_cache, tmp_path, monkeypatch, caplog
):
    source = tmp_path / "small.c"
    source.write_text("int small(void) { return 3; }\n")
    monkeypatch.setenv("ESPER_KERNEL_CACHE", str(source / "kernels"))  # below a file
    with caplog.at_level(logging.WARNING):
        assert c_libraries.load_library(source, {}).small() == 3
    assert "set ESPER_KERNEL_CACHE" in caplog.text


@pytest.mark.parametrize("compiler", ["cc", "no-such-compiler"])
def test_doctor_says_whether_blocks_are_in_c(fresh_cache, monkeypatch, compiler):
    monkeypatch.setenv("CC", compiler)
    line = _kernel_line(small_engine())
    assert ("no C compiler" in line) == (compiler != "cc")
    assert ("with executor loop and profile fast" in line) == (compiler == "cc")


def test_without_a_compiler_blocks_are_torch_s(fresh_cache, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    assert block_cpu.unsupported_reason() == "no C compiler"
    with kernel_scope(kernels="fused"):
        assert not fused.wants_cpu_blocks(channels_last(draw((2, 3, 16, 16))))


def test_a_compiler_that_fails_is_reported_once_and_blocks_are_torch_s(
    fresh_cache, monkeypatch, caplog
):
    monkeypatch.setenv("CC", "false")
    x, weight, _, _ = block_inputs(8, 16, 3, 2, 8, 8)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert not block_cpu.fits(x, weight, Steps(1, True, True))
    (message,) = [record.message for record in caplog.records]
    assert message.startswith("blocks of 8 to 16 channels by torch: C compiler")
    with pytest.raises(EsperError, match="false"):
        c_libraries.load_library(block_cpu.SOURCE, {})
