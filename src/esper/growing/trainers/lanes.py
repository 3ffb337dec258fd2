"""CUDA streams of a trainer, and the memory of its device.

Work of one lane runs in order; lanes overlap. A queue of work is short, so that a stop takes effect
soon, and long enough for the device never to wait for the host.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from typing import Final, Protocol

import torch

from esper.device.graphs import Recording, record_graph
from esper.leyline.user_errors import is_out_of_memory

BURST_SECONDS: Final = 0.005
"""Work that is queued at a time."""
MAX_BURST: Final = 64
HIGH: Final = -5
"""Priority of an urgent stream; a GPU that has fewer takes its highest."""


class Mark(Protocol):
    """A place in a queue of work."""

    def query(self) -> bool:
        """Whether the work before it is done."""
        ...

    def synchronize(self) -> None:
        """Wait until it is."""
        ...


class Machine(Protocol):
    """What a trainer needs of a device; tests have a fake one."""

    def on(self, lane: int | None) -> contextlib.AbstractContextManager[object]:
        """Queue work on a lane; None: beside all lanes."""
        ...

    def mark(self) -> Mark:
        """Mark the current place in the current queue."""
        ...

    def follow(self, mark: Mark) -> None:
        """What is queued from now on waits for a mark of another queue."""
        ...

    def capture(self, work: Callable[[], None]) -> Recording:
        """Capture work on the current lane, without running it."""
        ...

    def free(self) -> int:
        """Bytes of memory that can be had."""
        ...

    def trim(self) -> None:
        """Give back memory that is kept and not used."""
        ...


class CudaMachine:
    """A GPU with some streams, the last of which come before the others."""

    def __init__(self, device: torch.device, lanes: int, urgent: int = 0) -> None:
        """`urgent`: lanes whose kernels start before those of the others, as soon as they can; so
        do those of the graphs that are captured there.
        """
        self._device = device
        first = lanes - urgent
        self._lanes = [_stream(device, n, HIGH if n >= first else 0) for n in range(lanes)]
        self._beside = _stream(device, -1)
        for stream in (*self._lanes, self._beside):  # the data were put there by others
            stream.wait_stream(torch.cuda.current_stream(device))

    def on(self, lane: int | None) -> contextlib.AbstractContextManager[object]:
        """Queue work on the stream of a lane."""
        return torch.cuda.stream(self._beside if lane is None else self._lanes[lane])

    def mark(self) -> torch.cuda.Event:
        """Record an event on the current stream."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event

    def follow(self, mark: Mark) -> None:
        """The current stream waits, the host does not."""
        assert isinstance(mark, torch.cuda.Event)
        torch.cuda.current_stream(self._device).wait_event(mark)

    def capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Capture a graph with a memory pool of its own."""
        try:
            return record_graph(work)
        except RuntimeError as error:
            self._recover()
            if not is_out_of_memory(error):
                raise
        self.trim()  # a capture cannot use blocks that the allocator has cached
        return record_graph(work)

    def _recover(self) -> None:
        """After a capture that failed torch's generator stays in its state: another one ends it."""
        anchor = torch.zeros(1, device=self._device)
        with contextlib.suppress(RuntimeError), torch.cuda.stream(_stream(self._device, -2)):
            record_graph(partial(_touch, anchor))

    def free(self) -> int:
        """Free memory of the device, without what torch keeps."""
        return torch.cuda.mem_get_info(self._device)[0]

    def trim(self) -> None:
        """Give back what torch keeps, pools of graphs that are gone included."""
        torch.cuda.empty_cache()  # SYNC: when memory is short


def _touch(tensor: torch.Tensor) -> None:
    tensor.zero_()


@cache
def _stream(device: torch.device, number: int, priority: int = 0) -> torch.cuda.Stream:
    """Kept for the next trainer: cuBLAS holds a workspace for every stream it has seen."""
    return torch.cuda.Stream(device, priority)  # type: ignore[no-untyped-call]


class Queue:
    """What one lane has before it."""

    def __init__(self) -> None:
        self._items: deque[tuple[Mark, int]] = deque()
        self._last = 0.0
        self.batch_seconds = 0.001
        """Time of a batch, as measured."""

    @property
    def burst(self) -> int:
        """Batches to queue at a time."""
        return max(1, min(MAX_BURST, int(BURST_SECONDS / self.batch_seconds)))

    def has_room(self, seconds: float) -> bool:
        """Whether more work may be queued, up to so many seconds."""
        self._collect()
        queued = sum(count for _, count in self._items)
        return len(self._items) < 2 or queued * self.batch_seconds < seconds

    def add(self, mark: Mark, batches: int) -> None:
        """So many batches were queued, up to this mark."""
        if not self._items:
            self._last = time.monotonic()
        self._items.append((mark, batches))

    def _collect(self) -> None:
        done = 0
        while self._items and self._items[0][0].query():
            done += self._items.popleft()[1]
        if not done:
            return
        now = time.monotonic()
        seen = (now - self._last) / done
        self.batch_seconds, self._last = 0.5 * (self.batch_seconds + max(seen, 1e-6)), now
