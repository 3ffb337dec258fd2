"""Devices, precision, determinism profiles, out-of-memory errors and device timing."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

import torch
from torch.utils import deterministic

from esper.device.selection import parse_device as parse_device
from esper.device.selection import validate_cuda_device as validate_cuda_device
from esper.leyline.compute import PRECISIONS, PROFILES, Precision, Profile
from esper.leyline.errors import EsperError, unknown_name
from esper.leyline.payloads import StepPhase
from esper.leyline.user_errors import is_out_of_memory

DTYPES: Final[dict[Precision, torch.dtype]] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
CUBLAS_ENV_VAR: Final = "CUBLAS_WORKSPACE_CONFIG"
CUBLAS_DETERMINISTIC: Final = (":4096:8", ":16:8")
"""Workspace sizes for which cuBLAS is deterministic."""


def set_profile(profile: Profile, device: torch.device) -> None:
    """Set torch's global flags: `exact` is bit-reproducible per machine type, `fast` is not.

    On a GPU `exact` requires `CUBLAS_WORKSPACE_CONFIG`, which cuBLAS reads at its first use.
    """
    if profile not in PROFILES:
        raise unknown_name("profile", profile, PROFILES)
    exact = profile == "exact"
    on_gpu = device.type == "cuda"
    if exact and on_gpu and os.environ.get(CUBLAS_ENV_VAR) not in CUBLAS_DETERMINISTIC:
        raise EsperError(
            f"profile exact on a GPU: set {CUBLAS_ENV_VAR}={CUBLAS_DETERMINISTIC[0]} before "
            f"starting Python"
        )
    _set_deterministic(exact)
    # Deterministic mode would fill every new tensor with NaN; our kernels write every element.
    deterministic.fill_uninitialized_memory = not exact  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = not exact
    torch.backends.cudnn.allow_tf32 = not exact
    torch.backends.cuda.matmul.allow_tf32 = not exact


def _set_deterministic(exact: bool) -> None:
    """`torch.use_deterministic_algorithms` without its import of inductor, which takes 1.6 s."""
    if "torch._inductor" in sys.modules:
        torch.use_deterministic_algorithms(exact)
        return
    torch.set_deterministic_debug_mode("error" if exact else "default")
    os.environ["TORCHINDUCTOR_DETERMINISTIC"] = str(int(exact))  # read should it be imported later


def set_deterministic_cublas() -> None:
    """Set the cuBLAS workspace that profile `exact` needs; call before the first use of cuBLAS."""
    os.environ.setdefault(CUBLAS_ENV_VAR, CUBLAS_DETERMINISTIC[0])


def synchronize_device(device: torch.device) -> None:
    """Wait for all queued work of the device; for timing, never in a step."""
    if device.type == "cuda":
        # SYNC: benchmarks synchronise between timed steps; no step calls this.
        torch.cuda.synchronize(device)


def choose_precision(wanted: Precision, device: torch.device) -> Precision:
    """Resolve `auto` (bf16 on a GPU that supports it, else fp32) and validate the precision."""
    if wanted not in PRECISIONS:
        raise unknown_name("precision", wanted, PRECISIONS)
    on_gpu = device.type == "cuda"
    if wanted == "auto":
        return "bf16" if on_gpu and torch.cuda.is_bf16_supported() else "fp32"
    if wanted != "fp32" and not on_gpu:
        raise EsperError(f"precision {wanted!r} on {device}: a CPU supports fp32 only; use auto")
    return wanted


def autocast(
    device: torch.device, precision: Precision = "auto", cached: bool = True
) -> contextlib.AbstractContextManager[None]:
    """Autocast context for the members; a no-op for fp32.

    `cached`: cache the casts of weights; must be False for work captured in a CUDA graph.
    """
    chosen = choose_precision(precision, device)
    if chosen == "fp32":
        return contextlib.nullcontext()
    return torch.autocast("cuda", dtype=DTYPES[chosen], cache_enabled=cached)


@contextlib.contextmanager
def explain_out_of_memory(device: torch.device, members: int, batch_size: int) -> Iterator[None]:
    """Convert an out-of-memory error into an EsperError that says what to lower."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise EsperError(
            f"out of memory on {device} with E={members} members and batch size B={batch_size}: "
            f"lower --envs or --batch-size (a step needs memory in proportion to E x B; histories "
            f"take E x episode length)"
        ) from error


class CUDATimer:
    """Times spans of device work without synchronising.

    On a GPU a span is a pair of CUDA events; `collect` reads the completed ones. On a CPU it is the
    wall clock. Seconds are summed by name.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._pending: deque[tuple[str, torch.cuda.Event, torch.cuda.Event]] = deque()
        self.seconds: dict[str, float] = {}
        """Seconds of completed spans by name; on a GPU as of the last `collect`."""

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Time the body of the `with` block."""
        if not self._on_gpu:
            start = time.perf_counter()
            yield
            self._add(name, time.perf_counter() - start)
            return
        first = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        last = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        first.record()
        yield
        last.record()
        self._pending.append((name, first, last))

    def collect(self) -> dict[str, float]:
        """Add completed spans without waiting; returns the seconds by name."""
        while self._pending:
            finished: bool = self._pending[0][2].query()  # type: ignore[no-untyped-call]
            if not finished:
                break
            name, first, last = self._pending.popleft()
            self._add(name, first.elapsed_time(last) / 1000.0)
        return dict(self.seconds)

    def _add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds


@contextlib.contextmanager
def timed_phase(phases: dict[StepPhase, float], phase: StepPhase) -> Iterator[None]:
    """Add the host seconds of the body of the `with` block to its phase of the step."""
    start = time.perf_counter()
    yield
    phases[phase] += time.perf_counter() - start
