"""Slot ids, injection points of a host, and the per-slot report."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from esper.leyline.errors import EsperError, shown
from esper.leyline.stages import SeedStage

Topology = Literal["cnn", "transformer", "mlp", "signal"]
TOPOLOGIES: Final[tuple[Topology, ...]] = ("cnn", "transformer", "mlp", "signal")
"""Images, sequences, vectors and signals; `kasmina.layers.host_checks.LAYOUTS` has their axes."""

_SLOT_ID: Final = re.compile(r"r(0|[1-9][0-9]*)c(0|[1-9][0-9]*)")


def slot_id(row: int, col: int) -> str:
    """Return the id of the slot in surface row `row`, column `col`.

    >>> slot_id(0, 2)
    'r0c2'
    """
    return f"r{row}c{col}"


def is_slot_id(text: str) -> bool:
    """Whether a text is the id of a slot.

    >>> is_slot_id("r0c1"), is_slot_id("weight")
    (True, False)
    """
    return _SLOT_ID.fullmatch(text) is not None


def parse_slot_id(text: str) -> tuple[int, int]:
    """Parse a slot id into (row, column).

    >>> parse_slot_id("r1c10")
    (1, 10)
    """
    match = _SLOT_ID.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise EsperError(f"slot id {shown(text)}: expected r<row>c<col>, for example 'r0c1'")
    return int(match[1]), int(match[2])


@dataclass(frozen=True, slots=True)
class InjectionSpec:
    """One point in a host where a seed can be inserted."""

    slot_id: str
    """`r<row>c<col>`; the row is the surface, the column counts along the host."""
    channels: int
    """Channels (cnn, signal) or width (transformer, mlp) of the activation there."""
    position: int
    """The slot follows the segment with this index."""
    surface: str
    """Meaning of the row in this host, for example `pre_pool` or `after_mlp`."""

    def __post_init__(self) -> None:
        parse_slot_id(self.slot_id)
        for name, least in (("channels", 1), ("position", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise EsperError(
                    f"slot {self.slot_id}: {name} {value!r} must be an integer, {least} or more"
                )


@dataclass(frozen=True, slots=True)
class SlotReport:
    """State of one slot of one member, human-readable."""

    member: int
    slot_id: str
    stage: SeedStage
    blueprint: str | None
    style: str | None
    alpha: float
    alpha_target: float
    ramp_steps_left: int
    steps_in_stage: int
    age: int
    """Steps since germination; 0 if the slot holds no seed."""
    pruning: bool
    cooldown_left: int
    params: int
    """Parameter count of the seed (0 if none)."""
    macs: int
    """Multiply-accumulates of the seed per sample (0 if none, or before the first batch)."""
    contribution: float
    """Last measured counterfactual contribution; NaN if never measured."""
    contribution_se: float
