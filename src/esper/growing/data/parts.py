"""Samples in memory: inputs as the user's model takes them, and one target each.

Shape letters: N samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from esper.growing.digests import tensor_digest
from esper.leyline.arrays import Ints
from esper.leyline.errors import EsperError
from esper.tasks.objectives import with_sample_weights
from esper.tasks.row_terms import dtype_name

Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
"""One tensor `[N, ...]`, several in the order of the model's arguments, or several by name."""
Strings = npt.NDArray[np.str_]
MAX_COMPARED: Final = 1 << 30
"""Bytes of a part up to which it is searched for equal samples: about two seconds."""


@dataclass(frozen=True, eq=False)
class GrowPart:
    """Samples on the CPU, exactly as the data yield them.

    Tensors may share memory with the user's own: never write to them.
    """

    inputs: Inputs
    targets: Tensor
    weights: Tensor | None = None
    """Weight of each sample in the loss."""

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, index_N: Ints | Tensor | slice) -> GrowPart:
        """Return the given samples."""
        index = torch.from_numpy(index_N) if isinstance(index_N, np.ndarray) else index_N
        weights = None if self.weights is None else self.weights[index]
        inputs = map_inputs(lambda value: value[index], self.inputs)
        return GrowPart(inputs, self.targets[index], weights)

    def with_weighted_targets(self) -> GrowPart:
        """The same samples with targets `[N, ..., 2]` of (target, weight); 1 where none is given.

        Losses and metrics take these if they are made with `weighted=True`.
        """
        weights = torch.ones(len(self)) if self.weights is None else self.weights
        return GrowPart(self.inputs, with_sample_weights(self.targets, weights))


@dataclass(frozen=True, eq=False)
class RawPart:
    """Samples before labels are turned into class indices."""

    inputs: Inputs
    targets: Tensor | Strings

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, index_N: Ints) -> RawPart:
        """Return the given samples."""
        index = torch.from_numpy(index_N)
        inputs = map_inputs(lambda value: value[index], self.inputs)
        targets = self.targets
        return RawPart(inputs, targets[index if isinstance(targets, Tensor) else index_N])


# ---- one input or several ------------------------------------------------------------------------


def by_key(inputs: Any) -> dict[Any, Any]:
    """Inputs by name or number; the key of a single one is None.

    >>> by_key("x"), by_key(("x", "y"))
    ({None: 'x'}, {0: 'x', 1: 'y'})
    """
    if isinstance(inputs, Mapping):
        return {str(name): value for name, value in inputs.items()}
    return dict(enumerate(inputs)) if isinstance(inputs, tuple) else {None: inputs}


def from_keys(values: dict[Any, Any]) -> Any:
    """Inputs of `by_key`, in their own form again."""
    if None in values:
        return values[None]
    return tuple(values.values()) if 0 in values else values


def input_name(key: Any) -> str:
    """What an input is called in messages.

    >>> input_name(None), input_name(1), input_name("mask")
    ('inputs', 'inputs 1', "inputs 'mask'")
    """
    return "inputs" if key is None else f"inputs {key!r}"


def map_inputs(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """Apply a function to each tensor."""
    made: Inputs = from_keys({key: function(value) for key, value in by_key(inputs).items()})
    return made


def named_inputs(inputs: Inputs) -> list[tuple[str, Tensor]]:
    """Return each tensor with its name for messages."""
    return [(input_name(key), value) for key, value in by_key(inputs).items()]


def join_parts(pieces: list[RawPart], where: str) -> RawPart:
    """Concatenate batches."""
    if len(pieces) == 1:
        return pieces[0]
    keys = [_layout(piece.inputs) for piece in pieces]
    for number, other in enumerate(keys):
        if other != keys[0]:
            raise EsperError(
                f"{where}: batch {number} has inputs {other}, batch 0 has {keys[0]}; give every "
                f"sample the same"
            )
    inputs = [by_key(piece.inputs) for piece in pieces]
    joined = {key: _join([one[key] for one in inputs], where, input_name(key)) for key in inputs[0]}
    targets = [piece.targets for piece in pieces]
    texts = [value for value in targets if not isinstance(value, Tensor)]
    if len(texts) == len(pieces):
        return RawPart(from_keys(joined), np.concatenate(texts))
    if texts:
        raise EsperError(f"{where}: some labels are strings, others numbers; give one kind")
    return RawPart(from_keys(joined), _join(targets, where, "targets"))


def _layout(inputs: Inputs) -> str:
    """Describe everything but the shapes."""
    return ", ".join(f"{name} {dtype_name(value)}" for name, value in named_inputs(inputs))


def _join(batches: Sequence[Any], where: str, name: str) -> Tensor:
    shapes = [tuple(batch.shape[1:]) for batch in batches]
    for number, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise EsperError(
                f"{where}: {name} of batch {number} are {shape} per sample, of batch 0 "
                f"{shapes[0]}; pad or crop all to one shape"
            )
    return torch.cat(list(batches))


# ---- contents ------------------------------------------------------------------------------------


def input_bytes(inputs: Inputs) -> int:
    """Return the size of all tensors in bytes."""
    return sum(value.numel() * value.element_size() for _, value in named_inputs(inputs))


def fingerprint(parts: Iterable[tuple[str, GrowPart]], other: str = "") -> str:
    """Return the SHA-256 over names, shapes, dtypes and contents of parts."""
    named = []
    for part_name, part in parts:
        extra = [] if part.weights is None else [("weights", part.weights)]
        every = (*named_inputs(part.inputs), ("targets", part.targets), *extra)
        named += [(f"{part_name} {name}", value) for name, value in every]
    return tensor_digest(named, other)


def sample_keys(part: GrowPart) -> Ints:
    """Return a hash of each sample's inputs and target, of 64 bits: equal ones are copies.

    A part beyond `MAX_COMPARED` counts as free of copies.
    """
    if input_bytes(part.inputs) > MAX_COMPARED:
        return np.random.default_rng().integers(-(2**63), 2**63, len(part))
    tensors = [*(value for _, value in named_inputs(part.inputs)), part.targets]
    flat = [value.reshape(len(part), -1) for value in tensors]
    dense = [value.clone(memory_format=torch.contiguous_format) for value in flat]
    block = torch.cat([value.view(torch.uint8) for value in dense], dim=1).numpy()
    samples = block.view(np.dtype((np.void, block.shape[1])))[:, 0].tolist()  # as bytes
    return np.fromiter(map(hash, samples), dtype=np.int64, count=len(part))
