"""How activations lie in memory where our kernels run: channels last, each row of members dense.

Tensors keep their shape `[R, B, C, H, W]`; in memory the channels of a pixel are neighbours, then
the pixels of an image, then the images of a row. An input of three channels is given four places
a pixel, so that a pixel is one aligned load; the fourth holds 0.

Shape letters: R rows, B batch, C channels, H W.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from esper.kasmina.layout import padded_channels


def pixel_stride(x: Tensor) -> int | None:
    """Places of a pixel if `x` `[R, B, C, H, W]` lies channels last, else None."""
    _, batch, channels, height, width = x.shape
    step = x.stride(4) if width > 1 else x.stride(3) if height > 1 else channels
    wanted = (height * width * step, 1, width * step, step)
    sizes, strides = x.shape[1:], x.stride()[1:]
    fits = all(n == 1 or s == w for n, s, w in zip(sizes, strides, wanted, strict=True))
    return step if fits and step >= channels and batch > 0 else None


def laid_out(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, int]:
    """`x` in that layout and type, and the places of a pixel; itself where it is so already."""
    rows, batch, channels, height, width = x.shape
    step = padded_channels(channels)
    if x.dtype == dtype and pixel_stride(x) == step:
        return x, step
    own = torch.empty if step == channels else torch.zeros
    buffer = own(rows, batch, height, width, step, dtype=dtype, device=x.device)
    out = buffer[..., :channels].permute(0, 1, 4, 2, 3)
    out.copy_(x)
    return out, step


def empty_activation(
    shape: Sequence[int], like: Tensor, dtype: torch.dtype | None = None
) -> Tensor:
    """A new activation `[R, B, C, H, W]` in that layout, of the type of `like` or another."""
    rows, batch, channels, height, width = shape
    lying = (rows, batch, height, width, channels)
    buffer = torch.empty(lying, dtype=dtype or like.dtype, device=like.device)
    return buffer.permute(0, 1, 4, 2, 3)


def next_power(n: int) -> int:
    """The smallest power of two that is `n` or more."""
    return 1 << (n - 1).bit_length()


def dense_pixels(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` channels last, without a place between pixels."""
    if x.dtype == dtype and pixel_stride(x) == x.shape[2]:
        return x
    return empty_activation(x.shape, x, dtype).copy_(x)


def dense_inside(value: Tensor) -> Tensor:
    """Parameters of rows `[R, ...]` without gaps inside a row; rows may lie apart."""
    return value if value[0].is_contiguous() else value.contiguous()


Told = ParamSpec("Told")
Made = TypeVar("Made")


def launched(launch: Callable[Told, Made]) -> Callable[Told, Made]:
    """Kernels start on the device of the first tensor, whichever is current."""

    @wraps(launch)
    def there(*told: Told.args, **settings: Told.kwargs) -> Made:
        with torch.cuda.device_of(told[0]):
            return launch(*told, **settings)

    return there


def row_stride(x: Tensor) -> int:
    """From one row to the next; 0 where all rows read the same."""
    return 0 if x.shape[0] == 1 else x.stride(0)


def stacked(value: Tensor, dim: int | None, rows: int) -> Tensor:
    """A value as vmap hands it over, rows first; one that all rows share gets `rows` of them."""
    if dim is None:
        return value.expand(rows, *value.shape)
    return value.movedim(dim, 0)


class Prepared(torch.autograd.Function):
    """An input in the layout and type of our kernels; for one row or `[R, ...]` of them."""

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
    """`Prepared`, with a type."""
    out: Tensor = Prepared.apply(x, dtype)
    return out
