"""When work is replayed instead of told to the device anew: captured graphs, one per shape of plan.

The first time a key is seen its work simply runs: that is the warm-up, and counts like any other
batch. The second time it is captured (which computes nothing) and replayed; from then on it is only
replayed. So every batch is computed exactly once. Work must read and write tensors that stay where
they are, and change nothing else: a replay runs no Python.
"""

from __future__ import annotations

import contextlib
import gc
import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Final, Literal, Protocol

import torch
from torch import Tensor

from esper.leyline.errors import EsperError, unknown_name

logger = logging.getLogger(__name__)

GraphMode = Literal["auto", "on", "off"]
GRAPH_MODES: Final = ("auto", "on", "off")
MAX_GRAPHS: Final = 64
"""Graphs kept; beyond them the one used least recently goes."""


class Recording(Protocol):
    """Work that was captured."""

    def replay(self) -> None:
        """Compute it, with the values its tensors have now."""
        ...


class Recorder(Protocol):
    """What captures work."""

    def capture(self, work: Callable[[], None]) -> Recording:
        """Record what `work` asks of the device without computing it; RuntimeError if it cannot."""
        ...


class CudaRecorder:
    """Captures CUDA graphs that share one pool of memory.

    They may, because they are replayed one after the other in one stream and leave nothing in the
    pool that is read later.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._anchor = torch.zeros(1, device=device)
        self._first = self._record(self._touch)
        """Never replayed: a pool that no graph holds could not be captured into again."""

    def _touch(self) -> None:
        self._anchor.zero_()

    def capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Record `work` on a side stream; unlike `torch.cuda.graph`, without waiting."""
        with contextlib.suppress(torch.OutOfMemoryError):
            return self._record(work)
        # SYNC: only where memory is short: a capture cannot use what batches before it left cached.
        torch.cuda.empty_cache()
        return self._record(work)

    def _record(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream), _no_collection():
            # Other threads (an order prepared ahead, telemetry) may go on meanwhile.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # the first error is the one to tell
                    graph.capture_end()
                raise
            graph.capture_end()
        current.wait_stream(self._stream)
        return graph


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """No tensor or graph is freed by Python's collector while a capture is under way."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@dataclass(frozen=True, slots=True)
class GraphReport:
    """Whether work is replayed, why, and how much of it; for people and benchmarks."""

    on: bool
    reason: str
    captures: int = 0
    replays: int = 0
    eager: int = 0
    """Times work ran as it is told: warm-ups, and all of it after a capture failed."""
    capture_seconds: float = 0.0
    """Host time spent in capturing."""
    held: int = 0
    """Graphs held now."""

    def line(self) -> str:
        """In words."""
        if not self.on:
            return f"off ({self.reason})"
        return (
            f"on ({self.reason}), {self.captures} captured in {self.capture_seconds:.2f} s, "
            f"{self.replays} replays, {self.eager} times without"
        )


def why_no_graphs(mode: GraphMode, device: torch.device, executor: str) -> str | None:
    """None where work is to be captured; else what speaks against it. `on` insists."""
    if mode not in GRAPH_MODES:
        raise unknown_name("graphs", mode, GRAPH_MODES)
    problem = None
    if device.type != "cuda":
        problem = f"graphs are for CUDA devices, this is {device}"
    elif executor != "vmap":
        problem = f"executor {executor} computes member by member"
    if mode == "on" and problem is not None:
        raise EsperError(f"graphs 'on': {problem}; use graphs 'auto'")
    return "asked for" if mode == "off" else problem


class GraphCache:
    """Captured work by key, and the buffers its inputs are copied to."""

    def __init__(
        self, recorder: Recorder, limit: int = MAX_GRAPHS, reason: str = "asked for"
    ) -> None:
        """`reason`: why its owner captures, in words, for the report."""
        self._recorder = recorder
        self._limit = limit
        self._reason = reason
        self._entries: OrderedDict[Hashable, Recording | None] = OrderedDict()
        """None: warmed up, to be captured next time."""
        self._inputs: dict[Hashable, Tensor] = {}
        self._residents: dict[int, Tensor] = {}
        self.problem: str | None = None
        """Why nothing is captured any more; None as long as all is well."""
        self.captures = self.replays = self.eager = 0
        self.capture_seconds = 0.0

    @property
    def on(self) -> bool:
        """Whether work is captured; if not, there is no use in padding it."""
        return self.problem is None

    def adopt(self, *buffers: Tensor) -> None:
        """Take these for buffers that stay where they are: `hold` gives them as they are."""
        self._residents.update((buffer.data_ptr(), buffer) for buffer in buffers)

    def hold(self, name: str, tensor: Tensor) -> Tensor:
        """The values of a tensor in a buffer that stays where it is, one per layout and type."""
        if tensor.data_ptr() in self._residents:
            return tensor
        key = (name, tensor.shape, tensor.stride(), tensor.dtype)
        if key not in self._inputs:
            self._inputs[key] = torch.empty_like(tensor)
        return self._inputs[key].copy_(tensor)

    def run(self, key: Hashable, work: Callable[[], None]) -> None:
        """Compute the work of a key once: as it is told, or by replay."""
        if self.problem is not None or key not in self._entries:
            self._run_eagerly(key, work)
            return
        self._entries.move_to_end(key)
        recording = self._entries[key] or self._capture(key, work)
        if recording is None:
            self._run_eagerly(key, work)
            return
        recording.replay()
        self.replays += 1

    def _run_eagerly(self, key: Hashable, work: Callable[[], None]) -> None:
        work()
        self.eager += 1
        if self.problem is None:
            self._entries[key] = None
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
            return None
        self.capture_seconds += perf_counter() - start
        self.captures += 1
        self._entries[key] = recording
        return recording

    def report(self) -> GraphReport:
        """What was done so far."""
        return GraphReport(
            on=self.on,
            reason=self.problem or self._reason,
            captures=self.captures,
            replays=self.replays,
            eager=self.eager,
            capture_seconds=self.capture_seconds,
            held=sum(recording is not None for recording in self._entries.values()),
        )
