"""Times fused blocks (convolution 3x3, group norm, ReLU) on a GPU against our separate kernels.

    python lab/scripts/benchmark_blocks.py
    python lab/scripts/benchmark_blocks.py --variants       # also other divisions of the work

For each shape, 64 rows of 512 images: milliseconds forward and backward of the fused kernels, of
our Triton kernels (convolution, norm, gradients) and of torch (vmapped, both passes together),
beside the time that the traffic of the fused kernels takes at the measured bandwidth. Medians of
`repeats` by device events, after a warm-up. Errors are relative to the Triton kernels' results;
whole train batches: `scripts/benchmark_hot_path.py --kernels own fused torch`.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Final
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from esper.device.cuda_modules import CudaFunction, DriverError
from esper.kasmina.layers.layers import channel_groups
from esper.kasmina.ops.block_parameters import BlockParameters
from esper.kasmina.ops.kernels.block_plan import BlockPlan, BlockShape, plan
from esper.leyline.errors import EsperError
from esper.scripts.cli.command import run_command

SHAPES: Final = ((3, 8, 32), (8, 8, 32), (8, 16, 16), (16, 16, 16), (16, 32, 8), (32, 32, 8))
"""Channels in and out, and side: the host of cifar_baseline and its seeds."""


@dataclass(frozen=True)
class BenchmarkBlocks:
    """Time fused blocks."""

    rows: int = 64
    """Rows of each shape."""
    batch: int = 512
    """Images of a row."""
    repeats: int = 9
    """Timings of each kernel."""
    variants: bool = False
    """Also time other divisions of the work."""
    out: Path = Path("out/benchmark_blocks.json")
    """All numbers."""


@dataclass(slots=True)
class ShapeTimes:
    """Milliseconds of one shape."""

    shape: str
    plan: str
    fused: tuple[float, float]
    own: tuple[float, float]
    torch: float
    floor: tuple[float, float]
    errors: list[float] = field(default_factory=list)
    resources: list[tuple[int, int]] = field(default_factory=list)
    """Registers and bytes of local memory, forward and backward."""


def main() -> int:
    """Entry point of the command."""
    return run_command(BenchmarkBlocks, measure)


def measure(config: BenchmarkBlocks) -> None:
    """Build, time, print, write the numbers."""
    from esper.kasmina.ops.kernels import compiled

    if not torch.cuda.is_available():
        raise EsperError("benchmark_blocks needs a CUDA device: run it where there is one")
    device = torch.device("cuda", torch.cuda.current_device())
    problem = compiled.unsupported_reason(device)
    if problem is not None:
        raise EsperError(f"fused blocks do not run on {device}: {problem}")
    shapes = [BlockShape(i, o, s, s, channel_groups(o)) for i, o, s in SHAPES]
    plans = [p for s in shapes for p in (variants(s) if config.variants else [plan(s)])]
    seconds = build(plans, device)
    print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}")
    print(f"blocks: {compiled.BUILDS.line()}, {seconds:.1f} s by the clock, {len(plans)} plans")
    bandwidth = copy_bandwidth(device)
    print(f"copies: {bandwidth / 1e12:.2f} TB/s\n")
    print("shape, plan: fused / own / floor forward; backward; torch both; errors; registers")
    found = [time_shape(config, p, bandwidth, device, p == plan(p.shape)) for p in plans]
    for line in found:
        print(text(line))
    config.out.parent.mkdir(parents=True, exist_ok=True)
    numbers = {"bandwidth": bandwidth, "shapes": [asdict(t) for t in found]}
    config.out.write_text(json.dumps(numbers, indent=1))


def variants(shape: BlockShape) -> Iterator[BlockPlan]:
    """Yield the plan of a shape, and others."""
    own = plan(shape)
    others = (
        own,
        replace(own, forward_blocks=2, backward_blocks=1),
        replace(own, forward_blocks=4, backward_blocks=3),
        replace(own, weight_shares=max(1, own.weight_shares // 2)),
        replace(own, weight_shares=min(8, own.weight_shares * 2)),
        replace(own, image_warps=min(8, own.image_warps * 2)) if own.warp_images == 1 else own,
    )
    yield from dict.fromkeys(others)


def build(plans: list[BlockPlan], device: torch.device) -> float:
    """Compile all at once, load each; return the seconds it took."""
    from esper.device.nvrtc import find_nvrtc
    from esper.kasmina.ops.kernels import compiled

    nvrtc, start = find_nvrtc(), perf_counter()
    assert nvrtc is not None, "checked before"
    major, minor = torch.cuda.get_device_capability(device)
    make = partial(compiled.machine_code, architecture=f"sm_{major}{minor}", nvrtc=nvrtc)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda p: make(p), plans))
    for planned in plans:
        compiled.functions(planned, torch.cuda.current_device())
    return perf_counter() - start


def median_ms(work: Callable[[], object], repeats: int) -> float:
    """Median device time of a call, after one call."""
    work()
    times: list[float] = []
    for _ in range(repeats):
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        work()
        end.record()
        end.synchronize()  # SYNC: a benchmark
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second, read and written, of a copy of 1 GiB."""
    a = torch.randn(2**28, device=device)
    b = torch.empty_like(a)
    return 2 * 2**30 / (median_ms(lambda: b.copy_(a), 7) / 1000)


def time_shape(
    config: BenchmarkBlocks, planned: BlockPlan, bandwidth: float, device: torch.device, full: bool
) -> ShapeTimes:
    """Time one plan; `full`: also the other kernels."""
    from esper.kasmina.ops.kernels import blocks, compiled
    from esper.kasmina.ops.kernels.layout import dense_pixels, laid_out

    shape, rows = planned.shape, config.rows
    image = (shape.height, shape.width)
    generator = torch.Generator(device).manual_seed(0)
    numbers = partial(torch.randn, generator=generator, device=device)
    x = laid_out(numbers(rows, config.batch, shape.inputs, *image), torch.bfloat16)[0]
    dy = dense_pixels(numbers(rows, config.batch, shape.outputs, *image), torch.bfloat16)
    weight = 0.3 * numbers(rows, shape.outputs, shape.inputs, 3, 3)
    own = weight, 1 + numbers(rows, shape.outputs) / 4, numbers(rows, shape.outputs) / 4
    wants_dx = shape.inputs > 3  # an image needs no gradient
    parameters = BlockParameters(*own, shape.groups, True)
    y, dx = torch.empty_like(dy), torch.empty_like(x) if wants_dx else None
    with mock.patch.object(blocks, "plan", return_value=planned):
        ahead = partial(blocks.run_forward, x, parameters, y)
        back = partial(blocks.run_backward, x, dy, parameters, ahead(), dx)
        fused = median_ms(ahead, config.repeats), median_ms(back, config.repeats)
        gradients = dx, *back()
    reads = x.numel() // shape.inputs * shape.stored * 2
    writes = dy.numel() * 2
    floor = (reads + writes) / bandwidth, (reads * (2 if wants_dx else 1) + writes) / bandwidth
    resources = [resources_of(f) for f in compiled.functions(planned, torch.cuda.current_device())]
    name = f"WPI {planned.image_warps} IPW {planned.warp_images} WK {planned.weight_shares}"
    name += f" blocks {planned.forward_blocks} {planned.backward_blocks}"
    times = ShapeTimes(
        shape.line(), name, fused, (0.0, 0.0), 0.0, (1000 * floor[0], 1000 * floor[1]), [],
        resources,
    )  # fmt: skip
    if full:
        results = y, *(g for g in gradients if g is not None)
        times.own, times.errors = time_own(config, x, dy, own, shape.groups, wants_dx, results)
        times.torch = time_torch(x, dy, own, shape.groups, wants_dx)
    return times


def time_own(
    config: BenchmarkBlocks,
    x: Tensor,
    dy: Tensor,
    own: tuple[Tensor, Tensor, Tensor],
    groups: int,
    wants_dx: bool,
    found: tuple[Tensor, ...],
) -> tuple[tuple[float, float], list[float]]:
    """Time our Triton kernels; also return how far `found` is from their results."""
    from esper.kasmina.ops.kernels import convolution, normalise

    weight, scale, shift = own

    def forward() -> tuple[Tensor, Tensor, Tensor]:
        z = convolution._run(x, weight, torch.bfloat16, False)
        return z, *normalise._normalised(z, scale, shift, groups, True)

    z, y, kept = forward()

    def backward() -> tuple[Tensor, ...]:
        dz = torch.empty_like(z)
        dscale, dshift = normalise.run_backward(z, dy, scale, shift, kept, groups, True, dz)
        dw = convolution.gradient_of_weights(x, dz, 3)
        dx = (convolution._run(dz, weight, torch.bfloat16, True),) if wants_dx else ()
        return *dx, dw, dscale, dshift

    errors = [
        float((a.float() - b.float()).norm() / b.float().norm())
        for a, b in zip(found, (y, *backward()), strict=True)
    ]
    return (median_ms(forward, config.repeats), median_ms(backward, config.repeats)), errors


def time_torch(
    x: Tensor, dy: Tensor, own: tuple[Tensor, Tensor, Tensor], groups: int, wants_dx: bool
) -> float:
    """Time torch's kernels under vmap, both passes."""
    leaves = [v.detach().requires_grad_(True) for v in own]
    given = x.detach().requires_grad_(wants_dx)

    def one(h: Tensor, weight: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return F.group_norm(F.conv2d(h, weight, padding=1), groups, scale, shift).relu()

    def both() -> None:
        with torch.autocast(x.device.type, torch.bfloat16):
            out = vmap(one)(given, *leaves)
        wanted = [*leaves, given] if wants_dx else leaves
        torch.autograd.grad(out, wanted, dy.to(out.dtype))

    return median_ms(both, 2)


def resources_of(function: CudaFunction) -> tuple[int, int]:
    """Registers of a thread, and bytes of its local memory (spilled registers)."""
    driver, found = ctypes.CDLL("libcuda.so.1"), []
    for attribute in (4, 3):  # CU_FUNC_ATTRIBUTE_NUM_REGS, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
        value = ctypes.c_int()
        if code := driver.cuFuncGetAttribute(ctypes.byref(value), attribute, function.handle):
            raise DriverError(f"reading about a kernel ({code})")
        found.append(value.value)
    return found[0], found[1]


def text(times: ShapeTimes) -> str:
    """One line of the table."""
    line = f"{times.shape:16} {times.plan:28} "
    for way in (0, 1):
        own = f"{times.own[way]:.3f}" if times.own[way] else "-"
        line += f"{times.fused[way]:.3f} / {own} / {times.floor[way]:.3f}; "
    errors = " ".join(f"{e:.0e}" for e in times.errors)
    resources = " ".join(f"{registers}+{local}B" for registers, local in times.resources)
    return f"{line}{times.torch:.2f}; {errors}; {resources}"


if __name__ == "__main__":
    sys.exit(main())
