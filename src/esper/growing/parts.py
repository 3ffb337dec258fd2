"""Samples in memory: inputs as the user's model takes them, and one target each.

Shape letters: N samples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from esper.leyline.arrays import Ints
from esper.leyline.errors import EsperError
from esper.tasks.objectives import with_sample_weights
from esper.tasks.row_terms import dtype_name

Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
"""One tensor `[N, ...]`, several in the order of the model's arguments, or several by name."""
Strings = npt.NDArray[np.str_]
MOST_COMPARED: Final = 1 << 30
"""Bytes of a part up to which it is searched for equal samples: about two seconds."""
KEY_BYTES: Final = 1 << 22
"""Bytes that are hashed at a time, so that they stay in a cache."""


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


def map_inputs(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """Apply a function to each tensor."""
    if isinstance(inputs, Tensor):
        return function(inputs)
    if isinstance(inputs, dict):
        return {name: function(value) for name, value in inputs.items()}
    return tuple(function(value) for value in inputs)


def named_inputs(inputs: Inputs) -> list[tuple[str, Tensor]]:
    """Return each tensor with its name for messages.

    >>> [name for name, _ in named_inputs((torch.zeros(1), torch.zeros(1)))]
    ['inputs 0', 'inputs 1']
    """
    if isinstance(inputs, Tensor):
        return [("inputs", inputs)]
    if isinstance(inputs, dict):
        return [(f"inputs {name!r}", value) for name, value in inputs.items()]
    return [(f"inputs {place}", value) for place, value in enumerate(inputs)]


def join_inputs(pieces: list[Inputs], where: str, piece: str) -> Inputs:
    """Concatenate batches of inputs; `piece`: what they are called in messages."""
    first = pieces[0]
    for number, other in enumerate(pieces):
        if _layout(other) != _layout(first):
            raise EsperError(
                f"{where}: {piece} {number} has inputs {_layout(other)}, {piece} 0 has "
                f"{_layout(first)}; give every sample the same"
            )
        for (name, one), (_, two) in zip(named_inputs(first), named_inputs(other), strict=True):
            if one.shape[1:] != two.shape[1:]:
                raise EsperError(
                    f"{where}: {name} of {piece} {number} are {tuple(two.shape[1:])} per sample, "
                    f"of {piece} 0 {tuple(one.shape[1:])}; pad or crop all to one shape"
                )
    if isinstance(first, Tensor):
        return torch.cat([value for value in pieces if isinstance(value, Tensor)])
    if isinstance(first, dict):
        dicts = [value for value in pieces if isinstance(value, dict)]
        return {name: torch.cat([value[name] for value in dicts]) for name in first}
    tuples = [value for value in pieces if isinstance(value, tuple)]
    return tuple(torch.cat(values) for values in zip(*tuples, strict=True))


def _layout(inputs: Inputs) -> str:
    """Describe everything but the shapes."""
    described = (f"{name} {dtype_name(value)}" for name, value in named_inputs(inputs))
    return ", ".join(described)


def join_targets(pieces: list[Tensor | Strings], where: str, piece: str) -> Tensor | Strings:
    """Concatenate batches of targets."""
    texts = [value for value in pieces if not isinstance(value, Tensor)]
    if len(texts) == len(pieces):
        return np.concatenate(texts)
    tensors = [value for value in pieces if isinstance(value, Tensor)]
    if texts:
        raise EsperError(f"{where}: some labels are strings, others numbers; give one kind")
    for number, value in enumerate(tensors):
        if value.shape[1:] != tensors[0].shape[1:]:
            raise EsperError(
                f"{where}: targets of {piece} {number} are {tuple(value.shape[1:])} per sample, of "
                f"{piece} 0 {tuple(tensors[0].shape[1:])}; give all one shape"
            )
    return torch.cat(tensors)


def input_bytes(inputs: Inputs) -> int:
    """Return the size of all tensors in bytes."""
    return sum(value.numel() * value.element_size() for _, value in named_inputs(inputs))


def fingerprint(parts: Iterable[tuple[str, GrowPart]], other: str = "") -> str:
    """Return the SHA-256 over names, shapes, dtypes and contents."""
    digest = hashlib.sha256(other.encode())
    for part_name, part in parts:
        extra = [] if part.weights is None else [("weights", part.weights)]
        for name, value in (*named_inputs(part.inputs), ("targets", part.targets), *extra):
            head = f"{part_name} {name} {tuple(value.shape)} {dtype_name(value)}\n"
            digest.update(head.encode())
            # As bytes: numpy has no bfloat16.
            digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def sample_keys(part: GrowPart) -> npt.NDArray[np.uint64]:
    """Return a hash of each sample's inputs and target, of 64 bits: equal ones are copies.

    Those of a part beyond `MOST_COMPARED` are random.
    """
    key_N = np.zeros(len(part), dtype=np.uint64)
    if input_bytes(part.inputs) > MOST_COMPARED:
        return np.random.default_rng().integers(0, 2**64, len(part), dtype=np.uint64)
    for place, (_, value) in enumerate((*named_inputs(part.inputs), ("targets", part.targets))):
        if not value[:1].numel():
            continue
        words = -(-value[:1].nbytes // 8)
        factors = np.random.default_rng(place).integers(0, 2**63, words, dtype=np.uint64) * 2 + 1
        rows = max(1, KEY_BYTES // (8 * words))
        for start in range(0, len(part), rows):
            some = value[start : start + rows].reshape(-1, value[:1].numel())
            dense = some.clone(memory_format=torch.contiguous_format)
            block = dense.view(torch.uint8).numpy()
            padded = np.zeros((len(block), 8 * words), dtype=np.uint8)
            padded[:, : block.shape[1]] = block
            mixed = padded.view(np.uint64)
            mixed ^= mixed >> 29  # low bits alone would be lost in a product
            mixed *= factors
            mixed ^= mixed >> 32
            key_N[start : start + rows] = key_N[start : start + rows] * 31 + mixed.sum(axis=1)
    return key_N
