"""May seeds of a traced sequence model read later positions? Decided by running it.

Outputs at a position that do not depend on later inputs must not come to depend on them: a language
model would read the tokens it is to predict.

Shape letters: B batch, T positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, fx, nn

from esper.device.rng import forked_rng
from esper.kasmina.tracing.inputs import Inputs, Raw
from esper.kasmina.tracing.tracer import BATCHES

MAX_CUTS: Final = 4
"""Positions at which sequences are cut, at most."""
CHANGED: Final = 1e-5
"""Relative difference of outputs that counts."""


def is_causal(
    model: nn.Module, graph: fx.Graph, places: Sequence[fx.Node], inputs: Inputs, example: Raw
) -> bool:
    """Whether outputs have positions, and depend on earlier ones only.

    `model`: a sequence model, in eval mode; `places`: nodes of its graph that make activations
    `[B, T, C]`. In doubt it is True: if nothing shows that outputs depend on later positions, or if
    they have several axes and none has the size of the positions.
    """
    values = inputs.batch(example, BATCHES[1])
    probe = _Probe(model, graph, inputs, values)
    out = probe.out()
    sizes: dict[fx.Node | None, int] = {place: probe.env[place].shape[1] for place in places}
    axes = [axis for axis in range(1, out.ndim) if out.shape[axis] in sizes.values()]
    if not axes:
        return out.ndim > 2
    if len(values) == 1 and values[0].ndim > 1:  # several inputs have no positions in common
        sizes = {None: values[0].shape[1], **sizes}
    return not all(
        any(
            _reads_ahead(probe, place, out, axis)
            for place, size in sizes.items()
            if size == out.shape[axis]
        )
        for axis in axes
    )


class _Probe(fx.Interpreter):
    """A model that runs with later positions of one activation changed."""

    def __init__(
        self, model: nn.Module, graph: fx.Graph, inputs: Inputs, values: list[Tensor]
    ) -> None:
        super().__init__(model, garbage_collect_values=False, graph=graph)
        self._inputs, self._values = inputs, values
        self._place: fx.Node | None = None
        self._cut = 0

    def out(self, place: fx.Node | None = None, cut: int = 0) -> Tensor:
        """The output, with an activation changed from a position on; `place`: None: the input."""
        values = self._values if place or not cut else [_changed(self._values[0], cut)]
        self._place, self._cut = place, cut
        with torch.no_grad(), forked_rng(0):
            found: Tensor = self._inputs.call(self._call, values)
        return found

    def _call(self, *values: Any, **named: Any) -> Any:
        return self.run(*values, *named.values())

    def run_node(self, n: fx.Node) -> Any:
        h = super().run_node(n)
        return _changed(h, self._cut) if n is self._place else h


def _changed(h_BT: Tensor, cut: int) -> Tensor:
    """Activations that are those of other samples from a position on."""
    return torch.cat([h_BT[:, :cut], h_BT.roll(1, 0)[:, cut:]], 1)


def _reads_ahead(probe: _Probe, place: fx.Node | None, out: Tensor, axis: int) -> bool:
    """Whether outputs change where only later positions of an activation do."""
    size, least = out.shape[axis], CHANGED * (float(out.abs().max()) + CHANGED)
    for cut in range(1, size, -(-size // MAX_CUTS)):
        change = (probe.out(place, cut) - out).narrow(axis, 0, cut)
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
