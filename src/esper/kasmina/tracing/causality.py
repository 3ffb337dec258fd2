"""May seeds of a traced sequence model read later positions? Decided by running it.

Outputs at a position that do not depend on later inputs must not come to depend on them: a language
model would read the tokens it is to predict.

Shape letters: B batch, T positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from esper.device.rng import forked_rng
from esper.kasmina.tracing.inputs import Inputs, Raw
from esper.kasmina.tracing.tracer import BATCHES

_Step = Callable[[Tensor], Tensor]
MAX_CUTS: Final = 4
"""Positions at which sequences are cut, at most."""
CHANGED: Final = 1e-5
"""Relative difference of outputs that counts."""


def is_causal(segments: Sequence[nn.Module], inputs: Inputs, example: Raw) -> bool:
    """Whether outputs have positions, and depend on earlier ones only.

    `segments`: of a sequence model, in eval mode. In doubt it is True: if nothing shows that
    outputs depend on later positions, or if they have several axes and none has the size of the
    positions.
    """
    first, *others = segments
    values = inputs.batch(example, BATCHES[1])
    with torch.no_grad(), forked_rng(0):
        starts = [inputs.call(first, values)]
    for segment in others[:-1]:
        starts.append(_run([segment], starts[-1]))
    out = _run(others, starts[0])
    sizes = {h.shape[1] for h in starts}  # [B, T, C] at the slots
    axes = [axis for axis in range(1, out.ndim) if out.shape[axis] in sizes]
    if not axes:
        return out.ndim > 2
    tails: list[tuple[Tensor, Sequence[_Step]]] = [
        (h, others[index:]) for index, h in enumerate(starts)
    ]
    if len(values) == 1:  # several inputs have no positions in common
        tails.insert(0, (values[0], (lambda x: inputs.call(first, [x]), *others)))
    return not all(
        any(
            _reads_ahead(steps, h, axis)
            for h, steps in tails
            if h.ndim > 1 and h.shape[1] == out.shape[axis]
        )
        for axis in axes
    )


def _run(steps: Sequence[_Step], h: Tensor) -> Tensor:
    with torch.no_grad(), forked_rng(0):
        for step in steps:
            h = step(h)
    return h


def _reads_ahead(steps: Sequence[_Step], h: Tensor, axis: int) -> bool:
    """Whether outputs change where only later positions of an activation `[B, T, ...]` do."""
    out, size = _run(steps, h), h.shape[1]
    least = CHANGED * (float(out.abs().max()) + CHANGED)
    for cut in range(1, size, -(-size // MAX_CUTS)):
        other = h.clone()
        other[:, cut:] = h.roll(1, 0)[:, cut:]
        change = (_run(steps, other) - out).narrow(axis, 0, cut)
        if float(change.abs().max()) > least:
            return True
    return False


def suitable_attention(names: Sequence[str], causal: bool) -> tuple[str, ...]:
    """The blueprints to offer: attention over all positions instead of causal, where it fits.

    >>> suitable_attention(("attention", "full_attention", "mlp"), causal=False)
    ('full_attention', 'mlp')
    """
    full = not causal and "full_attention" in names
    return tuple(name for name in names if not (full and name == "attention"))
