"""Channels-last layout of activations in our kernels, with dense rows.

Tensors keep their shape `[R, B, C, H, W]`; in memory the channels of a pixel are adjacent, then the
pixels of an image, then the images of a row. Inputs with three channels are stored with four, so
that a pixel is one aligned load; the fourth is 0.

Shape letters: R rows, B batch, C channels, H W.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from esper.kasmina.ops.kernel_scope import current_scope
from esper.kasmina.ops.layout import padded_channels
from esper.leyline.errors import EsperError


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


def live_rows(rows: int) -> Tensor | None:
    """Return which of a kernel's rows are computed; None: all, as of one that all rows share."""
    live = current_scope().live_R
    if live is None or len(live) == rows:
        return live
    if rows == 1:
        return None
    raise EsperError(
        f"kernel of {rows} rows: the mask of live rows has {len(live)}; "
        "set `live_R` of the kernel scope to a mask of these rows, or to None"
    )


def skipping(rows: int, like: Tensor) -> tuple[Tensor, bool]:
    """Return arguments of a kernel: which rows are computed (any tensor, if all), and whether."""
    live = live_rows(rows)
    return (like, False) if live is None else (live, True)


def output_activation(shape: Sequence[int], like: Tensor) -> Tensor:
    """Allocate the output of a kernel, with the headroom that is asked for."""
    headroom = current_scope().headroom
    if headroom is None:
        return empty_activation(shape, like)
    rows, *inside = shape
    return headroom.hold(empty_activation((rows + headroom.rows, *inside), like))


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


class _Prepared(torch.autograd.Function):
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
        return _Prepared.apply(stacked(x, in_dims[0], info.batch_size), dtype), 0


def prepare(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Typed `_Prepared.apply`."""
    out: Tensor = _Prepared.apply(x, dtype)
    return out


# ---- launches over rows -----------------------------------------------------------------------

MAX_ROWS: Final = 65_535
"""Maximum size of the second and third axis of a CUDA grid; the first has 2**31 - 1."""


def row_launches(rows: int) -> Iterator[tuple[int, int]]:
    """Yield first row and number of rows of each launch: one, unless a grid is too small."""
    for first in range(0, rows, MAX_ROWS):
        yield first, min(MAX_ROWS, rows - first)


# ---- rows that steps of seeds read and change in place ------------------------------------------

IN_PLACE: Final = 2
"""SKIPS of a kernel (`grids.is_padding`) that works on rows of another tensor."""


class Placement(NamedTuple):
    """Rows of an activation that a step reads or changes in place."""

    rows: Tensor
    """`[G]`"""
    alpha: Tensor
    """`[G]`; an entry with alpha 0 is unused and touches no row."""
    takes: bool
    """The step reads these rows; backward adds the gradient of its input to them."""
    adds: bool
    """Alpha times its output is added to them; backward reads its gradient there, times alpha."""


def placed(count: int, like: Tensor, place: Placement | None) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return arguments of a kernel: rows, alpha, which entries are computed, and SKIPS; without a
    placement the first two are any tensor."""
    if place is not None:
        return place.rows, place.alpha, place.alpha, IN_PLACE
    return like, like, *skipping(count, like)
