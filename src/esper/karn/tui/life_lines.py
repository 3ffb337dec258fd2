"""Life lines: per member and slot, the stage of its seed over the steps of the newest episode."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from esper.karn.tui.formats import middle
from esper.karn.tui.panel import Panel, hint
from esper.karn.tui.reader import RunShot
from esper.karn.tui.stage_marks import stage_legend, stage_mark
from esper.karn.views import SeedLife
from esper.leyline.stages import SeedStage

_LABEL = 24
_LEAST_LABEL = 14


class LifeLines(Panel):
    """One line per slot that had a seed."""

    TITLE = "Life lines"
    SHORT = "Lives"

    def content(self, shot: RunShot, width: int, height: int) -> RenderableType:
        """Legend, then the lines."""
        if not shot.seeds:
            return hint("no seed has germinated in the newest round")
        length = _length(shot)
        names = (len(_place(one)) + len(one.blueprint) for one in shot.seeds)
        room = width - 1 - min(length, width // 2)  # a column for every step, if there are
        label = max(_LEAST_LABEL, min(_LABEL, room, max(names)))
        columns = max(8, min(width - label - 1, 2 * length))
        lines = [_line(lives, label, columns, length) for lives in _by_slot(shot.seeds)]
        seen = {SeedStage[span.stage] for one in shot.seeds for span in one.stages}
        legend = stage_legend((SeedStage.DORMANT, *sorted(seen)))
        heading = f"{f'round {shot.seeds[0].round + 1}':<{label}} step 1 to {length}"
        return Group(legend, Text(heading, style="dim"), *lines)


def _length(shot: RunShot) -> int:
    """Steps of the episode; without a record of the setup, as many as anything is known of."""
    known = shot.setup.episode_length if shot.setup else 0
    return known or 1 + max(span.first for one in shot.seeds for span in one.stages)


def _by_slot(seeds: Sequence[SeedLife]) -> list[list[SeedLife]]:
    found: dict[tuple[int, str], list[SeedLife]] = {}
    for one in seeds:
        found.setdefault((one.member, one.slot), []).append(one)
    return list(found.values())


def _line(lives: Sequence[SeedLife], label: int, columns: int, length: int) -> Text:
    """All seeds that a slot of a member had."""
    last = lives[-1]
    place = _place(last)
    name = place + middle(last.blueprint, max(3, label - len(place)))
    line = Text.assemble(f"{name:<{label}} ", no_wrap=True)
    stages = _stages(lives, length)
    at = 0
    while at < columns:  # equal neighbours in one piece
        stage, begin = stages[at * length // columns], at
        while at < columns and stages[at * length // columns] is stage:
            at += 1
        line.append_text(stage_mark(stage, at - begin))
    return line


def _place(one: SeedLife) -> str:
    return f"{one.member:>3} {one.slot} "


def _stages(lives: Sequence[SeedLife], length: int) -> list[SeedStage]:
    """Stage of the slot at every step."""
    stages = [SeedStage.DORMANT] * length
    for one in lives:
        for span in one.stages:
            end = length if span.end is None else span.end
            for step in range(span.first, min(end, length)):
                stages[step] = SeedStage[span.stage]
    return stages
