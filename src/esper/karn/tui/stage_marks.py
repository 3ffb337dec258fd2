"""Stages as letters on their colours, so that they read without colour, too."""

from __future__ import annotations

from typing import Final

from rich.text import Text

from esper.karn.stages import STAGE_COLOURS, stage_name
from esper.leyline.stages import SeedStage

_S = SeedStage
STAGE_MARKS: Final = {
    _S.DORMANT: "·",
    _S.GERMINATED: "g",
    _S.TRAINING: "t",
    _S.BLENDING: "b",
    _S.HOLDING: "h",
    _S.FOSSILIZED: "F",
    _S.PRUNED: "x",
    _S.EMBARGOED: "-",
    _S.RESETTING: "~",
    _S.PLANTED: "L",
}
_LIGHT: Final = 140
"""Brightness from which a colour needs dark text."""


def stage_style(stage: SeedStage) -> str:
    """Text on the colour of a stage; an empty slot has none."""
    if stage is SeedStage.DORMANT:
        return "dim"
    colour = STAGE_COLOURS[stage]
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    bright = 0.299 * red + 0.587 * green + 0.114 * blue >= _LIGHT
    return f"{'#101010' if bright else '#ffffff'} on {colour}"


def stage_mark(stage: SeedStage, width: int = 1) -> Text:
    """The letter of a stage, `width` times."""
    return Text(STAGE_MARKS[stage] * width, style=stage_style(stage))


def stage_legend(stages: tuple[SeedStage, ...] = tuple(SeedStage)) -> Text:
    """`g germinated  t training ...`"""
    names = [Text.assemble(stage_mark(one), f"\u00a0{stage_name(one)}") for one in stages]
    return Text("  ").join(names)
