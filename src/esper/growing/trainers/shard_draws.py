"""Random numbers of a rank that computes a share of a batch: its share of those of the whole batch.

All ranks seed their generators alike. Where the first axis of what is drawn is the batch, each
draws for the whole batch and keeps its share: dropout is that of one process, and later draws are
the same on all ranks, so that they also take the same branches.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from esper.device.shards import BatchShare

_aten = torch.ops.aten
IN_PLACE: Final = frozenset(
    {_aten.bernoulli_.float, _aten.uniform_.default, _aten.normal_.default,
     _aten.exponential_.default, _aten.random_.default, _aten.random_.to,
     getattr(_aten.random_, "from")}
)  # fmt: skip
LIKE: Final = frozenset({_aten.rand_like.default, _aten.randn_like.default, _aten.bernoulli.p})
SIZED: Final = frozenset({_aten.rand.default, _aten.randn.default})


class WholeBatchDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets random operations of a rank draw for the whole batch inside the block."""

    def __init__(self, share: BatchShare) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._share = share

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation; `args[0]` of those that draw is a tensor or a size."""
        named = kwargs or {}
        kind = next((kind for ops, kind in _KINDS if func in ops), None)
        if kind is None:
            return func(*args, **named)
        first, *rest = args
        place = self._place(first if kind == "sized" else first.shape)
        if place is None:
            return func(*args, **named)
        rows, mine = place
        if kind == "sized":
            return func([rows, *first[1:]], *rest, **named)[mine]
        if kind == "probabilities":
            whole = first.new_zeros(rows, *first.shape[1:])
            whole[mine] = first
            return func(whole, *rest, **named)[mine]
        whole = first.new_empty(rows, *first.shape[1:])
        if kind == "in place":
            func(whole, *rest, **named)
            return first.copy_(whole[mine])
        if kind == "like":
            return func(whole, *rest, **named)[mine]
        return _dropped(first, func(whole, *rest, **named)[1][mine], rest[0])

    def _place(self, shape: Any) -> tuple[int, slice] | None:
        """Rows of the whole batch, and those of this rank; None: the first axis is another."""
        share = self._share
        if not len(shape) or shape[0] == 0 or shape[0] % share.computed:
            return None
        each = shape[0] // share.computed
        start, stop, _ = share.samples.indices(share.batch)
        return each * share.batch, slice(each * start, each * stop)


_KINDS: Final = (
    (IN_PLACE, "in place"),
    (LIKE, "like"),
    (SIZED, "sized"),
    (frozenset({_aten.native_dropout.default}), "dropout"),
    (frozenset({_aten.bernoulli.default}), "probabilities"),
)


def _dropped(x: Tensor, kept: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Outputs of `native_dropout` with a given mask."""
    return x * kept * (0.0 if p == 1.0 else 1.0 / (1.0 - p)), kept
