"""Compiled blocks are built once and shared by processes; shapes that have none are named."""

from __future__ import annotations

import subprocess
import sys

import pytest

from block_support import TASK_SHAPES, shape
from esper.device.kernel_cache import CACHE_VARIABLE, cache_folder
from esper.device.nvrtc import CompileError, find_nvrtc
from esper.kasmina.ops.kernels import compiled
from esper.kasmina.ops.kernels.block_plan import plan

BLOCK = plan(shape(8, 8, 4))


class SlowCompiler:
    """Stands where NVRTC is not installed: counts, and makes recognisable bytes."""

    version = (13, 0)

    def __init__(self):
        self.compiled = []

    def compile(self, source, name, headers, options):
        self.compiled.append(tuple(options))
        assert "block_forward" in source
        assert set(headers) == {"block_device.h", "block_tiles.h"}
        return repr(options).encode()


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "kernels"))
    monkeypatch.setattr(compiled, "BUILDS", compiled.BlockBuilds())


def test_a_block_is_compiled_once_for_a_gpu_and_a_compiler():
    nvrtc = SlowCompiler()
    first = compiled.machine_code(BLOCK, "sm_90", nvrtc)
    assert compiled.machine_code(BLOCK, "sm_90", nvrtc) == first
    assert len(nvrtc.compiled) == 1
    compiled.machine_code(BLOCK, "sm_100", nvrtc)
    nvrtc.version = (13, 1)
    compiled.machine_code(BLOCK, "sm_90", nvrtc)
    compiled.machine_code(plan(shape(8, 16, 4)), "sm_90", nvrtc)
    assert len(nvrtc.compiled) == 4
    compiled.machine_code(BLOCK, "sm_90", nvrtc, rebuild=True)
    assert len(nvrtc.compiled) == 5
    assert (compiled.BUILDS.built, compiled.BUILDS.fetched) == (5, 1)


def test_a_changed_source_is_compiled_anew(monkeypatch):
    nvrtc = SlowCompiler()
    compiled.machine_code(BLOCK, "sm_90", nvrtc)
    real = compiled.source
    monkeypatch.setattr(compiled, "source", lambda name: real(name) + "// changed")
    compiled.machine_code(BLOCK, "sm_90", nvrtc)
    assert len(nvrtc.compiled) == 2


def test_a_cache_that_cannot_be_written_is_said_and_does_without(monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "kernels"))
    nvrtc = SlowCompiler()
    assert compiled.machine_code(BLOCK, "sm_90", nvrtc)
    assert CACHE_VARIABLE in caplog.text


ONE_OF_TWO = """
import sys
from esper.kasmina.ops.kernels import compiled
from esper.kasmina.ops.kernels.block_plan import BlockShape, plan

class Compiler:
    version = (13, 0)
    def compile(self, source, name, headers, options):
        sys.stdout.write("ready\\n"), sys.stdout.flush(), sys.stdin.readline()
        return bytes(range(256)) * 4096

code = compiled.machine_code(plan(BlockShape(8, 8, 4, 4, 1)), "sm_90", Compiler())
assert code == bytes(range(256)) * 4096
"""


def test_two_processes_that_build_the_same_at_once_leave_one_whole_file():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    two = [subprocess.Popen([sys.executable, "-c", ONE_OF_TWO], **pipes) for _ in range(2)]
    for one in two:
        assert one.stdout.readline() == "ready\n"  # both found nothing
    for one in two:
        one.communicate("go\n")
        assert one.returncode == 0
    (file,) = cache_folder().iterdir()
    assert file.read_bytes() == bytes(range(256)) * 4096


@pytest.mark.skipif(find_nvrtc() is None, reason="needs NVRTC")
def test_nvrtc_compiles_a_block_and_says_what_is_wrong_with_a_source():
    nvrtc = find_nvrtc()
    assert compiled.machine_code(BLOCK, "sm_90", nvrtc)[:4] == b"\x7fELF"
    with pytest.raises(CompileError, match="nowhere"):
        nvrtc.compile("int a = nowhere;", "broken.cu", {}, [])


@pytest.mark.slow
@pytest.mark.skipif(find_nvrtc() is None, reason="needs NVRTC")
@pytest.mark.parametrize("block", TASK_SHAPES, ids=lambda s: s.line())
def test_nvrtc_compiles_every_shape_of_our_tasks(block):
    assert compiled.machine_code(plan(block), "sm_90", find_nvrtc())[:4] == b"\x7fELF"
