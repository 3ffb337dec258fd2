"""Which stages a seed passes through, and the one table of legal transitions.

Every other rule about stages (what trains, what is blended, what cools down) is a set derived here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final


class SeedStage(IntEnum):
    """The life of what stands in one slot of one member."""

    DORMANT = 0
    GERMINATED = 1
    TRAINING = 2
    BLENDING = 3
    HOLDING = 4
    FOSSILIZED = 5
    PRUNED = 6
    EMBARGOED = 7
    RESETTING = 8


class Gate(IntEnum):
    """The check before a stage is entered. There is no G4."""

    G0 = 0
    G1 = 1
    G2 = 2
    G3 = 3
    G5 = 5


_S = SeedStage

TRANSITIONS: Final[Mapping[SeedStage, frozenset[SeedStage]]] = MappingProxyType(
    {
        _S.DORMANT: frozenset({_S.GERMINATED}),
        _S.GERMINATED: frozenset({_S.TRAINING, _S.PRUNED}),
        _S.TRAINING: frozenset({_S.BLENDING, _S.PRUNED}),
        _S.BLENDING: frozenset({_S.HOLDING, _S.PRUNED}),
        _S.HOLDING: frozenset({_S.FOSSILIZED, _S.BLENDING, _S.PRUNED}),
        _S.FOSSILIZED: frozenset(),
        _S.PRUNED: frozenset({_S.EMBARGOED}),
        _S.EMBARGOED: frozenset({_S.RESETTING}),
        _S.RESETTING: frozenset({_S.DORMANT}),
    }
)
"""The one transition table: stage -> stages that may follow it."""

GATE_INTO: Final[Mapping[SeedStage, Gate]] = MappingProxyType(
    {
        _S.GERMINATED: Gate.G0,
        _S.TRAINING: Gate.G1,
        _S.BLENDING: Gate.G2,
        _S.HOLDING: Gate.G3,
        _S.FOSSILIZED: Gate.G5,
    }
)
"""The gate that guards the way forward into a stage (HOLDING back to BLENDING has none)."""

ADVANCE_TO: Final[Mapping[SeedStage, SeedStage]] = MappingProxyType(
    {_S.GERMINATED: _S.TRAINING, _S.TRAINING: _S.BLENDING, _S.BLENDING: _S.HOLDING}
)
"""Where ADVANCE leads from each stage it applies to."""

COOLDOWN_CHAIN: Final = (_S.PRUNED, _S.EMBARGOED, _S.RESETTING, _S.DORMANT)
"""The way back to DORMANT, in order."""

PRUNABLE_STAGES: Final = frozenset(s for s, after in TRANSITIONS.items() if _S.PRUNED in after)
"""Stages a seed can be pruned from."""

LIVE_STAGES: Final = PRUNABLE_STAGES
"""A seed stands in the slot and is not permanent."""

OCCUPIED_STAGES: Final = LIVE_STAGES | {_S.FOSSILIZED}
"""A seed stands in the slot; it counts against the seed budget."""

BLENDED_STAGES: Final = frozenset({_S.BLENDING, _S.HOLDING, _S.FOSSILIZED})
"""The seed may be part of the member's output (alpha may be above 0)."""

FULL_ALPHA_STAGES: Final = frozenset({_S.HOLDING, _S.FOSSILIZED})
"""Alpha is exactly 1."""

COOLING_STAGES: Final = frozenset(COOLDOWN_CHAIN[:-1])
"""The slot rests after a prune."""


def can_follow(stage: SeedStage, after: SeedStage) -> bool:
    """Whether `after` may follow `stage` directly."""
    return after in TRANSITIONS[stage]
