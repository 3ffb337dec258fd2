"""Branches of a captured CUDA graph: kernels that need not wait for each other.

In a capture, work runs on a stream beside the current one, which becomes a branch of the graph; its
backward pass runs there too, because autograd uses the stream of the forward pass and orders what
crosses streams. A tensor that crosses is kept from reuse until the capture ends, for the allocator
orders reuse within one stream only. Elsewhere branches are plain calls: launches are what costs
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Final, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
MAX_STREAMS: Final = 8
"""Streams of a lane beside the current one; further branches share them."""


@cache
def _stream(device: torch.device, number: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Branches:
    """Runs pieces of work that may overlap; after the block all are joined again."""

    def __init__(self, device: torch.device, lane: int = 0) -> None:
        """`lane`: branches of different lanes share no streams, so they may overlap too."""
        self._device, self._lane = device, lane
        self._main: torch.cuda.Stream | None = None
        self._used: list[torch.cuda.Stream] = []

    def __enter__(self) -> Branches:
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            self._main = torch.cuda.current_stream(self._device)
        return self

    def __exit__(self, *raised: object) -> None:
        for side in self._used:
            assert self._main is not None
            self._main.wait_stream(side)

    def run(self, work: Callable[[], T], *reads: Tensor | None) -> T:
        """Return what `work` computes; `reads`: tensors of this pass that it reads."""
        if self._main is None:
            return work()
        side = _stream(self._device, self._lane * MAX_STREAMS + len(self._used) % MAX_STREAMS)
        self._used.append(side)
        side.wait_stream(self._main)
        for tensor in reads:
            if tensor is not None:
                tensor.record_stream(side)
        with torch.cuda.stream(side):
            out = work()
        for tensor in _tensors(out):
            tensor.record_stream(self._main)
        return out


def _tensors(out: object) -> Iterator[Tensor]:
    """Yield the tensors of a result, which may be nested in tuples, lists and dicts."""
    if isinstance(out, Tensor):
        yield out
    elif isinstance(out, tuple | list | dict):
        for part in out.values() if isinstance(out, dict) else out:
            yield from _tensors(part)
