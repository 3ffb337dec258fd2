"""What building kernels took is counted by Triton's own records, and never in anyone's way."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

import build_times
from build_times import KernelBuilds, count_builds
from esper.device.triton_support import can_build_kernels

CUDA = torch.device("cuda")


def record(microseconds: int, cache_hit: bool) -> dict[str, object]:
    """What Triton 3.6 tells of a kernel."""
    return {
        "src": SimpleNamespace(name="kernel"),
        "metadata": {},
        "metadata_group": {},
        "times": SimpleNamespace(total=microseconds),
        "cache_hit": cache_hit,
    }


def test_built_and_fetched_kernels_are_added_up_apart():
    builds = KernelBuilds()
    for microseconds, cache_hit in ((1_500_000, False), (2_250_000, False), (40_000, True)):
        builds.note(record(microseconds, cache_hit))
    assert (builds.built, builds.build_seconds) == (2, 3.75)
    assert (builds.fetched, builds.fetch_seconds) == (1, 0.04)
    assert builds.line() == "2 built in 3.8 s, 1 from Triton's cache in 0.04 s"


def test_where_no_kernel_is_built_there_is_a_reason():
    with count_builds(torch.device("cpu")) as builds:
        pass
    assert builds.line() == "not counted (kernels are built for CUDA devices, this is cpu)"


def test_without_triton_or_a_compiler_there_is_a_reason(monkeypatch):
    monkeypatch.setattr(build_times, "can_build_kernels", lambda: False)
    with count_builds(CUDA) as builds:
        pass
    assert builds.line() == "not counted (they need triton and a C compiler)"


@pytest.mark.skipif(
    not can_build_kernels() or os.environ.get("TRITON_INTERPRET") == "1",
    reason="needs triton as a compiler",
)
def test_a_real_build_is_counted_once_and_a_fetch_from_then_on(tmp_path, monkeypatch):
    """Compiled for a GPU, whether one is here or not; whoever listened before hears it too."""
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    @triton.jit
    def add_one(x_ptr, n, block: tl.constexpr):
        i = tl.arange(0, block)
        tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)

    heard: list[bool] = []

    def before(*, cache_hit: bool, **_: object) -> None:
        heard.append(cache_hit)

    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    monkeypatch.setattr(triton.knobs.compilation, "listener", before)
    types = {"x_ptr": "*fp32", "n": "i32", "block": "constexpr"}
    source = ASTSource(add_one, types, {"block": 64})
    with count_builds(CUDA) as builds:
        for _ in range(3):
            triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert (builds.built, builds.fetched) == (1, 2)
    assert builds.build_seconds > builds.fetch_seconds > 0
    assert heard == [False, True, True]
    assert triton.knobs.compilation.listener is before
