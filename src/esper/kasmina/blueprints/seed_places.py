"""What a seed needs to know of its slot: which blueprints fit, and what a new one is built from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from esper.device.rng import forked_rng
from esper.kasmina.blueprints.registry import Blueprint, HostSegment
from esper.kasmina.layers.host_checks import LAYOUTS, host_is_causal, host_segments
from esper.leyline.errors import EsperError
from esper.leyline.protocols import HostProtocol
from esper.leyline.slots import InjectionSpec, Topology
from esper.leyline.user_errors import user_code

_SAMPLES: Final = 2
_SIDE: Final = 4
"""Batch and spatial sizes of the activation on which a new seed's output shape is checked."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment of the host, with its parameter names mapped to the host's."""

    module: nn.Module
    names: dict[str, str]
    """Local name -> name in the host, so that a tied weight is one parameter."""


def named_segments(host: HostProtocol) -> tuple[Segment, ...]:
    """Return the host's segments, with parameter names traced to the host's by identity.

    They must hold all its parameters.
    """
    assert isinstance(host, nn.Module)
    owners = {id(t): n for n, t in (*host.named_parameters(), *host.named_buffers())}
    segments = []
    for index, module in enumerate(host_segments(host)):
        names = {}
        for local, tensor in (
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        ):
            if id(tensor) not in owners:
                raise EsperError(
                    f"{type(host).__name__} segment {index} has {local!r}, which is not registered "
                    f"in the host: make the segment's modules attributes of the host"
                )
            names[local] = owners[id(tensor)]
        segments.append(Segment(module, names))
    unused = set(owners.values()) - {name for s in segments for name in s.names.values()}
    if unused:
        raise EsperError(
            f"{type(host).__name__} {sorted(unused)[0]!r} is in none of its segments: "
            f"a parameter outside the chain would never train"
        )
    return tuple(segments)


def find_sources(
    segments: Sequence[Segment], topology: Topology, slots: Sequence[InjectionSpec]
) -> dict[int, HostSegment]:
    """Return the nearest segment with parameters before each slot that has one.

    `segments`: on the CPU. Keys count the slots.
    """
    found = {}
    for slot, spec in enumerate(slots):
        for index in range(spec.position, -1, -1):
            module, names = segments[index].module, segments[index].names
            if any(True for _ in module.parameters()):
                sample = sample_activation(topology, spec.channels)
                found[slot] = HostSegment(module, index, names, spec, topology, sample)
                break
    return found


def sample_activation(topology: Topology, channels: int) -> Tensor:
    """Return two small activations of a slot's shape, on the CPU."""
    sizes = {"B": _SAMPLES, "C": channels}
    shape = tuple(sizes.get(axis, _SIDE) for axis in LAYOUTS[topology])
    return torch.linspace(-1.0, 1.0, math.prod(shape)).view(shape)


def misfit(
    recipe: Blueprint, spec: InjectionSpec, source: HostSegment | None, host: object
) -> str | None:
    """Return why a blueprint does not fit a slot, or None if it does.

    `source`: the segment that seeds made from the host are made from.
    """
    if recipe.reads_ahead and host_is_causal(host):
        return "reads later positions, which the host does not (its attribute causal)"
    if spec.channels < recipe.min_width:
        return f"needs a width of at least {recipe.min_width}, the slot has {spec.channels}"
    if not recipe.from_host:
        return None
    if source is None:
        return "copies a segment with parameters, and none comes before the slot"
    try:
        with forked_rng(0):
            build_seed(recipe, spec, source)
    except EsperError as error:
        kind = type(source.module).__name__
        return f"cannot copy segment {source.index} ({kind}) before the slot: {error}"
    return None


def build_seed(recipe: Blueprint, spec: InjectionSpec, source: HostSegment | None) -> nn.Module:
    """Build a seed with the slot's width, or from the host."""
    given = "host segment" if recipe.from_host else "width"
    what = f"blueprint {recipe.name!r} cannot be built for width {spec.channels}"
    with user_code(what, f"it is called with the {given} alone", TypeError):
        return recipe.factory(source if recipe.from_host else spec.channels)
