"""Validation of user hosts when a population is built.

Shapes are checked on the first input (`probe`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Final

from torch import nn

from esper.leyline.errors import EsperError, ShapeError, unknown_name
from esper.leyline.protocols import HostProtocol
from esper.leyline.slots import TOPOLOGIES, InjectionSpec, Topology
from esper.leyline.user_errors import user_code

LAYOUTS: Final[dict[Topology, tuple[str, ...]]] = {
    "cnn": ("B", "C", "H", "W"),
    "transformer": ("B", "T", "C"),
    "mlp": ("B", "C"),
    "signal": ("B", "C", "L"),
}
"""Axes of the activations at the slots, by topology; C is the `channels` of an injection spec."""


def axes_after_channels(topology: Topology) -> int:
    """Return the number of axes behind the channels: 2 for images, 1 for signals, else 0."""
    layout = LAYOUTS[topology]
    return len(layout) - 1 - layout.index("C")


def as_host(module: nn.Module) -> HostProtocol:
    """Return the module as a host; raises with what it lacks."""
    if not isinstance(module, HostProtocol):
        wanted = ("topology", "segments", "injection_specs", "forward")
        missing = [name for name in wanted if not hasattr(module, name)]
        raise EsperError(
            f"{type(module).__name__} is not a host: HostProtocol asks for {', '.join(missing)}"
        )
    topology = module.topology
    if topology not in TOPOLOGIES:
        shown = topology if isinstance(topology, str) else type(topology).__name__
        raise unknown_name("topology", shown, TOPOLOGIES, f"of {type(module).__name__}")
    return module


def host_is_causal(host: object) -> bool:
    """Whether outputs at a position depend on earlier ones only: its `causal`, True without one."""
    declared = inspect.getattr_static(host, "causal", True)
    if not hasattr(declared, "__get__"):
        return bool(declared)
    with user_code(f"{type(host).__name__}.causal fails"):
        # Not `host.causal`: nn.Module takes an AttributeError inside a property for a missing one.
        return bool(declared.__get__(host, type(host)))


def host_segments(host: HostProtocol) -> tuple[nn.Module, ...]:
    """Return the validated result of `segments()`."""
    name = f"{type(host).__name__}.segments()"
    with user_code(f"{name} fails"):
        chain = tuple(host.segments())
    for index, module in enumerate(chain):
        if not isinstance(module, nn.Module):
            raise EsperError(
                f"{name} holds {_short(module)} at index {index}: every segment is an nn.Module "
                f"(wrap a function in one)"
            )
    if not chain:
        raise EsperError(f"{name} is empty: return the modules in the order they are run")
    return chain


def host_slots(host: HostProtocol) -> dict[str, InjectionSpec]:
    """Return the validated result of `injection_specs()` by slot id."""
    name = f"{type(host).__name__}.injection_specs()"
    with user_code(f"{name} fails"):
        specs = tuple(host.injection_specs())
    offered: dict[str, InjectionSpec] = {}
    for spec in specs:
        if not isinstance(spec, InjectionSpec):
            raise EsperError(
                f"{name} holds {_short(spec)}: give InjectionSpec(slot_id, channels, position, "
                f"surface)"
            )
        if spec.slot_id in offered:
            raise EsperError(f"{name} offers slot {spec.slot_id} twice: slot ids must be unique")
        offered[spec.slot_id] = spec
    return offered


def enabled_slots(
    host: HostProtocol, slots: Sequence[str], segments: int
) -> tuple[InjectionSpec, ...]:
    """Return the specs of the enabled slots in execution order."""
    offered = host_slots(host)
    require_names("slots", slots)
    for slot in slots:
        if slot not in offered:
            raise unknown_name("slot", slot, offered, f"of {type(host).__name__}")
    chosen = sorted((offered[slot] for slot in slots), key=lambda spec: spec.position)
    for spec in chosen:
        if spec.position >= segments - 1:
            raise EsperError(
                f"slot {spec.slot_id} is at position {spec.position}: the host has {segments} "
                f"segments, and a slot must precede the last one (0 to {segments - 2})"
            )
    return tuple(chosen)


def require_names(what: str, names: Sequence[str]) -> None:
    """Raise unless `names` is a list of distinct names."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise EsperError(f"{what}={names!r}: give a list of names")
    if len(set(names)) != len(names):
        raise EsperError(f"{what} {', '.join(names)}: one is named twice")


def require_least(host: str, least: int = 1, **sizes: int) -> None:
    """Raise unless all sizes of a host are at least so large."""
    for name, value in sizes.items():
        if value < least:
            raise EsperError(f"{host} {name}={value}: must be {least} or more")


def check_activation(
    host: str, topology: Topology, spec: InjectionSpec, shape: tuple[int, ...]
) -> None:
    """Raise unless an activation (batch first) has its topology's rank and its slot's channels.

    Both are checked exactly, so that a batch size cannot pass as a width.
    """
    layout = LAYOUTS[topology]
    axis = layout.index("C")
    if len(shape) == len(layout) and shape[axis] == spec.channels:
        return
    where = f"host {host} segment {spec.position} gives shape {tuple(shape)} at slot {spec.slot_id}"
    axes = f"[{', '.join(layout)}]"
    if len(shape) != len(layout):
        raise ShapeError(
            f"{where}: topology {topology!r} means {axes}, {len(layout)} axes; reshape inside the "
            f"segment, or declare the topology that fits"
        )
    raise ShapeError(
        f"{where}: {shape[axis]} channels on axis {axis} of {axes}, its injection spec promises "
        f"{spec.channels} channels; correct the spec or the segment"
    )


def _short(value: object) -> str:
    return f"{type(value).__name__} {str(value)[:40]!r}"
