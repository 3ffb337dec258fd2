"""In which stages seeds stand while something is timed: fixed mixes, the same on every machine.

Shape letters: E members, S slots.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from esper.kasmina import Population
from esper.leyline.actions import ALPHA_TARGETS, LifecycleOp
from esper.leyline.arrays import Codes
from esper.leyline.signals import GateSignals
from esper.leyline.stages import SeedStage

STAGES: Final = (SeedStage.TRAINING, SeedStage.BLENDING, SeedStage.HOLDING)
"""A third of the live slots stands in each."""
_MAY_STAND: Final = (SeedStage.DORMANT, *STAGES)


def every_slot_live(members: int, slots: int) -> Codes:
    """`[E, S]`: a seed in every slot, a third of them in each stage."""
    member_ES, slot_ES = np.indices((members, slots))
    return _stages((member_ES + slot_ES) % len(STAGES))


def half_of_slots_live(members: int, slots: int) -> Codes:
    """`[E, S]`: the design's mix: every other slot has a seed, a third of them in each stage.

    Two neighbours have each slot once between them, and from pair to pair the stages move on by
    one slot. So the shares are exact for an even E and 3, 6, ... slots; one member alone has the
    larger half. What member i has depends on no other member.

    >>> half_of_slots_live(4, 3).tolist()
    [[2, 0, 4], [0, 3, 0], [3, 0, 2], [0, 4, 0]]
    """
    member_ES, slot_ES = np.indices((members, slots))
    live_ES = (member_ES + slot_ES) % 2 == 0
    stage_ES = _stages((slot_ES + member_ES // 2) % len(STAGES))
    return np.where(live_ES, stage_ES, np.int8(SeedStage.DORMANT))


def _stages(third_ES: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Codes:
    return np.array(STAGES, dtype=np.int8)[third_ES]


def spread_stages(population: Population, blueprint: str, wanted_ES: Codes) -> None:
    """Lead seeds through the lifecycle, from dormant slots, until each stands where it should."""
    assert np.isin(wanted_ES, _MAY_STAND).all(), "stages that last while nobody acts"
    life = population.lifecycle
    member_N, slot_N = np.nonzero(wanted_ES != SeedStage.DORMANT)
    # A seed blended to less than full strength stays BLENDING.
    partly, fully = np.float32(min(ALPHA_TARGETS)), np.float32(max(ALPHA_TARGETS))
    target_N = np.where(wanted_ES[member_N, slot_N] == SeedStage.BLENDING, partly, fully)
    population.germinate(member_N, slot_N, blueprint, alpha_target=target_N)
    ones_E = np.ones(life.members, dtype=np.float32)
    ones_ES = np.ones(life.stage_ES.shape, dtype=np.float32)
    healthy = GateSignals(ones_E, ones_ES, ones_ES, ones_ES, ones_ES)
    goes_on_ES = np.isin(wanted_ES, (SeedStage.BLENDING, SeedStage.HOLDING))
    while (life.stage_ES != wanted_ES).any() or life.ramp_steps_left().any():
        population.begin_step()
        population.end_step(healthy)
        may_ES = life.legal_ops()[..., LifecycleOp.ADVANCE] & goes_on_ES
        if may_ES.any():
            members, slots = np.nonzero(may_ES)
            population.advance(members, slots)
