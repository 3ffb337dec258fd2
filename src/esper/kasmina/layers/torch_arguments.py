"""Constructor arguments of torch's layers, read from a layer: most are attributes of it."""

from __future__ import annotations

import inspect
from typing import Any, Final

from torch import nn

_NO_ARGUMENTS: Final = ("self", "args", "kwargs", "device", "dtype", "_weight", "_freeze")
_RECURRENT: Final = (
    "input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional",
)  # fmt: skip
_FURTHER: Final[dict[type[nn.Module], tuple[str, ...]]] = {
    nn.LSTM: (*_RECURRENT, "proj_size"),
    nn.GRU: _RECURRENT,
    nn.RNN: (*_RECURRENT, "nonlinearity"),
}
"""Of layers whose signatures do not name them."""


def torch_class(layer: nn.Module) -> type[nn.Module]:
    """Return the class of torch's that a layer is of, or derives from."""
    own = type(layer).__mro__
    found: type[nn.Module] = next(k for k in own if getattr(nn, k.__name__, None) is k)
    return found


def constructor_arguments(layer: Any, kind: type[nn.Module]) -> dict[str, Any]:
    """Return the arguments with which torch's class `kind` builds such a layer."""
    names = _FURTHER.get(kind, tuple(inspect.signature(kind).parameters))
    found = {n: getattr(layer, n) for n in names if n not in _NO_ARGUMENTS and hasattr(layer, n)}
    if "bias" in found and not isinstance(found["bias"], bool):
        found["bias"] = found["bias"] is not None
    if kind is nn.MultiheadAttention:
        found["bias"] = layer.in_proj_bias is not None
        found["add_bias_kv"] = layer.bias_k is not None
    return found
