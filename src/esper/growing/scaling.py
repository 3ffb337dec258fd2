"""Numbers before and after a network, as part of its graph: standard features, scaled outputs.

Shape letters: N samples, D features, K outputs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import fx, nn

from esper.growing.data.parts import GrowPart
from esper.growing.recipes import SMOOTHING
from esper.leyline.arrays import Doubles

FACTORS: Final = (0.25, 4.0)
"""Least and largest factor of logits by which probabilities are calibrated."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """Mean and standard deviation of columns; constant columns have a scale of 1."""

    mean: Doubles
    scale: Doubles

    @classmethod
    def of(cls, values_ND: Doubles) -> Scaling:
        """The scaling that standardises values."""
        mean = values_ND.mean(axis=0, dtype=np.float64)
        scale = values_ND.std(axis=0, dtype=np.float64)
        # Rounding leaves constant columns a deviation that is not quite 0.
        constant = scale <= 10 * np.finfo(np.float64).eps * np.abs(mean)
        return cls(mean, np.where(constant, 1.0, scale))

    def apply(self, values_ND: Doubles) -> Doubles:
        """Values, standardised."""
        return np.asarray((values_ND - self.mean) / self.scale)


def with_scaling(
    network: nn.Module, inputs: Scaling | None, outputs: Scaling | None
) -> fx.GraphModule:
    """A graph that standardises features, runs a network and scales its outputs back.

    Nothing of Esper is in it, so that a pickle of it needs only torch.
    """
    root, graph = nn.Module(), fx.Graph()
    root.network = network
    node = graph.placeholder("x")

    def combine(node: fx.Node, operation: Callable[..., Any], name: str, value: Doubles) -> fx.Node:
        root.register_buffer(name, torch.from_numpy(value))
        return graph.call_function(operation, (node, graph.get_attr(name)))

    if inputs is not None:
        node = combine(node, operator.sub, "feature_mean", inputs.mean)
        node = combine(node, operator.truediv, "feature_scale", inputs.scale)
    node = graph.call_method("to", (node, torch.float32))
    node = graph.call_module("network", (node,))
    if outputs is not None:
        node = combine(node, operator.mul, "output_scale", outputs.scale)
        if outputs.mean.any():
            node = combine(node, operator.add, "output_mean", outputs.mean)
    graph.output(node)
    return fx.GraphModule(root, graph, "Grown").eval()


def calibrated(network: nn.Module, held: GrowPart, classes: int) -> Scaling:
    """The factor of the logits that makes held-out labels most likely.

    Few samples do not show how sure a network may be: labels are smoothed as by one more sample of
    each class.
    """
    with torch.no_grad():
        logits_NK = network.eval()(held.inputs).float()
    loss = partial(
        nn.functional.cross_entropy,
        target=held.targets,
        label_smoothing=min(SMOOTHING, classes / (len(held) + classes)),
    )
    factors = np.geomspace(*FACTORS, 64, dtype=np.float32)
    best = min(factors, key=lambda factor: float(loss(logits_NK * float(factor))))
    return Scaling(np.zeros(1), np.full(1, best))
