"""Cache of captured CUDA graphs, one per shape of work.

The first call of a key runs eagerly, which is its warm-up and counts like any other batch. The
second captures the work (which computes nothing) and replays it; later calls only replay. So every
batch is computed exactly once. Work must read and write tensors at fixed addresses and have no
other side effects: a replay runs no Python.
"""

from __future__ import annotations

import contextlib
import gc
import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from esper.leyline.compute import GRAPH_MODES, GraphMode
from esper.leyline.errors import EsperError, unknown_name

logger = logging.getLogger(__name__)

MAX_GRAPHS: Final = 64
"""Graphs kept; beyond them the one used least recently goes."""


class Recording(Protocol):
    """Captured work."""

    def replay(self) -> None:
        """Run it with the current values of its tensors."""
        ...


class Recorder(Protocol):
    """Captures work."""

    def capture(self, work: Callable[[], None]) -> Recording:
        """Capture the device work of `work` without running it; RuntimeError if that fails."""
        ...


class CudaRecorder:
    """Captures CUDA graphs that share one memory pool.

    Sharing is safe because graphs are replayed one at a time on one stream, and nothing in the pool
    is read after its replay.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._anchor = torch.zeros(1, device=device)
        self._first = self._record(self._touch)
        """Never replayed: it keeps the pool alive, which cannot be captured into again once
        unused."""

    def _touch(self) -> None:
        self._anchor.zero_()

    def capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Capture `work` on a side stream; unlike `torch.cuda.graph`, without a synchronise."""
        with contextlib.suppress(torch.OutOfMemoryError):
            return self._record(work)
        # SYNC: only when memory is short: a capture cannot use blocks that the allocator has
        # cached.
        torch.cuda.empty_cache()
        return self._record(work)

    def _record(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            graph = record_graph(work, self._pool)
        current.wait_stream(self._stream)
        return graph


_failed: Final[list[torch.cuda.CUDAGraph]] = []
"""Graphs whose capture failed: torch's allocator may still query their state."""


def record_graph(work: Callable[[], None], pool: Any = None) -> torch.cuda.CUDAGraph:
    """Capture `work` on the current stream, which is not the default one.

    `pool`: memory pool that it shares; None: it has its own, which goes with the graph.
    """
    graph = torch.cuda.CUDAGraph()
    used = torch.cuda.graph_pool_handle() if pool is None else pool
    with _no_collection():
        # Other threads (the next epoch's order, telemetry) may use CUDA meanwhile.
        graph.capture_begin(pool=used, capture_error_mode="thread_local")
        try:
            work()
            graph.capture_end()
        except BaseException:
            _give_up(graph, used)
            raise
    return graph


def _give_up(graph: torch.cuda.CUDAGraph, pool: Any) -> None:
    """End a capture that failed; torch's own end stops at the first error and leaves the rest."""
    _failed.append(graph)
    device = torch.cuda.current_device()
    with contextlib.suppress(RuntimeError):  # the first error is the one to report
        graph.capture_end()
    try:
        graph.pool()
    except RuntimeError:  # it was not ended, so it does not release its pool by itself
        for end in (torch._C._cuda_endAllocateToPool, torch._C._cuda_releasePool):
            with contextlib.suppress(RuntimeError):
                end(device, pool)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Disable Python's garbage collector: a tensor or graph freed during a capture breaks it."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@dataclass(frozen=True, slots=True)
class GraphReport:
    """Statistics of a graph cache, for display and benchmarks."""

    on: bool
    reason: str
    captures: int = 0
    replays: int = 0
    eager: int = 0
    """Eager runs: warm-ups, and everything after a failed capture."""
    capture_seconds: float = 0.0
    """Host time spent in capturing."""
    held: int = 0
    """Graphs in the cache."""

    def line(self) -> str:
        """Format as one line."""
        if not self.on:
            return f"off ({self.reason})"
        return (
            f"on ({self.reason}), {self.captures} captured in {self.capture_seconds:.2f} s, "
            f"{self.replays} replays, {self.eager} times without"
        )


def reason_against_graphs(
    mode: GraphMode, device: torch.device, executor: str = "vmap"
) -> str | None:
    """Return None if work is to be captured, else why not; mode `on` raises instead."""
    if mode not in GRAPH_MODES:
        raise unknown_name("graphs", mode, GRAPH_MODES)
    problem = None
    if device.type != "cuda":
        problem = f"graphs are for CUDA devices, this is {device}"
    elif executor == "sharded":
        problem = "the ranks of executor 'sharded' exchange messages in every batch"
    if mode == "on" and problem is not None:
        raise EsperError(f"graphs 'on': {problem}; use graphs 'auto'")
    return "requested" if mode == "off" else problem


class GraphCache:
    """Captured work by key, and the static buffers of its inputs."""

    def __init__(
        self,
        recorder: Recorder,
        limit: int = MAX_GRAPHS,
        reason: str = "requested",
        patience: int = 1,
    ) -> None:
        """`reason`: why work is captured, for the report; `patience`: eager runs before it is."""
        self._recorder = recorder
        self._limit = limit
        self._reason = reason
        self._patience = patience
        self._entries: OrderedDict[Hashable, Recording | int] = OrderedDict()
        """Captured work, or how often it ran eagerly."""
        self._inputs: dict[Hashable, Tensor] = {}
        self._residents: dict[int, Tensor] = {}
        self.problem: str | None = None
        """Why capturing was given up; None while it works."""
        self.captures = self.replays = self.eager = 0
        self.capture_seconds = 0.0

    @property
    def on(self) -> bool:
        """Whether work is captured; otherwise padding it is useless."""
        return self.problem is None

    def register_static(self, *buffers: Tensor) -> None:
        """Declare buffers whose addresses never change: `static_input` returns them as they are."""
        self._residents.update((buffer.data_ptr(), buffer) for buffer in buffers)

    def static_input(self, name: str, tensor: Tensor) -> Tensor:
        """Copy a tensor into a buffer at a fixed address, one per name, layout and dtype."""
        if tensor.data_ptr() in self._residents:
            return tensor
        key = (name, tensor.shape, tensor.stride(), tensor.dtype)
        if key not in self._inputs:
            self._inputs[key] = torch.empty_like(tensor)
        return self._inputs[key].copy_(tensor)

    def run(self, key: Hashable, work: Callable[[], None]) -> None:
        """Run the work of a key once, eagerly or by replay."""
        found = self._entries.get(key, 0)
        if self.problem is None and isinstance(found, int) and found >= self._patience:
            found = self._capture(key, work) or found
        if isinstance(found, int):  # always, once capturing was given up
            self._run_eagerly(key, work, found)
            return
        self._entries.move_to_end(key)
        found.replay()
        self.replays += 1

    def _run_eagerly(self, key: Hashable, work: Callable[[], None], before: int) -> None:
        work()
        self.eager += 1
        if self.problem is None:
            self._entries[key] = before + 1
            self._entries.move_to_end(key)
            while len(self._entries) > self._limit:
                self._entries.popitem(last=False)

    def _capture(self, key: Hashable, work: Callable[[], None]) -> Recording | None:
        start = perf_counter()
        try:
            recording = self._recorder.capture(work)
        except RuntimeError as error:
            line = " ".join(str(error).split("\n")[0].split()) or type(error).__name__
            self.problem = f"a capture failed: {line}"
            self._entries.clear()
            logger.warning("graphs off from here on, results stay the same: %s", self.problem)
            logger.debug("the capture that failed", exc_info=True)
            return None
        self.capture_seconds += perf_counter() - start
        self.captures += 1
        self._entries[key] = recording
        return recording

    def report(self) -> GraphReport:
        """Return the statistics so far."""
        return GraphReport(
            on=self.on,
            reason=self.problem or self._reason,
            captures=self.captures,
            replays=self.replays,
            eager=self.eager,
            capture_seconds=self.capture_seconds,
            held=sum(not isinstance(found, int) for found in self._entries.values()),
        )
