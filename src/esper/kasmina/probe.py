"""What one sample tells about a host: whether its chain holds, shapes at the slots, MACs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esper.kasmina.counting import count_macs
from esper.kasmina.network import StackedNetwork
from esper.kasmina.random_probe import draws_in_evaluation
from esper.leyline.errors import EsperError, ShapeError


@dataclass(frozen=True, slots=True)
class HostProbe:
    """Found once, on the first input a population sees."""

    sample_shape: tuple[int, ...]
    """One input, without the batch axis."""
    slot_shapes: tuple[tuple[int, ...], ...]
    """Activation of one sample at each slot, without the batch axis."""
    host_macs: int


def probe_host(network: StackedNetwork, x: Tensor) -> HostProbe:
    """Run one sample `x` (a batch of one or more) through the template, segment by segment."""
    host = network.host.template
    x = x[:1]
    was_training = host.training
    host.eval()
    shapes = []
    with torch.no_grad():
        h = x.clone()  # a segment may work in place
        for index, segment in enumerate(network.segments):
            h = segment.module(h)
            if not isinstance(h, Tensor) or h.shape[:1] != x.shape[:1]:
                found = tuple(h.shape) if isinstance(h, Tensor) else type(h).__name__
                raise ShapeError(
                    f"host {type(host).__name__} segment {index} turns a batch of {len(x)} into "
                    f"{found}: a segment takes one tensor and gives one, batch first"
                )
            for slot, spec in enumerate(network.slots):
                if spec.position == index:
                    network.check_activation(slot, h)
                    shapes.append(tuple(h.shape[1:]))
        whole = host(x.clone())
    if whole.shape != h.shape or not torch.allclose(whole, h, rtol=1e-4, atol=1e-5, equal_nan=True):
        if draws_in_evaluation(host, x):
            raise EsperError(
                f"host {type(host).__name__} draws random numbers in evaluation mode: pass "
                f"training=self.training to torch.nn.functional.dropout and the like"
            )
        raise ShapeError(
            f"host {type(host).__name__}: forward(x) differs from running its segments in order; "
            f"segments() must be the whole chain"
        )
    macs = count_macs(host, x)
    host.train(was_training)
    return HostProbe(tuple(x.shape[1:]), tuple(shapes), macs)


def seed_macs(network: StackedNetwork, probe: HostProbe, slot: int, blueprint: int) -> int:
    """MACs of one seed on one sample at its slot."""
    bank = network.bank(slot, blueprint)
    return count_macs(bank.template, torch.zeros(1, *probe.slot_shapes[slot], device=bank.device))
