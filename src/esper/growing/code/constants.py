"""Tensors with fixed values as source: masks, positions, tables."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from torch import Tensor

_MAX_NUMBERS: Final = 256
"""Of a tensor that is written out."""


def constant_source(value: Tensor) -> str | None:
    """An expression of a tensor's value; None: it is too long, and no formula is known."""
    value = value.detach().cpu()
    for text, found in _formulas(value):
        made = found.to(value.dtype)
        if made.shape == value.shape and torch.allclose(made, value, 1e-5, 1e-5, equal_nan=True):
            return text
    return _written_out(value) if value.numel() <= _MAX_NUMBERS else None


def _dtype(value: Tensor, usual: torch.dtype = torch.float32) -> str:
    return "" if value.dtype == usual else f", dtype={value.dtype}"


def _sizes(value: Tensor) -> str:
    return ", ".join(map(str, value.shape)) or "()"


def _formulas(value: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Candidates: source and what it gives."""
    if not value.numel():
        yield f"torch.empty({_sizes(value)}{_dtype(value)})", value
        return
    first, kind = value.flatten()[0].item(), value.dtype
    if bool((value == value.flatten()[0]).all()):
        yield _full(value, first), value
    size = max(value.shape, default=1)
    if value.numel() == size:
        start, view = torch.arange(size), _viewed(value, (size,))
        yield f"torch.arange({size}{_dtype(value, torch.int64)}){view}", start.view(value.shape)
    if value.ndim >= 2 and value.numel() == value.shape[-1] * value.shape[-2]:
        yield from _squares(value, kind)


def _full(value: Tensor, number: float) -> str:
    names = {0: "zeros", 1: "ones"}
    if number in names:
        return f"torch.{names[int(number)]}({_sizes(value)}{_dtype(value)})"
    shown = f'float("{number}")' if not math.isfinite(number) else repr(number)
    inferred = torch.tensor(number).dtype
    return f"torch.full({tuple(value.shape)}, {shown}{_dtype(value, inferred)})"


def _viewed(value: Tensor, shape: tuple[int, ...]) -> str:
    return "" if tuple(value.shape) == shape else f".view({_sizes(value)})"


def _squares(value: Tensor, kind: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Masks, the identity, sinusoidal positions."""
    rows, columns = value.shape[-2:]
    view = _viewed(value, (rows, columns))
    ones, typed = torch.ones(rows, columns), f"torch.ones({rows}, {columns}{_dtype(value)})"
    yield (
        f"torch.eye({rows}, {columns}{_dtype(value)}){view}",
        torch.eye(rows, columns).view(value.shape),
    )
    for side, made in (("tril", torch.tril), ("triu", torch.triu)):
        for diagonal in (0, 1, -1):
            given = str(diagonal) if diagonal else ""
            yield f"{typed}.{side}({given}){view}", made(ones, diagonal).view(value.shape)
            endless = torch.full((rows, columns), -math.inf)
            text = f'torch.full(({rows}, {columns}), float("-inf")).{side}({given}){view}'
            yield text, made(endless, diagonal).view(value.shape)
    if kind.is_floating_point:
        yield from _waves(value, view)


def _waves(value: Tensor, view: str) -> Iterator[tuple[str, Tensor]]:
    """Positions as sines and cosines: in turn, or of rotations, once or for both halves."""
    rows, columns = value.shape[-2:]
    if columns % 2 == 0:
        made = angles(rows, columns)
        waves = torch.stack([made.sin(), made.cos()], 2).flatten(1)
        text = f"angles({rows}, {columns})"
        in_turn = f"torch.stack([{text}.sin(), {text}.cos()], 2).flatten(1)"
        yield f"{in_turn}{view}", waves.view(value.shape)
        for wave in ("cos", "sin"):
            halves = getattr(torch.cat([made, made], 1), wave)()
            yield f"torch.cat(2 * [{text}], 1).{wave}(){view}", halves.view(value.shape)
    for wave in ("cos", "sin"):
        found = getattr(angles(rows, 2 * columns), wave)()
        yield f"angles({rows}, {2 * columns}).{wave}(){view}", found.view(value.shape)


def angles(length: int, width: int) -> torch.Tensor:
    """Angles of positions, at rates from 1 to 1 / 10,000."""
    rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000) / width))
    return torch.arange(length)[:, None] * rate


ANGLES: Final = inspect.getsource(angles)
"""For scripts, which may call it."""


def _written_out(value: Tensor) -> str:
    array = value.numpy() if value.dtype != torch.bfloat16 else value.float().numpy()
    return f"torch.tensor({_nested(array)}{_dtype(value, torch.tensor(array).dtype)})"


def _nested(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> str:
    if not array.ndim:
        number = array.item()
        if isinstance(number, float):
            return f'float("{number}")' if not math.isfinite(number) else f"{number:.9g}"
        return repr(number)
    return "[" + ", ".join(_nested(part) for part in array) + "]"
