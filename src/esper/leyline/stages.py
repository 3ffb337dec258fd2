"""Seed stages, their transition table and the stage sets derived from it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final


class SeedStage(IntEnum):
    """Stage of one slot of one member."""

    DORMANT = 0
    GERMINATED = 1
    TRAINING = 2
    BLENDING = 3
    HOLDING = 4
    FOSSILIZED = 5
    PRUNED = 6
    EMBARGOED = 7
    RESETTING = 8
    PLANTED = 9
    """Part of the network since the plan phase, trained like the host; may be pruned."""


class Gate(IntEnum):
    """Check that must pass before a stage is entered. There is no G4."""

    G0 = 0
    G1 = 1
    G2 = 2
    G3 = 3
    G5 = 5


_S = SeedStage

TRANSITIONS: Final[Mapping[SeedStage, frozenset[SeedStage]]] = MappingProxyType(
    {
        _S.DORMANT: frozenset({_S.GERMINATED, _S.PLANTED}),
        _S.GERMINATED: frozenset({_S.TRAINING, _S.PRUNED}),
        _S.TRAINING: frozenset({_S.BLENDING, _S.PRUNED}),
        _S.BLENDING: frozenset({_S.HOLDING, _S.PRUNED}),
        _S.HOLDING: frozenset({_S.FOSSILIZED, _S.BLENDING, _S.PRUNED}),
        _S.FOSSILIZED: frozenset(),
        _S.PRUNED: frozenset({_S.EMBARGOED}),
        _S.EMBARGOED: frozenset({_S.RESETTING}),
        _S.RESETTING: frozenset({_S.DORMANT}),
        _S.PLANTED: frozenset({_S.BLENDING, _S.PRUNED}),  # BLENDING: its alpha ramps down
    }
)
"""Stage -> stages that may follow it. Every other rule about stages derives from this table."""

GATE_INTO: Final[Mapping[SeedStage, Gate]] = MappingProxyType(
    {
        _S.GERMINATED: Gate.G0,
        _S.TRAINING: Gate.G1,
        _S.BLENDING: Gate.G2,
        _S.HOLDING: Gate.G3,
        _S.FOSSILIZED: Gate.G5,
    }
)
"""Gate that must pass to enter a stage (HOLDING back to BLENDING has none)."""

ADVANCE_TO: Final[Mapping[SeedStage, SeedStage]] = MappingProxyType(
    {_S.GERMINATED: _S.TRAINING, _S.TRAINING: _S.BLENDING, _S.BLENDING: _S.HOLDING}
)
"""Target stage of ADVANCE, by current stage."""

COOLDOWN_CHAIN: Final = (_S.PRUNED, _S.EMBARGOED, _S.RESETTING, _S.DORMANT)
"""Stages after a prune, in order, back to DORMANT."""

PRUNABLE_STAGES: Final = frozenset(s for s, after in TRANSITIONS.items() if _S.PRUNED in after)
"""Stages a seed can be pruned from."""

STATIC_STAGES: Final = frozenset({_S.FOSSILIZED, _S.PLANTED})
"""The seed trains at the host's rate and is restored with it by a rollback."""

LIVE_STAGES: Final = PRUNABLE_STAGES - STATIC_STAGES
"""The slot holds a seed on trial: neither permanent nor planted."""

OCCUPIED_STAGES: Final = LIVE_STAGES | STATIC_STAGES
"""The slot holds a seed, which counts against the seed budget."""

BLENDED_STAGES: Final = frozenset({_S.BLENDING, _S.HOLDING}) | STATIC_STAGES
"""The seed may contribute to the member's output (alpha may be above 0)."""
