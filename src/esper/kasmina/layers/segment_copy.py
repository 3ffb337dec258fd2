"""Copy a segment of a host so that it keeps the shape of a slot.

A segment that already maps the slot's activation to its own shape is copied as it is. Otherwise
strides become 1, pools go, and layers that receive the input get its width; their weights are
fresh. All other tensors keep name and shape, so they can be copied from the host. What cannot be
changed so (a pool called as a function, a kernel that shortens the image) raises with the reason.

Shape letters: B batch, C channels.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from esper.device.rng import forked_rng
from esper.kasmina.layers.layers import (
    ChannelNorm,
    Conv1d,
    Conv2d,
    Draw,
    DrawnModule,
    Linear,
    channel_groups,
)
from esper.leyline.errors import EsperError
from esper.leyline.user_errors import format_error

_POOLS: Final = (
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.LPPool1d, nn.LPPool2d, nn.LPPool3d,
)  # fmt: skip
"""Adaptive pools are not among them: they belong to a branch, as in squeeze-excite."""


@dataclass(frozen=True, slots=True, eq=False)
class _SegmentCopy:
    """A module of the segment's kind that keeps the shape of the slot."""

    module: nn.Module
    draws: dict[str, Draw]
    """Initialisation of its fresh weights."""
    same: tuple[str, ...]
    """Names of tensors with the shape they have in the segment."""
    writes_input: bool
    """Whether it modifies its input in place."""


def copy_segment(segment: nn.Module, sample: Tensor, width: int) -> _SegmentCopy:
    """Copy a segment for activations like `sample` with `width` channels; raises if impossible."""
    try:
        module = copy.deepcopy(segment)
    except Exception as error:  # whatever a user's module raises
        raise EsperError(f"it cannot be copied ({format_error(error)})") from error
    module.eval()  # running statistics stay as they are
    fresh: dict[str, Draw] = {}
    with torch.no_grad(), torch.autocast("cpu", enabled=False), forked_rng(0):
        if not _keeps_shape(module, sample):
            module = _without_strides(module)
            fresh = _widen(module, sample, width)
        given = sample.clone()
        module(given)
    before, after = _shapes(segment), _shapes(module)
    same = tuple(name for name, shape in after.items() if before[name] == shape)
    return _SegmentCopy(module.train(), fresh, same, not torch.equal(given, sample))


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {n: t.shape for n, t in (*module.named_parameters(), *module.named_buffers())}


def _keeps_shape(module: nn.Module, sample: Tensor) -> bool:
    try:
        out = module(sample.clone())
    except Exception:  # another width, most likely
        return False
    return isinstance(out, Tensor) and out.shape == sample.shape


def _without_strides(module: nn.Module) -> nn.Module:
    """Set strides to 1 and replace pools that have another one by identities."""
    for part in list(module.modules()):
        for name, child in part.named_children():
            if isinstance(child, _POOLS) and not _is_one(child.stride):
                setattr(part, name, nn.Identity())
        stride = getattr(part, "stride", 1)
        if not isinstance(part, _POOLS) and not _is_one(stride):
            part.stride = 1 if isinstance(stride, int) else (1,) * len(stride)  # type: ignore[assignment]
    return module


def _is_one(stride: Any) -> bool:
    return all(size == 1 for size in (stride if isinstance(stride, tuple) else (stride,)))


class _WrongWidth(Exception):
    """A layer receives the slot's width and expects another one."""

    def __init__(self, layer: nn.Module, widener: _Widener) -> None:
        super().__init__()
        self.layer, self.widener = layer, widener


def _widen(module: nn.Module, sample: Tensor, width: int) -> dict[str, Draw]:
    """Give layers that receive the input its width; return the draws of their weights."""
    names = {id(part): name for name, part in module.named_modules()}
    fresh: dict[str, Draw] = {}
    for _ in range(1 + len(names)):
        try:
            out = _watched(module, sample.clone(), width)
        except _WrongWidth as wrong:
            draw = wrong.widener.resize(wrong.layer, width)
            if draw is not None:
                path = names[id(wrong.layer)]
                fresh[f"{path}.weight" if path else "weight"] = draw
            continue
        except Exception as error:  # whatever a user's module raises
            raise EsperError(
                f"it fails on an activation {tuple(sample.shape)} ({format_error(error)})"
            ) from error
        if isinstance(out, Tensor) and out.shape == sample.shape:
            return fresh
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise EsperError(
            f"it turns {tuple(sample.shape)} into {shape}, even with strides of 1 and without pools"
        )
    raise EsperError(f"its layers cannot be given {width} channels")


def _watched(module: nn.Module, x: Tensor, width: int) -> object:
    """Run a module; the first layer that gets `width` channels instead of its own raises."""

    def check(layer: nn.Module, args: tuple[Any, ...]) -> None:
        widener = _widener(layer)
        if widener is None or not args or not isinstance(args[0], Tensor):
            return
        if args[0].shape[widener.axis] == width != widener.width(layer):
            raise _WrongWidth(layer, widener)

    hooks = [part.register_forward_pre_hook(check) for part in module.modules()]
    try:
        return module(x)
    finally:
        for hook in hooks:
            hook.remove()


# ---- layers whose input width can be changed ------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Widener:
    """How a kind of layer is given another width."""

    axis: int
    """Axis of the channels in its input."""
    width: Callable[[Any], int]
    """Layer -> channels it expects."""
    resize: Callable[[Any, int], Draw | None]
    """Change a layer in place; return the draw of its weight, None for a constant one."""


def _resize_conv(layer: Any, width: int) -> Draw:
    groups, out_channels = layer.groups, layer.weight.shape[0]
    if width % groups:
        raise EsperError(f"a convolution of {groups} groups cannot take {width} channels")
    layer.weight = nn.Parameter(
        layer.weight.new_zeros(out_channels, width // groups, *_kernel(layer))
    )
    if hasattr(layer, "in_channels"):
        layer.in_channels = width
    return _fresh(layer, math.sqrt(6.0 / layer.weight[0].numel()))


def _kernel(layer: Any) -> tuple[int, ...]:
    return tuple(layer.weight.shape[2:])


def _resize_linear(layer: Any, width: int) -> Draw:
    layer.weight = nn.Parameter(layer.weight.new_zeros(layer.weight.shape[0], width))
    if hasattr(layer, "in_features"):
        layer.in_features = width
    return _fresh(layer, 1.0 / math.sqrt(width))


def _fresh(layer: nn.Module, scale: float) -> Draw:
    """Return the draw of a resized weight, as our own layers draw theirs."""
    if isinstance(layer, DrawnModule):
        layer.draws = {}  # it declared the old shape's
    return Draw("uniform", scale)


def _resize_norm(layer: Any, width: int) -> None:
    if isinstance(layer, nn.GroupNorm):
        if width % layer.num_groups:
            raise EsperError(f"a norm of {layer.num_groups} groups cannot take {width} channels")
        layer.num_channels = width
    elif isinstance(layer, ChannelNorm):
        layer.groups = channel_groups(width)
    elif isinstance(layer, nn.LayerNorm):
        layer.normalized_shape = (width,)
    else:
        layer.num_features = width
    for name, start in (("weight", 1.0), ("bias", 0.0)):
        if getattr(layer, name) is not None:
            setattr(layer, name, nn.Parameter(torch.full((width,), start)))
    for name, start in (("running_mean", 0.0), ("running_var", 1.0)):
        if getattr(layer, name, None) is not None:
            setattr(layer, name, torch.full((width,), start))


_WIDENERS: Final[tuple[tuple[Any, _Widener], ...]] = (
    (
        (_ConvNd, Conv1d, Conv2d),
        _Widener(1, lambda layer: layer.weight.shape[1] * layer.groups, _resize_conv),
    ),
    ((nn.Linear, Linear), _Widener(-1, lambda layer: layer.weight.shape[1], _resize_linear)),
    (_BatchNorm, _Widener(1, lambda layer: layer.num_features, _resize_norm)),
    (nn.GroupNorm, _Widener(1, lambda layer: layer.num_channels, _resize_norm)),
    (ChannelNorm, _Widener(1, lambda layer: layer.weight.shape[0], _resize_norm)),
    (nn.LayerNorm, _Widener(-1, lambda layer: layer.normalized_shape[-1], _resize_norm)),
)
"""Kinds of layers whose width can be changed."""


def _widener(layer: nn.Module) -> _Widener | None:
    if isinstance(layer, nn.LayerNorm) and len(layer.normalized_shape) > 1:
        return None
    return next((how for kinds, how in _WIDENERS if isinstance(layer, kinds)), None)
