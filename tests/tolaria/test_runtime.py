"""Devices are checked in one line, profiles do what they say, the timer never waits."""

from __future__ import annotations

import os
import sys
import time

import pytest
import torch

from esper.tolaria import CUDATimer
from esper.tolaria.runtime import autocast, parse_device, set_profile
from support import DEVICES, refused

no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")


def test_devices_that_are_here():
    assert parse_device("cpu") == torch.device("cpu")
    assert parse_device("auto").type == DEVICES[-1]


@no_cuda
@pytest.mark.parametrize("text", ["cuda", "cuda:0"])
def test_missing_cuda_is_named(text):
    assert f"device {text!r}: no CUDA device" in refused(lambda: parse_device(text))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_device_beyond_the_last_is_named():
    assert "CUDA devices are here" in refused(lambda: parse_device("cuda:99"))


@pytest.mark.parametrize("text", ["tpu", "cud", "cpu:x", ""])
def test_unknown_device_is_named(text):
    assert f"device {text!r}: choose cpu, cuda" in refused(lambda: parse_device(text))


def test_device_esper_does_not_run_on():
    assert "Esper runs on cpu and cuda" in refused(lambda: parse_device("meta"))


@pytest.fixture
def restored():
    """Global settings come back after a test that sets a profile."""
    kept = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    yield
    torch.use_deterministic_algorithms(kept[0])
    torch.backends.cudnn.benchmark = kept[1]


@no_cuda
def test_a_profile_does_not_import_torchs_compiler_which_learns_of_it_all_the_same(
    restored, monkeypatch
):
    import torch._inductor.config as compiler

    set_profile("exact", torch.device("cpu"))
    assert compiler.deterministic, "it is imported already"
    monkeypatch.setenv("TORCHINDUCTOR_DETERMINISTIC", "0")
    monkeypatch.delitem(sys.modules, "torch._inductor")
    for profile, read_at_import in (("fast", "0"), ("exact", "1")):
        set_profile(profile, torch.device("cpu"))
        assert torch.are_deterministic_algorithms_enabled() == (profile == "exact")
        assert os.environ["TORCHINDUCTOR_DETERMINISTIC"] == read_at_import
        assert "torch._inductor" not in sys.modules


@no_cuda
def test_profiles(restored):
    set_profile("exact", torch.device("cpu"))
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.benchmark
    set_profile("fast", torch.device("cpu"))
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cuda.matmul.allow_tf32
    assert "did you mean 'fast'" in refused(lambda: set_profile("fats", torch.device("cpu")))  # type: ignore[arg-type]


def test_autocast_leaves_the_cpu_alone():
    with autocast(torch.device("cpu")):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_autocast_is_bf16_on_a_gpu():
    x = torch.ones(2, 2, device="cuda")
    with autocast(torch.device("cuda")):
        assert (x @ x).dtype == torch.bfloat16
    with autocast(torch.device("cuda"), "fp32"):
        assert (x @ x).dtype == torch.float32


def test_timer_adds_up_spans_by_name():
    timer = CUDATimer(torch.device("cpu"))
    for _ in range(3):
        with timer.span("sleep"):
            time.sleep(0.01)
    with timer.span("nothing"):
        pass
    seconds = timer.collect()
    assert seconds["sleep"] >= 0.03
    assert seconds["nothing"] < seconds["sleep"]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_timer_does_not_wait_for_the_device():
    timer = CUDATimer(torch.device("cuda"))
    x = torch.randn(4096, 4096, device="cuda")
    (x @ x).sum().item()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with timer.span("matmul"):
            for _ in range(50):
                x = x @ x * 1e-3
        timer.collect()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert timer.collect()["matmul"] > 0
