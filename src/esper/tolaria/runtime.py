"""What a run computes on and how exactly: devices, precision, profiles, timing."""

from __future__ import annotations

import contextlib
import os
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
from esper.leyline.user_errors import is_out_of_memory

NUMBER_TYPES: Final[dict[Precision, torch.dtype]] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
CUBLAS_SETTING: Final = "CUBLAS_WORKSPACE_CONFIG"
CUBLAS_EXACT: Final = (":4096:8", ":16:8")
"""Workspace sizes with which cuBLAS always takes the same path."""


def set_profile(profile: Profile, device: torch.device) -> None:
    """`exact`: bit-identical runs on one machine kind; `fast`: sums may be reordered.

    On a GPU `exact` needs cuBLAS told before torch first uses it, so the setting must be in the
    environment; on a CPU there is nothing to set.
    """
    if profile not in PROFILES:
        raise unknown_name("profile", profile, PROFILES)
    exact = profile == "exact"
    on_gpu = device.type == "cuda"
    if exact and on_gpu and os.environ.get(CUBLAS_SETTING) not in CUBLAS_EXACT:
        raise EsperError(
            f"profile exact on a GPU: set {CUBLAS_SETTING}={CUBLAS_EXACT[0]} before starting Python"
        )
    torch.use_deterministic_algorithms(exact)
    # Else torch writes NaN into every new tensor first; our kernels write every number themselves.
    deterministic.fill_uninitialized_memory = not exact  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = not exact
    torch.backends.cudnn.allow_tf32 = not exact
    torch.backends.cuda.matmul.allow_tf32 = not exact


def choose_precision(wanted: Precision, device: torch.device) -> Precision:
    """What members are computed in: `auto` is bf16 on a GPU that has it, else fp32."""
    if wanted not in PRECISIONS:
        raise unknown_name("precision", wanted, PRECISIONS)
    on_gpu = device.type == "cuda"
    if wanted == "auto":
        return "bf16" if on_gpu and torch.cuda.is_bf16_supported() else "fp32"
    if wanted != "fp32" and not on_gpu:
        raise EsperError(f"precision {wanted!r} on {device}: a CPU computes in fp32; use auto")
    return wanted


def autocast(
    device: torch.device, precision: Precision = "auto", cached: bool = True
) -> contextlib.AbstractContextManager[None]:
    """The context members are computed in; nothing where that is float32.

    `cached`: casts of weights are kept within it, which work to be captured must not do.
    """
    chosen = choose_precision(precision, device)
    if chosen == "fp32":
        return contextlib.nullcontext()
    return torch.autocast("cuda", dtype=NUMBER_TYPES[chosen], cache_enabled=cached)


@contextlib.contextmanager
def explain_out_of_memory(device: torch.device, members: int, batch_size: int) -> Iterator[None]:
    """Turn a failed allocation into one line that says what to lower."""
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
    """Times spans of device work without ever waiting for the device.

    On a GPU a span is two events in the stream; `collect` reads those the device has passed and
    leaves the rest for later. On the CPU it is the clock. Seconds add up per name.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._pending: deque[tuple[str, torch.cuda.Event, torch.cuda.Event]] = deque()
        self.seconds: dict[str, float] = {}
        """Finished spans, summed by name; on a GPU as of the last `collect`."""
        self.spans: dict[str, int] = {}
        """How many spans are in each sum."""

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Time what happens inside."""
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
        """Add up the spans that are finished by now, without waiting; seconds by name so far."""
        while self._pending:
            finished: bool = self._pending[0][2].query()  # type: ignore[no-untyped-call]
            if not finished:
                break
            name, first, last = self._pending.popleft()
            self._add(name, first.elapsed_time(last) / 1000.0)
        return dict(self.seconds)

    @property
    def pending(self) -> int:
        """Spans the device has not finished as of the last `collect`."""
        return len(self._pending)

    def _add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self.spans[name] = self.spans.get(name, 0) + 1
