"""Fixed mixes of seed stages for benchmarks, the same on every machine.

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
"""Stages of live slots, a third in each."""
_ALLOWED: Final = (SeedStage.DORMANT, *STAGES)


def half_of_slots_live(members: int, slots: int) -> Codes:
    """`[E, S]`: a seed in every other slot, split evenly between `STAGES`.

    Odd and even members occupy complementary slots, and the stages shift by one slot from pair to
    pair, so the split is exact for even E and S divisible by 3. Independent of E for each member.

    >>> half_of_slots_live(4, 3).tolist()
    [[2, 0, 4], [0, 3, 0], [3, 0, 2], [0, 4, 0]]
    """
    member_ES, slot_ES = np.indices((members, slots))
    live_ES = (member_ES + slot_ES) % 2 == 0
    stage_ES = np.array(STAGES, dtype=np.int8)[(slot_ES + member_ES // 2) % len(STAGES)]
    return np.where(live_ES, stage_ES, np.int8(SeedStage.DORMANT))


def set_seed_stages(population: Population, blueprint: str, target_ES: Codes) -> None:
    """Germinate and advance seeds, from dormant slots, until all are in their target stage."""
    assert np.isin(target_ES, _ALLOWED).all(), "only stages that do not change without an action"
    life = population.lifecycle
    member_N, slot_N = np.nonzero(target_ES != SeedStage.DORMANT)
    # A seed with an alpha target below 1 stays in BLENDING.
    partial, full = np.float32(min(ALPHA_TARGETS)), np.float32(max(ALPHA_TARGETS))
    target_N = np.where(target_ES[member_N, slot_N] == SeedStage.BLENDING, partial, full)
    population.germinate(member_N, slot_N, blueprint, alpha_target=target_N)
    ones_E = np.ones(life.members, dtype=np.float32)
    ones_ES = np.ones(life.stage_ES.shape, dtype=np.float32)
    healthy = GateSignals(ones_E, ones_ES, ones_ES, ones_ES, ones_ES)
    advancing_ES = np.isin(target_ES, (SeedStage.BLENDING, SeedStage.HOLDING))
    while (life.stage_ES != target_ES).any() or life.ramp_steps_left().any():
        population.begin_step()
        population.end_step(healthy)
        legal_ES = life.legal_ops()[..., LifecycleOp.ADVANCE] & advancing_ES
        if legal_ES.any():
            members, slots = np.nonzero(legal_ES)
            population.advance(members, slots)
