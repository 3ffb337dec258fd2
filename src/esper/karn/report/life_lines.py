"""Life lines of seeds over an episode, coloured by stage, with accuracy and contribution above.

Height shows the stage of a seed as well as colour: the further it is, the fuller its row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from esper.karn.stages import STAGE_COLOURS, stage_name
from esper.karn.views.contributions import Contribution, contribution_by_step
from esper.karn.views.growth import SeedGrowth
from esper.karn.views.steps import StepPoint
from esper.leyline.stages import OCCUPIED_STAGES, SeedStage
from esper.leyline.statistics import Estimate
from esper.plotting.html import Markup, markup, tag
from esper.plotting.line_plot import LEFT, RIGHT, Series, canvas, line_panel, nothing
from esper.plotting.svg_axes import Scale, x_axis

MAX_MEMBERS: Final = 8
"""Members drawn; the table has all."""
ROW: Final = 17.0
GAP: Final = 10.0
PANEL: Final = 150.0
_S = SeedStage
FULLNESS: Final = {
    _S.GERMINATED: 0.25, _S.TRAINING: 0.45, _S.BLENDING: 0.65, _S.HOLDING: 0.82,
    _S.FOSSILIZED: 1.0, _S.PLANTED: 1.0,
}  # fmt: skip
"""Share of a row's height that a stage fills; what cools down is a thin line."""


def life_lines(
    lives: Sequence[SeedGrowth],
    slots: Sequence[str],
    steps: Sequence[StepPoint] = (),
    contributions: Sequence[Contribution] = (),
    length: int = 0,
) -> Markup:
    """The picture of one round; `length`: steps of an episode."""
    members = sorted({life.member for life in lives})[:MAX_MEMBERS]
    ends = [span.end or span.first for life in lives for span in life.stages]
    length = max([length, *ends, *(point.step + 1 for point in steps)], default=0)
    if not lives or not length:
        return nothing("no seed was grown in this round, or seeds were not recorded")
    x = Scale(0.0, float(length), LEFT, RIGHT)
    panels, top = _panels(steps, contributions, x)
    now = steps[-1].step + 1 if steps else length  # the round may be under way
    block = ROW * len(slots) + GAP
    bottom = top + block * len(members)
    rows = [
        _member(member, [o for o in lives if o.member == member], slots, x, top + block * i, now)
        for i, member in enumerate(members)
    ]
    label = (
        f"Life lines of {len(lives)} seeds in {len(members)} members over {length} steps; the "
        f"table below has the values"
    )
    return canvas(
        label,
        bottom + 86,
        x_axis(x, x.ticks(), 44.0, bottom, "step of the episode"),
        *panels,
        *rows,
        stage_legend(lives, bottom + 64),
    )


def _panels(
    steps: Sequence[StepPoint], contributions: Sequence[Contribution], x: Scale
) -> tuple[list[Markup], float]:
    """Accuracy and contributions above the lives, and where these begin."""
    panels, top = [], 30.0
    if steps:
        held_out = tuple((point.step + 1.0, point.accuracy) for point in steps)
        trained = tuple(
            (point.step + 1.0, Estimate(point.train_accuracy, math.nan, math.nan))
            for point in steps
            if math.isfinite(point.train_accuracy)
        )
        series = [Series("held out, 95 % interval", held_out)]
        if trained:
            series.append(Series("on train batches", trained))
        panels.append(line_panel(series, x, top + 24, top + PANEL, "accuracy"))
        top += PANEL + 34
    means = contribution_by_step(contributions)
    if means:
        series = [Series("mean", tuple((step + 1.0, mean) for step, mean in means))]
        panels.append(line_panel(series, x, top + 24, top + PANEL * 0.7, "contribution of a seed"))
        top += PANEL * 0.7 + 34
    return panels, top + 8


def _member(
    member: int, lives: Sequence[SeedGrowth], slots: Sequence[str], x: Scale, top: float, now: int
) -> Markup:
    parts = []
    for row, slot in enumerate(slots):
        base = top + ROW * (row + 1) - 2
        name = f"{member} {slot}"
        parts += [
            tag("line", x1=LEFT, x2=RIGHT, y1=base, y2=base, class_="grid"),
            tag("text", name, x=LEFT - 6, y=base - 2, text_anchor="end", class_="tick"),
            *(life_bar(life, x, base, now) for life in lives if life.slot == slot),
        ]
    return markup(*parts)


def life_bar(life: SeedGrowth, x: Scale, base: float, now: int) -> Markup:
    """The stages of a seed above `base`; `now`: where one that has not ended is cut off."""
    parts = []
    for span in life.stages:
        stage = SeedStage[span.stage]
        end = max(now, span.first) if span.end is None else span.end
        height = max(1.5, (ROW - 4) * FULLNESS.get(stage, 0.0))
        title = f"{life.blueprint}, {stage_name(stage)}: steps {span.first} to {end}"
        parts.append(
            tag("rect", tag("title", title), x=x(span.first), y=base - height,
                width=max(0.5, x(end) - x(span.first)), height=height,
                fill=STAGE_COLOURS[stage], class_="life"),
        )  # fmt: skip
    return markup(*parts)


def stage_legend(lives: Sequence[SeedGrowth], y: float) -> Markup:
    """Stages that the seeds went through."""
    seen = {span.stage for life in lives for span in life.stages}
    cooling = any(SeedStage[name] not in OCCUPIED_STAGES for name in seen)
    parts, at = [], LEFT
    for stage in (stage for stage in FULLNESS if stage.name in seen):
        height = (ROW - 4) * FULLNESS[stage]
        name = stage_name(stage)
        parts += [
            tag("rect", x=at, y=y - height, width=22, height=height, fill=STAGE_COLOURS[stage],
                class_="life"),
            tag("text", name, x=at + 28, y=y, class_="note"),
        ]  # fmt: skip
        at += 50 + 7.0 * len(name)
    if cooling:
        parts += [
            tag("rect", x=at, y=y - 1.5, width=22, height=1.5, class_="life",
                fill=STAGE_COLOURS[_S.PRUNED]),
            tag("text", "pruned", x=at + 28, y=y, class_="note"),
        ]  # fmt: skip
    return markup(*parts)
