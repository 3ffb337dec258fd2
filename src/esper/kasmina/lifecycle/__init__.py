"""Lifecycle of seeds: which operations are legal, and what each changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from esper.kasmina.lifecycle.arguments import IntLike, as_integers
from esper.kasmina.lifecycle.lifecycle import Lifecycle
from esper.leyline.actions import LifecycleOp, VetoReason
from esper.leyline.arrays import Bools
from esper.leyline.errors import EsperError
from esper.leyline.slots import InjectionSpec


class _HasLifecycle(Protocol):
    """Anything with a lifecycle, such as a population."""

    @property
    def lifecycle(self) -> Lifecycle: ...


def advance_active_seed(population: _HasLifecycle, members: IntLike, slot: IntLike) -> Bools:
    """Advance the seed of `slot` in each member where the gate passes; return where it did.

    `slot`: one for all members, or one each.
    """
    life = population.lifecycle
    wanted = as_integers("member", np.atleast_1d(members))
    slots = np.broadcast_to(as_integers("slot", np.atleast_1d(slot)), wanted.shape)
    passes = life.veto(LifecycleOp.ADVANCE)[wanted, slots] == VetoReason.NONE
    if passes.any():
        life.advance(wanted[passes], slots[passes])
    return np.asarray(passes)


def resolve_target_slot(
    slot_idx: int, enabled_slots: Sequence[str], slot_config: Sequence[InjectionSpec]
) -> tuple[str, int]:
    """Return the id and segment position of a slot given by its index in `enabled_slots`.

    `slot_config`: the slots of the host. Raises if the index is out of range.
    """
    if not 0 <= slot_idx < len(enabled_slots):
        raise EsperError(
            f"slot index {slot_idx}: {len(enabled_slots)} slots are enabled "
            f"({', '.join(enabled_slots)}), valid are 0 to {len(enabled_slots) - 1}"
        )
    name = enabled_slots[slot_idx]
    positions = {spec.slot_id: spec.position for spec in slot_config}
    if name not in positions:
        raise EsperError(f"slot {name!r} is not in the host: it has {', '.join(positions)}")
    return name, positions[name]
