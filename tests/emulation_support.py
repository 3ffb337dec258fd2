"""Fused blocks (`block.cu`) on a CPU: made by the C++ compiler, run by kasmina/kernels/emulate.h.

Tensors are channels last, `[R, B, H, W, C]`, in bf16; parameters are float32.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from esper.kasmina.ops import kernels
from esper.kasmina.ops.kernels.block_args import BlockArgs
from esper.kasmina.ops.kernels.block_plan import BlockPlan

SOURCE = Path(kernels.__file__).parent
EMULATOR = Path(__file__).parent / "kasmina" / "kernels"


def require_compiler() -> str:
    """Skip the test where there is no C++ compiler."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    return compiler


@cache
def library(plan: BlockPlan) -> ctypes.CDLL:
    """Compile the kernels of a plan; kept in the temporary folder for the next run."""
    compiler = require_compiler()
    constants = [f"-D{name}={value}" for name, value in plan.constants().items()]
    options = ["-O0", "-std=c++17", "-shared", "-fPIC", "-w", "-DEMULATED", *constants]
    sources = [*sorted(SOURCE.glob("block*.*")), *sorted(EMULATOR.glob("emulate.*"))]
    key = hashlib.sha256("\n".join(options).encode())
    for source in sources:
        key.update(source.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"esper-emulated-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    target = folder / f"{key.hexdigest()[:24]}.so"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=folder) as own:
            made = Path(own) / "made.so"
            command = [
                compiler,
                *options,
                f"-I{SOURCE}",
                f"-I{EMULATOR}",
                str(EMULATOR / "emulate.cpp"),
            ]
            subprocess.run([*command, "-o", str(made)], check=True)
            made.replace(target)
    found = ctypes.CDLL(str(target))
    found.emulate.restype = ctypes.c_char_p
    return found


def emulate(plan: BlockPlan, args: BlockArgs, backward: bool, parts: int, rows: int, seed: int = 0):
    """Run a whole grid; fails where the emulator finds something wrong."""
    trouble = library(plan).emulate(ctypes.byref(args), int(backward), parts, rows, seed)
    assert trouble is None, trouble.decode()
