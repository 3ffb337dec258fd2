"""Constructor arguments of torch's layers, read from a layer and checked by building it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from esper.kasmina.layers.torch_arguments import constructor_arguments
from esper.kasmina.plain_saves.vocabulary import LAYERS
from esper.leyline.errors import EsperError, parse_error_line, shown, unknown_name

_KINDS: Final = {kind: name for name, kind in LAYERS.items()}


def layer_kind(layer: nn.Module) -> str:
    """Return the name of a layer's class; raises if it is not one of torch's that are known."""
    name = _KINDS.get(type(layer))
    if name is None:
        kind = type(layer)
        own = "" if kind.__module__.partition(".")[0] == "torch" else "your class "
        raise EsperError(f"{own}{kind.__name__}")
    if any(getattr(part, hooks) for part in layer.modules() for hooks in _HOOKS):
        raise EsperError(f"a {name} with hooks")
    return name


_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def layer_arguments(layer: nn.Module) -> dict[str, Any]:
    """Return the arguments with which a layer was built; raises if it was changed afterwards."""
    kind = type(layer)
    is_encoder = kind is nn.TransformerEncoderLayer
    arguments = _encoder_layer(layer) if is_encoder else constructor_arguments(layer, kind)
    again = build_layer(layer_kind(layer), arguments, len(list(layer.parameters())))
    for (path, old), new in zip(layer.named_modules(), again.modules(), strict=True):
        before, after = _settings(old), _settings(new)
        differs = [name for name in {**before, **after} if not _same(before, after, name)]
        if differs or type(old) is not type(new):
            where = ".".join(part for part in (path, *differs[:1]) if part) or "class"
            raise EsperError(f"a {type(layer).__name__} whose {where} was changed")
    return arguments


def build_layer(kind: str, arguments: Mapping[str, Any], tensors: int) -> nn.Module:
    """Build a layer without values; raises in one line.

    `tensors`: how many there are for it at most, which bounds the work of building it.
    """
    if kind not in LAYERS:
        raise unknown_name("layer", kind, LAYERS)
    if kind in ("LSTM", "GRU", "RNN"):
        count = arguments.get("num_layers", 1)
        if type(count) is not int or not 0 < count <= max(1, tensors):
            raise EsperError(f"num_layers={shown(count)}: there are not that many weights")
    try:
        with torch.device("meta"), _NoDraws():
            return LAYERS[kind](**arguments)
    except Exception as error:  # whatever torch makes of odd arguments
        raise EsperError(
            f"{kind} cannot be built ({parse_error_line(ValueError(error))})"
        ) from error


class _NoDraws(TorchFunctionMode):
    """Leaves out random values, for which torch would import its compiler on the meta device."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch's, unless it draws."""
        if func in (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def _settings(layer: nn.Module) -> dict[str, Any]:
    """Attributes of a layer that are no tensors or modules."""
    return {
        name: value
        for name, value in vars(layer).items()
        if not name.startswith("_") and name != "training" and not isinstance(value, Tensor)
    }


def _same(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> bool:
    return name in before and name in after and bool(before[name] == after[name])


def _encoder_layer(layer: Any) -> dict[str, Any]:
    activation = {F.relu: "relu", F.gelu: "gelu"}.get(layer.activation)
    if activation is None:
        raise EsperError("a TransformerEncoderLayer with an activation of its own")
    return {
        "d_model": layer.self_attn.embed_dim,
        "nhead": layer.self_attn.num_heads,
        "dim_feedforward": layer.linear1.out_features,
        "dropout": layer.dropout.p,
        "activation": activation,
        "layer_norm_eps": layer.norm1.eps,
        "batch_first": layer.self_attn.batch_first,
        "norm_first": layer.norm_first,
        "bias": layer.linear1.bias is not None,
    }
