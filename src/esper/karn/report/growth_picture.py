"""How one member grew: its learning rate; per slot stages of its seeds, their contributions."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from esper.karn.report.life_lines import life_bar, stage_legend
from esper.karn.views.growth import Measurement, MemberGrowth, SeedGrowth
from esper.leyline.statistics import Estimate
from esper.plotting.html import Markup, markup, tag
from esper.plotting.line_plot import (
    DASHES,
    LEFT,
    RIGHT,
    SERIES,
    Series,
    canvas,
    line_panel,
    nothing,
)
from esper.plotting.svg_axes import Scale, x_axis, y_axis

RATES_TOP: Final = 30.0
PANEL: Final = 84.0
BAR: Final = 34.0
NORMAL: Final = 1.96
"""Standard errors from the middle to an end of a 95 % interval."""


def growth_picture(growth: MemberGrowth) -> Markup:
    """Slots in the order of the network, below each other."""
    if not growth.seeds:
        return nothing("no seed was grown in this member, or seeds were not recorded")
    x = Scale(0.0, float(growth.steps), LEFT, RIGHT)
    parts, top = [_rates(growth, x)], RATES_TOP + (PANEL + 26 if growth.rates else 0.0)
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


def _rates(growth: MemberGrowth, x: Scale) -> Markup:
    """The rates of every step, from its beginning to its end; dashed: of seeds, if they differ."""
    if not growth.rates:
        return markup()
    hosts = [(one.at, one.host) for one in growth.rates]
    seeds = [(one.at, one.seed) for one in growth.rates]
    curves = [hosts] if hosts == seeds else [hosts, seeds]
    most = max(rate for curve in curves for _, rate in curve)
    y = Scale(0.0, most or 1.0, RATES_TOP + PANEL, RATES_TOP)
    title = "learning rate" if len(curves) == 1 else "learning rate of the host; dashed: of seeds"
    lines = (
        tag(
            "polyline",
            points=" ".join(f"{x(t):.1f},{y(v):.1f}" for at, v in curve for t in (at - 1, at)),
            class_=f"{kind} path",
            stroke_width=2.2,
            stroke_dasharray=dash or "none",
        )
        for curve, kind, dash in zip(curves, SERIES, DASHES, strict=False)
    )
    return markup(y_axis(y, LEFT, RIGHT, title), *lines)


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
