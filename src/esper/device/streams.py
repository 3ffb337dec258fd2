"""CUDA streams: queue work on one, in order with the stream around it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


def new_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A stream of its own on a GPU; None on a CPU."""
    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def on_stream(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Queue work on `stream`; it starts after work queued before, and later work waits for it.

    Tensors may cross the border both ways: the device orders the two streams, the host never waits.
    """
    if stream is None:
        yield
        return
    outer = torch.cuda.current_stream(stream.device)
    stream.wait_stream(outer)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        outer.wait_stream(stream)


@contextlib.contextmanager
def any_stream() -> Iterator[None]:
    """Let gradients arrive from another stream than a parameter was first used on, without a
    warning of torch: members compute on a stream of their own, and in a capture on its branches."""
    name = "set_warn_on_accumulate_grad_stream_mismatch"  # since torch 2.10
    set_warning = getattr(torch.autograd.graph, name, lambda _: None)
    set_warning(False)
    try:
        yield
    finally:
        set_warning(True)
