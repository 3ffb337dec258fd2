"""Layers of torch at another size: which sizes a layer has, and a fresh one in its place."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

from esper.kasmina.layers.torch_arguments import constructor_arguments, torch_class
from esper.kasmina.tracing.initial_weights import Initialisation
from esper.leyline.errors import EsperError

Sizes = dict[str, Any]
"""Arguments of a layer's constructor that hold its sizes."""
Scale = Callable[[int], int]
GENERATORS: Final = (
    nn.Linear, _ConvNd, nn.Embedding, nn.EmbeddingBag, nn.RNNBase, nn.RNNCellBase, nn.Bilinear,
)  # fmt: skip
"""Layers that choose the width of their output; a depthwise convolution does not."""
RESIZABLE: Final = (
    *GENERATORS, _BatchNorm, _InstanceNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.PReLU,
    nn.MultiheadAttention, nn.Unflatten,
)  # fmt: skip


def is_depthwise(layer: nn.Module) -> bool:
    """Whether each output channel is computed from one input channel."""
    return isinstance(layer, _ConvNd) and 1 < layer.groups == layer.in_channels


def is_frozen(layer: nn.Module) -> bool:
    """Whether a layer has weights and none of them trains."""
    parameters = list(layer.parameters())
    return bool(parameters) and not any(p.requires_grad for p in parameters)


def output_width(layer: nn.Module) -> int:
    """Return the width that a layer of `GENERATORS` chooses."""
    names = ("out_features", "out_channels", "embedding_dim", "hidden_size")
    return next(int(getattr(layer, name)) for name in names if hasattr(layer, name))


def sizes_for(layer: nn.Module, given: list[Tensor], scale: Scale, heads: Scale) -> Sizes:
    """Return the sizes a layer needs for these inputs; `scale` chooses the output's."""
    x = given[0]
    if isinstance(layer, nn.Bilinear):
        out = scale(layer.out_features)
        return {
            "in1_features": x.shape[-1],
            "in2_features": given[1].shape[-1],
            "out_features": out,
        }
    if isinstance(layer, nn.Linear):
        return {"in_features": x.shape[-1], "out_features": scale(layer.out_features)}
    if isinstance(layer, _ConvNd):
        return _convolution_sizes(layer, x.shape[-1 - len(layer.kernel_size)], scale)
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return {"embedding_dim": scale(layer.embedding_dim)}
    if isinstance(layer, nn.RNNBase | nn.RNNCellBase):
        return {"input_size": x.shape[-1], "hidden_size": scale(layer.hidden_size)}
    if isinstance(layer, nn.MultiheadAttention):
        widths = [value.shape[-1] for value in given[:3]] + [x.shape[-1]] * (3 - len(given))
        sizes = dict(zip(("embed_dim", "kdim", "vdim"), widths, strict=False))
        return sizes | {"num_heads": heads(layer.num_heads)}
    return _passing_sizes(layer, x)


def _passing_sizes(layer: nn.Module, x: Tensor) -> Sizes:
    """Return the sizes of a layer that keeps the width of its input."""
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        return {"normalized_shape": tuple(x.shape[-len(layer.normalized_shape) :])}
    if isinstance(layer, nn.PReLU):
        return {"num_parameters": 1 if layer.num_parameters == 1 else x.shape[1]}
    if isinstance(layer, nn.Unflatten):
        old = tuple(layer.unflattened_size)
        return {"unflattened_size": (x.shape[layer.dim] // math.prod(old[1:]), *old[1:])}
    if isinstance(layer, nn.GroupNorm):
        return {"num_channels": x.shape[1]}
    return {"num_features": x.shape[1]}


def _convolution_sizes(layer: _ConvNd, channels: int, scale: Scale) -> Sizes:
    if not is_depthwise(layer):
        return {"in_channels": channels, "out_channels": scale(layer.out_channels)}
    out = channels * (layer.out_channels // layer.in_channels)
    return {"in_channels": channels, "out_channels": out, "groups": channels}


def _fresh_layer(layer: nn.Module, sizes: Sizes) -> nn.Module:
    """Return a new layer of the torch class with other sizes and its default initialisation."""
    kind = torch_class(layer)
    return kind(**(constructor_arguments(layer, kind) | sizes))


_OWN_STATE: Final = ("training", "_modules", "_parameters", "_buffers")
_HOOKS: Final = ("_hooks", "_hooks_with_kwargs", "_hooks_always_called")
"""What the names of `nn.Module`'s hooks end with."""


@dataclass(slots=True, eq=False)
class Resizer:
    """Puts fresh layers and tensors into one model, where tied weights stay tied."""

    model: nn.Module
    initialisation: Initialisation
    """Draws the values."""
    _new: dict[int, tuple[nn.Parameter, nn.Parameter]] = field(default_factory=dict)
    """Id of a parameter of the user's -> itself (so that the id stays its own), its successor."""

    def layer(self, path: str, sizes: Sizes) -> None:
        """Turn a layer into one of other sizes; its hooks and the user's attributes stay."""
        layer = self.model.get_submodule(path)
        fresh = _fresh_layer(layer, sizes)
        for owner, part in fresh.named_modules():
            whole = f"{path}.{owner}" if path and owner else path or owner
            self._replace(whole, layer.get_submodule(owner), part)

    def _replace(self, path: str, old: nn.Module, fresh: nn.Module) -> None:
        if old._parameters.keys() != fresh._parameters.keys():
            raise EsperError(f"{path} has a weight that is computed from others (weight norm?)")
        for name, new in fresh._parameters.items():
            known = old._parameters[name]
            if new is not None and known is not None:
                full = f"{path}.{name}" if path else name
                drawn = self.initialisation.redraw(full, known, new.data, fresh)
                new.data = drawn.to(known.dtype)
                new.requires_grad_(known.requires_grad)
                fresh._parameters[name] = self._successor(path, known, new)
            old._parameters[name] = fresh._parameters[name]
        for name, buffer in fresh._buffers.items():
            if name in old._buffers:
                old._buffers[name] = buffer
        for name, value in fresh.__dict__.items():
            if name not in _OWN_STATE and not name.endswith(_HOOKS):
                old.__dict__[name] = value

    def _successor(self, path: str, old: nn.Parameter, new: nn.Parameter) -> nn.Parameter:
        found = self._new.setdefault(id(old), (old, new))[1]
        if found.shape != new.shape:
            raise EsperError(f"{path} shares a weight that needs two shapes")
        return found

    def tensor(self, name: str, shape: tuple[int, ...]) -> None:
        """Resize a tensor that is no layer's: parameters are drawn again, others repeat.

        What does not train is cut off, or starts over at its end.
        """
        owner, _, leaf = name.rpartition(".")
        module = self.model.get_submodule(owner)
        old: Tensor = getattr(module, leaf)
        value = old.detach()
        if isinstance(old, nn.Parameter) and old.requires_grad:
            value = self.initialisation.redraw(name, value, value.new_empty(shape))
        else:
            for axis, size in enumerate(shape):
                index = torch.arange(size) % value.shape[axis]
                value = value.index_select(axis, index)
        if isinstance(old, nn.Parameter):
            new = nn.Parameter(value, old.requires_grad)
            module._parameters[leaf] = self._successor(name, old, new)
        elif leaf in module._buffers:
            module._buffers[leaf] = value
        else:
            module.__dict__[leaf] = value
