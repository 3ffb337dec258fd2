"""Fused blocks as compiled kernels: built by NVRTC at first use, then read from the disk.

The cache is one file per kernel, named by a hash of source, settings, GPU and NVRTC's version, in
`$ESPER_KERNEL_CACHE`, else `$XDG_CACHE_HOME/esper/kernels` or `~/.cache/esper/kernels`. Files are
written whole or not at all, so that any number of processes may share it; two that build the same
kernel at once write the same bytes.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from functools import cache
from importlib import resources
from time import perf_counter
from typing import Final

import torch

from esper.device.cuda_modules import CudaFunction, CudaModule, DriverError
from esper.device.kernel_cache import CACHE_VARIABLE, cache_folder
from esper.device.nvrtc import CompileError, Nvrtc, find_nvrtc
from esper.kasmina.ops.kernels.block_plan import BlockPlan
from esper.storage.atomic import write_atomic

logger = logging.getLogger(__name__)

SOURCE: Final = "block.cu"
HEADERS: Final = ("block_device.h", "block_tiles.h")


@dataclass(slots=True)
class BlockBuilds:
    """Blocks prepared by this process."""

    built: int = 0
    """Compiled."""
    build_seconds: float = 0.0
    fetched: int = 0
    """Read from the disk."""

    def line(self) -> str:
        """Format as one line."""
        return f"{self.built} built in {self.build_seconds:.1f} s, {self.fetched} from the cache"


BUILDS: Final = BlockBuilds()
"""Of this process."""


@cache
def source(name: str) -> str:
    """Return a source file of this package."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _options(plan: BlockPlan, architecture: str) -> list[str]:
    """Return NVRTC's options for a plan."""
    constants = [f"-D{name}={value}" for name, value in plan.constants().items()]
    return [f"--gpu-architecture={architecture}", "--std=c++17", *constants]


def machine_code(plan: BlockPlan, architecture: str, nvrtc: Nvrtc, rebuild: bool = False) -> bytes:
    """Return the kernels of a plan for a GPU such as sm_90, from the disk if they are there."""
    given = _options(plan, architecture)
    key = "\n".join([str(nvrtc.version), *given, *(source(name) for name in (SOURCE, *HEADERS))])
    path = cache_folder() / f"block-{hashlib.sha256(key.encode()).hexdigest()[:32]}.cubin"
    if not rebuild:
        try:
            code = path.read_bytes()
            BUILDS.fetched += 1
            return code
        except OSError:
            pass  # not built yet, or not readable: build it
    start = perf_counter()
    headers = {name: source(name) for name in HEADERS}
    code = nvrtc.compile(source(SOURCE), SOURCE, headers, given)
    BUILDS.built += 1
    BUILDS.build_seconds += perf_counter() - start
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, code)
    except OSError as error:
        logger.warning("compiled kernels are not kept: %s; set %s", error, CACHE_VARIABLE)
    return code


@cache
def functions(plan: BlockPlan, device: int) -> tuple[CudaFunction, CudaFunction]:
    """Return forward and backward kernel of a plan on the current device, number `device`."""
    nvrtc = find_nvrtc()
    if nvrtc is None:
        raise CompileError("fused blocks need NVRTC, which comes with torch for CUDA")
    major, minor = torch.cuda.get_device_capability(device)
    architecture = f"sm_{major}{minor}"
    code = machine_code(plan, architecture, nvrtc)
    try:
        module = CudaModule(code)
    except DriverError as error:  # a damaged file: once more from the source
        logger.warning("a compiled kernel from %s is rebuilt: %s", cache_folder(), error)
        module = CudaModule(machine_code(plan, architecture, nvrtc, rebuild=True))
    forward = module.function("block_forward", plan.forward_bytes)
    return forward, module.function("block_backward", plan.backward_bytes)


def unsupported_reason(device: torch.device) -> str | None:
    """Return why fused blocks cannot run on a device; None if they can."""
    if device.type != "cuda" or torch.version.hip is not None:
        return "they are for NVIDIA GPUs"
    if torch.cuda.get_device_capability(device) < (9, 0):
        return "they are planned for the shared memory of sm_90 and later"
    return "NVRTC is not installed" if find_nvrtc() is None else None
