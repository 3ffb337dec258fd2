"""How one member grew: per slot the stages of its seeds, and above them their contributions."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from esper.karn.report.life_lines import life_bar, stage_legend
from esper.karn.views.growth import Measurement, MemberGrowth, SeedGrowth
from esper.leyline.statistics import Estimate
from esper.plotting.html import Markup, markup, tag
from esper.plotting.line_plot import LEFT, RIGHT, Series, canvas, line_panel, nothing
from esper.plotting.svg_axes import Scale, x_axis

PANEL: Final = 84.0
BAR: Final = 34.0
NORMAL: Final = 1.96
"""Standard errors from the middle to an end of a 95 % interval."""


def growth_picture(growth: MemberGrowth) -> Markup:
    """Slots in the order of the network, below each other."""
    if not growth.seeds:
        return nothing("no seed was grown in this member, or seeds were not recorded")
    x = Scale(0.0, float(growth.steps), LEFT, RIGHT)
    parts, top = [], 30.0
    for slot in growth.slots:
        seeds = [one for one in growth.seeds if one.slot == slot]
        height = (PANEL if any(one.measured for one in seeds) else 0.0) + BAR
        parts.append(_slot(slot, seeds, x, top, top + height, growth.now))
        top += height + 26
    label = (
        f"Seeds of member {growth.member} in {len(growth.slots)} slots over {growth.steps} steps; "
        f"the table below says what happened"
    )
    axis = x_axis(x, x.ticks(), 20.0, top, "steps done")
    return canvas(label, top + 86, axis, *parts, stage_legend(growth.seeds, top + 64))


def _slot(
    slot: str, seeds: list[SeedGrowth], x: Scale, top: float, bottom: float, now: int
) -> Markup:
    series = [Series("", tuple(_estimates(one.measured))) for one in seeds if one.measured]
    panel = (
        line_panel(series, x, top, bottom - BAR, "points lost without it") if series else markup()
    )
    names = (
        tag("text", one.blueprint, x=x(one.stages[0].first), y=bottom - 17, class_="note")
        for one in _apart(seeds)
    )
    bars = (life_bar(one, x, bottom, now) for one in seeds)
    at = tag("text", slot, x=LEFT - 6, y=bottom - 2, text_anchor="end", class_="tick")
    return markup(panel, at, *bars, *names)


def _estimates(measured: Iterable[Measurement]) -> Iterable[tuple[float, Estimate]]:
    for one in measured:
        value, reach = 100 * one.value, 100 * NORMAL * one.se
        yield float(one.at), Estimate(value, value - reach, value + reach)


def _apart(seeds: list[SeedGrowth]) -> list[SeedGrowth]:
    """Seeds whose names do not run into that of the one before."""
    pairs = pairwise(seeds)
    return seeds[:1] + [b for a, b in pairs if b.stages[0].first - a.stages[0].first > 2]
