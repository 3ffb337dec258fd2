"""Channels-last layout of activations in our kernels, with dense rows.

Tensors keep their shape `[R, B, C, H, W]`; in memory the channels of a pixel are adjacent, then the
pixels of an image, then the images of a row. Inputs with three channels are stored with four, so
that a pixel is one aligned load; the fourth is 0.

Shape letters: R rows, B batch, C channels, H W.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from esper.kasmina.ops.layout import padded_channels


def pixel_stride(x: Tensor) -> int | None:
    """Return the stored channels of a pixel if `x` `[R, B, C, H, W]` is channels last, else
    None."""
    _, batch, channels, height, width = x.shape
    step = x.stride(4) if width > 1 else x.stride(3) if height > 1 else channels
    wanted = (height * width * step, 1, width * step, step)
    sizes, strides = x.shape[1:], x.stride()[1:]
    fits = all(n == 1 or s == w for n, s, w in zip(sizes, strides, wanted, strict=True))
    return step if fits and step >= channels and batch > 0 else None


def laid_out(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, int]:
    """Return `x` in that layout and type with its pixel stride; no copy if it already is."""
    rows, batch, channels, height, width = x.shape
    step = padded_channels(channels)
    if x.dtype == dtype and pixel_stride(x) == step:
        return x, step
    own = torch.empty if step == channels else torch.zeros
    buffer = own(rows, batch, height, width, step, dtype=dtype, device=x.device)
    out = buffer[..., :channels].permute(0, 1, 4, 2, 3)
    out.copy_(x)
    return out, step


class Room:
    """Space for rows that will be joined to an activation, behind those a kernel writes.

    Whoever allocates the activation inside `leave_room` takes the space along, so that joining
    copies only the new rows. Only for kernels whose output nothing else refers to, not even their
    backward pass.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._buffer: Tensor | None = None

    def allocate(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Allocate an activation with room behind it."""
        rows, *inside = shape
        self._buffer = empty_activation((rows + self.rows, *inside), like)
        return self._buffer[:rows]

    def whole(self, h: Tensor) -> Tensor | None:
        """Return `h` with the room behind it; None if it is not what was allocated here last."""
        buffer = self._buffer
        if buffer is None or h.data_ptr() != buffer.data_ptr():
            return None
        same = h.shape[1:] == buffer.shape[1:] and h.stride() == buffer.stride()
        return buffer if same and len(h) + self.rows == len(buffer) else None


_room: ContextVar[Room | None] = ContextVar("room", default=None)


@contextmanager
def leave_room(room: Room | None) -> Iterator[None]:
    """Let activations inside the block have this room behind them."""
    token = _room.set(room)
    try:
        yield
    finally:
        _room.reset(token)


_live: ContextVar[Tensor | None] = ContextVar("live", default=None)


@contextmanager
def only_live(live_R: Tensor | None) -> Iterator[None]:
    """Let kernels inside the block skip rows where `live_R` (float32) is not above 0.

    At 0 zeros come out. Below 0, for padding, nobody reads what comes out: activations and their
    gradients are left as they were allocated. None: all rows are computed. What a kernel saves for
    backward includes it.
    """
    token = _live.set(live_R)
    try:
        yield
    finally:
        _live.reset(token)


def live_rows(rows: int) -> Tensor | None:
    """Return which of a kernel's rows are computed; None: all."""
    live = _live.get()
    return live if live is not None and len(live) == rows else None


def skipping(rows: int, like: Tensor) -> tuple[Tensor, bool]:
    """Return arguments of a kernel: which rows are computed (any tensor, if all), and whether."""
    live = live_rows(rows)
    return (like, False) if live is None else (live, True)


def output_activation(shape: Sequence[int], like: Tensor) -> Tensor:
    """Allocate the output of a kernel, with the room that is asked for."""
    room = _room.get()
    return empty_activation(shape, like) if room is None else room.allocate(shape, like)


def empty_activation(
    shape: Sequence[int], like: Tensor, dtype: torch.dtype | None = None
) -> Tensor:
    """Allocate an activation `[R, B, C, H, W]` in that layout, of the type of `like` or another."""
    rows, batch, channels, height, width = shape
    lying = (rows, batch, height, width, channels)
    buffer = torch.empty(lying, dtype=dtype or like.dtype, device=like.device)
    return buffer.permute(0, 1, 4, 2, 3)


def next_power(n: int) -> int:
    """Return the smallest power of two that is `n` or more."""
    return 1 << (n - 1).bit_length()


def dense_pixels(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `x` channels last, without gaps between pixels."""
    if x.dtype == dtype and pixel_stride(x) == x.shape[2]:
        return x
    return empty_activation(x.shape, x, dtype).copy_(x)


def dense_inside(value: Tensor) -> Tensor:
    """Return parameters of rows `[R, ...]` without gaps inside a row; rows may be strided."""
    return value if value[0].is_contiguous() else value.contiguous()


Params = ParamSpec("Params")
Result = TypeVar("Result")


def launched(launch: Callable[Params, Result]) -> Callable[Params, Result]:
    """Decorator that launches kernels on the device of the first tensor."""

    @wraps(launch)
    def there(*args: Params.args, **settings: Params.kwargs) -> Result:
        with torch.cuda.device_of(args[0]):
            return launch(*args, **settings)

    return there


def row_stride(x: Tensor) -> int:
    """Return the stride between rows; 0 if all rows are the same."""
    return 0 if x.shape[0] == 1 else x.stride(0)


def stacked(value: Tensor, dim: int | None, rows: int) -> Tensor:
    """Return a vmapped value with rows first; a shared one is expanded to `rows`."""
    if dim is None:
        return value.expand(rows, *value.shape)
    return value.movedim(dim, 0)


class Prepared(torch.autograd.Function):
    """Converts an input to the layout and type of our kernels; one row or `[R, ...]`."""

    @staticmethod
    def forward(x: Tensor, dtype: torch.dtype) -> Tensor:
        out = laid_out(x if x.ndim == 5 else x[None], dtype)[0]
        out = out if x.ndim == 5 else out[0]
        return out.view_as(out) if out is x else out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.dtype = inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.to(ctx.dtype), None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, int]:
        return Prepared.apply(stacked(x, in_dims[0], info.batch_size), dtype), 0


def prepare(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Typed `Prepared.apply`."""
    out: Tensor = Prepared.apply(x, dtype)
    return out
