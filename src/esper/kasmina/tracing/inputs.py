"""Inputs of a user's model: how many, of which shapes, and how it is called with them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from esper.leyline.errors import EsperError, shown

Raw = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
"""One batch as the user's data yield it."""
Form = Literal["tensor", "positional", "keywords", "dict"]


@dataclass(frozen=True, slots=True)
class _InputSpec:
    """One raw input."""

    name: str
    shape: tuple[int, ...]
    """Of one sample."""
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a model, and how it is called with them."""

    form: Form
    """How the model takes them: one tensor, positional arguments, keywords, or one dict."""
    specs: tuple[_InputSpec, ...]

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
    def arguments(self) -> tuple[str, ...]:
        """Names of the arguments of a graph that is called as the model is."""
        if self.form == "dict":
            return ("batch",)
        single = len(self.specs) == 1 and self.form != "keywords"
        return ("x",) if single else tuple(spec.name for spec in self.specs)

    def call(self, function: Callable[..., Any], values: Sequence[Any]) -> Any:
        """Call a function as the user's model is called."""
        named = {spec.name: value for spec, value in zip(self.specs, values, strict=True)}
        if self.form == "keywords":
            return function(**named)
        return function(named) if self.form == "dict" else function(*values)

    def raw(self, values: Sequence[Any]) -> Any:
        """Tensors in the form in which the model takes them: one, a tuple, or a dict."""
        if self.form == "tensor":
            return values[0]
        if self.form == "positional":
            return tuple(values)
        return {spec.name: value for spec, value in zip(self.specs, values, strict=True)}

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
        if len(found) > 1:
            for spec, value in zip(self.specs, found, strict=True):
                if tuple(value.shape[1:]) != spec.shape or len(value) != len(found[0]):
                    raise EsperError(
                        f"input {spec.name!r} of shape {tuple(value.shape)}: the example has "
                        f"{spec.shape} for a sample, and all inputs of a batch have one length"
                    )
        return found

    def few(self, raw: Raw, samples: int) -> Any:
        """Return so many samples of a batch, in its form: an example that costs little to keep."""
        return self.raw(self.batch(raw, samples))

    def batch(self, raw: Raw, samples: int) -> list[Tensor]:
        """Return the first samples of a batch, repeated if it has too few."""
        values = self.values(raw)
        index = torch.arange(samples) % len(values[0])
        return [value.detach().cpu().index_select(0, index) for value in values]


def _specs(values: Mapping[str, object]) -> tuple[_InputSpec, ...]:
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
        specs.append(_InputSpec(str(name), tuple(value.shape[1:]), value.dtype))
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
