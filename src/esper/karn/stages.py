"""Display name and colour of each stage."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from esper.leyline.stages import SeedStage

_S = SeedStage

STAGE_COLOURS: Final[Mapping[SeedStage, str]] = MappingProxyType(
    {
        _S.DORMANT: "#eceff1",
        _S.GERMINATED: "#fff3b0",
        _S.TRAINING: "#ffd166",
        _S.BLENDING: "#a8d99c",
        _S.HOLDING: "#4fae78",
        _S.FOSSILIZED: "#1e7d48",
        _S.PRUNED: "#b0a8b9",
        _S.EMBARGOED: "#cfc9d4",
        _S.RESETTING: "#dedae1",
        _S.PLANTED: "#2a7f9e",
    }
)


def stage_name(stage: SeedStage) -> str:
    """The stage as it is called in the code, in small letters."""
    return stage.name.lower()
