"""What a user's optimiser keeps from batch to batch, so that a run can be saved and continued.

Torch's optimisers keep tensors by parameter. Others also keep numbers, lists and dicts there, count
in `param_groups` or in attributes, and wrap a second optimiser.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

from esper.leyline.errors import EsperError

SCALAR: Final = (bool, int, float, str)
VALUES: Final = "values"
SET_BY_US: Final = ("params", "lr")
"""Of `param_groups`."""


@dataclass(frozen=True, slots=True)
class Kept:
    """State by its place: `optimiser/kind/parameter or group/name`."""

    values: dict[str, str] = field(default_factory=dict)
    """As JSON; tensors stand there by their names."""
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def changed(self, before: Kept) -> str:
        """Name of a value that has changed, but for those of tensors; empty: none has."""
        some = (name for name, text in self.values.items() if text != before.values.get(name))
        return next(some, "").split("/", 3)[-1]

    def saved(self) -> dict[str, Tensor]:
        """The same as tensors."""
        if not self.values:
            return {}
        text = bytearray(json.dumps(self.values).encode())
        held = {VALUES: torch.frombuffer(text, dtype=torch.uint8)} | self.tensors
        return {name: value.detach().cpu().clone().contiguous() for name, value in held.items()}

    @staticmethod
    def of(saved: Mapping[str, Tensor]) -> Kept:
        """What was saved."""
        return Kept(json.loads(bytes(saved[VALUES].tolist())), dict(saved))


class OptimizerState:
    """The state of an optimiser, and of those that it wraps."""

    def __init__(self, own: torch.optim.Optimizer, params: Sequence[nn.Parameter]) -> None:
        self._own, self._params = own, list(params)
        self._optimizers = _with_wrapped(own)
        self._given = {name: self._text(value, name, {}) for name, value in self._settings()}

    def kept(self) -> Kept:
        """All state; settings only if they have changed since the optimiser was made."""
        kept = Kept()
        for name, value in self._states():
            text = self._text(value, name, kept.tensors)
            if text is None:
                raise self._unsaved(name.split("/", 3)[-1], type(value).__name__)
            kept.values[name] = text
        for name, value in self._settings():
            tensors = dict[str, Tensor]()
            text = self._text(value, name, tensors)
            if text is not None and (tensors or text != self._given.get(name)):
                kept.values[name] = text
                kept.tensors.update(tensors)
        return kept

    def put_back(self, kept: Kept) -> None:
        """Continue from such a state."""
        for name, text in kept.values.items():
            number, kind, place, key = name.split("/", 3)
            one, packed = self._optimizers[int(number)], json.loads(text)
            state: dict[Any, Any] = one.state
            param = self._params[int(place) if kind == "state" else 0]
            value = _unpacked(packed, kept.tensors, param)
            if kind == "state":
                state.setdefault(param, {})[key] = value
            elif kind == "shared":
                state[key] = value
            elif kind == "groups":
                one.param_groups[int(place)][key] = value
            else:
                setattr(one, key, value)

    def _states(self) -> Iterator[tuple[str, Any]]:
        """Name and value of all state."""
        places = {id(param): place for place, param in enumerate(self._params)}
        for number, one in enumerate(self._optimizers):
            state: dict[Any, Any] = one.state
            for key, entry in state.items():
                place = places.get(id(key))
                if place is not None and isinstance(entry, dict):
                    for name, value in entry.items():
                        yield f"{number}/state/{place}/{name}", value
                elif isinstance(key, str):
                    yield f"{number}/shared//{key}", entry
                else:
                    raise self._unsaved("state", f"{type(entry).__name__} of no parameter")

    def _settings(self) -> Iterator[tuple[str, Any]]:
        """Name and value of entries of `param_groups`, and of attributes that are numbers."""
        for number, one in enumerate(self._optimizers):
            for place, group in enumerate(one.param_groups):
                for name, value in group.items():
                    if name not in SET_BY_US:
                        yield f"{number}/groups/{place}/{name}", value
            for name, value in vars(one).items():
                if isinstance(value, bool | int | float):
                    yield f"{number}/attributes//{name}", value

    def _text(self, value: object, name: str, tensors: dict[str, Tensor]) -> str | None:
        """A value as JSON, beside its tensors; None: it cannot be saved."""
        try:
            return json.dumps(_packed(value, name, tensors, self._params[0].device.type))
        except TypeError:
            return None

    def _unsaved(self, name: str, kind: str) -> EsperError:
        return EsperError(
            f"optimizer: {type(self._own).__name__} keeps a {kind} ({name!r}), with which a run "
            f"cannot be saved and continued: keep numbers, tensors, or lists and dicts of them"
        )


def as_state(value: Tensor, param: Tensor) -> Tensor:
    """State of an optimiser, in the memory layout of its parameter: fused kernels rely on it."""
    if value.shape != param.shape or value.dim() == 0:
        return value.to(param.device)
    return torch.empty_like(param, dtype=value.dtype, requires_grad=False).copy_(value)


def _with_wrapped(own: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    found = [own]
    for one in found:
        inner = (value for value in vars(one).values() if isinstance(value, torch.optim.Optimizer))
        found += [value for value in inner if all(value is not other for other in found)]
    return found


def _packed(value: Any, name: str, tensors: dict[str, Tensor], device: str) -> Any:
    """A value as JSON, beside its tensors."""
    if isinstance(value, Tensor):
        tensors[name] = value
        turned = value.ndim > 1 and not value.is_contiguous() and value.mT.is_contiguous()
        return {"tensor": name, "turned": turned, "moves": value.device.type == device}
    if type(value) in (list, tuple):
        parts = [_packed(part, f"{name}/{n}", tensors, device) for n, part in enumerate(value)]
        return {type(value).__name__: parts}
    if type(value) is dict and all(isinstance(key, SCALAR) for key in value):
        parts = [_packed(value[key], f"{name}/{key}", tensors, device) for key in value]
        return {"dict": list(zip(value, parts, strict=True))}
    if value is None or isinstance(value, SCALAR):
        return value
    raise TypeError


def _unpacked(packed: Any, tensors: Mapping[str, Tensor], param: Tensor) -> Any:
    """`param`: whose state it is."""
    if not isinstance(packed, dict):
        return packed
    kind, held = next(iter(packed.items()))
    if kind == "list":
        return [_unpacked(part, tensors, param) for part in held]
    if kind == "tuple":
        return tuple(_unpacked(part, tensors, param) for part in held)
    if kind == "dict":
        return {key: _unpacked(part, tensors, param) for key, part in held}
    value = tensors[held]
    if not packed["moves"]:  # a step that is counted on the host
        return value
    if packed["turned"]:  # products of another memory layout may round differently
        return value.mT.contiguous().mT.to(param.device)
    return as_state(value, param)
