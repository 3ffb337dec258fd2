"""What the caller of an operation asks of its kernels: one frozen object in one context variable.

Modules are called by torch, so what their operations need to know cannot be an argument. Autograd
runs backward passes on threads of its own, with the defaults: kernels save what they need there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from esper.leyline.compute import KernelName


class Headroom:
    """Space for rows that will be joined to an activation, behind those a kernel writes.

    Whoever allocates the activation takes the space along, so that joining copies only the new
    rows. Only for kernels whose output nothing else refers to, not even their backward pass.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._buffer: Tensor | None = None

    def hold(self, buffer: Tensor) -> Tensor:
        """Keep a buffer with the headroom at its end; return the rows before it."""
        self._buffer = buffer
        return buffer[: len(buffer) - self.rows]

    def whole(self, h: Tensor) -> Tensor | None:
        """Return `h` with the headroom behind it; None if it is not in the buffer held last."""
        buffer = self._buffer
        if buffer is None or h.data_ptr() != buffer.data_ptr():
            return None
        same = h.shape[1:] == buffer.shape[1:] and h.stride() == buffer.stride()
        return buffer if same and len(h) + self.rows == len(buffer) else None


class SharedInput:
    """An input that many rows read, and its taps, laid out once for all of them."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.taps: dict[int, Tensor] = {}
        """Kernel size -> taps."""


@dataclass(frozen=True, slots=True)
class KernelScope:
    """Settings of operations; shape letters: E members, R rows of the kernels inside."""

    kernels: KernelName = "own"
    """Used where they are available."""
    torch_convolutions: bool = False
    """Every convolution is torch's own, for counting MACs by its definition."""
    active_E: Tensor | None = None
    """Members whose rows are computed where kernels can skip the others; None: all."""
    live_R: Tensor | None = None
    """float32. Kernels skip rows where it is not above 0. At 0 zeros come out; below 0, for
    padding, nobody reads what comes out: activations and their gradients stay as allocated.
    None: all rows are computed."""
    headroom: Headroom | None = None
    """Behind the activations that kernels allocate."""
    shared_input: SharedInput | None = None
    """For passes that compute no gradients."""


_scope: ContextVar[KernelScope] = ContextVar("kernel_scope", default=KernelScope())  # noqa: B039


def current_scope() -> KernelScope:
    """Return the settings here."""
    return _scope.get()


@contextmanager
def kernel_scope(**changes: Any) -> Iterator[None]:
    """Change fields of the scope inside the block: `with kernel_scope(kernels="fused"):`."""
    token = _scope.set(replace(_scope.get(), **changes))
    try:
        yield
    finally:
        _scope.reset(token)
