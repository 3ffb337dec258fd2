"""Replace the tensors of a module for a while: `functional_call` for many calls at once.

`functional_call` looks up every name at each call, which costs more than many a layer's arithmetic.
Here the places are looked up once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

Place = tuple[dict[str, Tensor | None], str, str]
"""A module's own dictionary of tensors, the key in it, and the name of the tensor in a state."""


class Binding:
    """Places of the parameters and buffers of some modules, further names of a tensor included."""

    def __init__(self, root: nn.Module, others: Iterable[nn.Module] = ()) -> None:
        """`root` names the tensors; `others` hold some of the same ones."""
        named = (*root.named_parameters(), *root.named_buffers())
        names = {id(tensor): name for name, tensor in named}
        found: dict[tuple[int, str], Place] = {}
        for module in (root, *others):
            for part in module.modules():
                for own in (part._parameters, part._buffers):
                    for key, tensor in own.items():
                        if tensor is not None and id(tensor) in names:
                            found[id(own), key] = (own, key, names[id(tensor)])  # type: ignore[assignment]
        self._places = tuple(found.values())

    @contextmanager
    def holding(self, state: Mapping[str, Tensor]) -> Iterator[None]:
        """Let the modules compute with these tensors inside the block."""
        before = [own[key] for own, key, _ in self._places]
        try:
            for own, key, name in self._places:
                own[key] = state[name]
            yield
        finally:
            for (own, key, _), tensor in zip(self._places, before, strict=True):
                own[key] = tensor
