"""Raw inputs of a user's model, and how a batch of them becomes the one tensor a host takes.

A single tensor is passed as it is. Several are flattened side by side into `[B, F]`; the first
segment of the host cuts them apart again.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from esper.leyline.errors import EsperError, shown

Raw = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
"""One batch as the user's data yield it."""
Form = Literal["tensor", "positional", "keywords", "dict"]


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One raw input."""

    name: str
    shape: tuple[int, ...]
    """Of one sample."""
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """Values per sample."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Inputs:
    """How a batch of raw inputs is packed into one tensor, and how the model is called."""

    form: Form
    """How the model takes them: one tensor, positional arguments, keywords, or one dict."""
    specs: tuple[InputSpec, ...]

    @staticmethod
    def of(model: nn.Module, example: Raw) -> Inputs:
        """Describe the inputs of a model by one example batch."""
        if isinstance(example, Tensor):
            return Inputs("tensor", _specs({"x": example}))
        if isinstance(example, Mapping):
            accepts = _accepts_keywords(model, tuple(example))
            return Inputs("keywords" if accepts else "dict", _specs(dict(example)))
        if isinstance(example, tuple | list):
            names = _positional_names(model, len(example))
            return Inputs("positional", _specs(dict(zip(names, example, strict=True))))
        raise EsperError(
            f"example {shown(example)}: give a tensor, a tuple of tensors or a dict of tensors"
        )

    @property
    def packed(self) -> bool:
        """Whether several inputs share the one tensor."""
        return len(self.specs) > 1

    @property
    def dtype(self) -> torch.dtype:
        """Type of the packed tensor."""
        kinds = {spec.dtype for spec in self.specs}
        if not self.packed:
            return self.specs[0].dtype
        if not any(kind.is_floating_point for kind in kinds):
            return torch.int64
        narrow = all(kind.is_floating_point and kind != torch.float64 for kind in kinds)
        return torch.float32 if narrow else torch.float64

    def columns(self) -> list[tuple[int, int]]:
        """Return the first column of each input in the packed tensor, and the one after it."""
        ends = [0]
        for spec in self.specs:
            ends.append(ends[-1] + spec.size)
        return list(pairwise(ends))

    def pack(self, raw: Raw) -> Tensor:
        """Return a batch of raw inputs as one tensor."""
        values = self.values(raw)
        if not self.packed:
            return values[0]
        flat = [value.reshape(len(value), -1).to(self.dtype) for value in values]
        return torch.cat(flat, dim=1)

    def unpack(self, x: Any) -> list[Any]:
        """Cut a packed tensor (or a tracer's proxy of it) apart."""
        if not self.packed:
            return [x]
        return [
            unpack_one(x, spec, columns)
            for spec, columns in zip(self.specs, self.columns(), strict=True)
        ]

    def call(self, function: Callable[..., Any], values: Sequence[Any]) -> Any:
        """Call a function as the user's model is called."""
        named = {spec.name: value for spec, value in zip(self.specs, values, strict=True)}
        if self.form == "keywords":
            return function(**named)
        return function(named) if self.form == "dict" else function(*values)

    def values(self, raw: Raw) -> list[Tensor]:
        """Return the tensors of a batch in order; raises if they differ from the example's."""
        if isinstance(raw, Tensor):
            found = [raw]
        elif isinstance(raw, Mapping):
            missing = [spec.name for spec in self.specs if spec.name not in raw]
            if missing:
                raise EsperError(f"inputs lack {missing[0]!r}: give all that the example has")
            found = [raw[spec.name] for spec in self.specs]
        else:
            found = list(raw)
        if len(found) != len(self.specs):
            raise EsperError(f"{len(found)} inputs: the example has {len(self.specs)}")
        if self.packed:
            for spec, value in zip(self.specs, found, strict=True):
                if tuple(value.shape[1:]) != spec.shape or len(value) != len(found[0]):
                    raise EsperError(
                        f"input {spec.name!r} of shape {tuple(value.shape)}: the example has "
                        f"{spec.shape} for a sample, and all inputs of a batch have one length"
                    )
        return found

    def few(self, raw: Raw, samples: int) -> Raw:
        """Return so many samples of a batch, in its form: an example that costs little to keep."""
        values = self.batch(raw, samples)
        if isinstance(raw, Tensor):
            return values[0]
        if isinstance(raw, Mapping):
            return {spec.name: value for spec, value in zip(self.specs, values, strict=True)}
        return values

    def batch(self, raw: Raw, samples: int) -> list[Tensor]:
        """Return the first samples of a batch, repeated if it has too few."""
        values = self.values(raw)
        index = torch.arange(samples) % len(values[0])
        return [value.detach().cpu().index_select(0, index) for value in values]


def unpack_one(x: Any, spec: InputSpec, columns: tuple[int, int]) -> Any:
    """Return one input from a packed tensor: always slice, shape, dtype (`plain` relies on it)."""
    part = x[:, columns[0] : columns[1]]
    shaped = part.squeeze(1) if spec.shape == () else part.unflatten(1, spec.shape)
    return shaped.to(spec.dtype)


def _specs(values: Mapping[str, object]) -> tuple[InputSpec, ...]:
    specs, samples = [], None
    if not values:
        raise EsperError("example without tensors: give one batch of inputs")
    for name, value in values.items():
        if not isinstance(value, Tensor) or value.ndim < 1 or not len(value):
            kind = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise EsperError(f"example input {name!r} is {kind}: give tensors, batch first")
        samples = len(value) if samples is None else samples
        if len(value) != samples:
            raise EsperError(
                f"example input {name!r} has {len(value)} samples, another has {samples}: the "
                f"first axis of all inputs is the batch"
            )
        specs.append(InputSpec(str(name), tuple(value.shape[1:]), value.dtype))
    return tuple(specs)


def _accepts_keywords(model: nn.Module, names: tuple[str, ...]) -> bool:
    try:
        inspect.signature(model.forward).bind(**dict.fromkeys(names))
    except TypeError:
        return False
    return True


def _positional_names(model: nn.Module, count: int) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(model.forward).parameters.values()
    names = [p.name for p in parameters if p.kind in kinds][:count]
    return names + [f"x{index}" for index in range(len(names), count)]
