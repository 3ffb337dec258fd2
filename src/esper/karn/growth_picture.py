"""Plot of growth: learning curves on top, the stages of every seed below.

Shape letters: N curves of one population (members or runs), T steps, E members, S slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from esper.karn.stages import (
    LEAVING_COLOUR,
    LEAVING_NAME,
    STAGE_COLOURS,
    STAGE_NOTES,
    stage_name,
)
from esper.leyline.arrays import Bools, Codes, Doubles, Floats
from esper.leyline.errors import EsperError
from esper.leyline.stages import SeedStage
from esper.leyline.statistics import t_interval
from esper.plotting.style import INK, new_figure, write_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

CURVE_COLOURS: Final = ("#0b6e99", "#c1571a", "#6b4fa0", "#4d4d4d")
"""One per population, in the order given."""
WIDTH_INCHES: Final = 10.5
CURVES_INCHES: Final = 3.4
ROW_INCHES: Final = 0.115
"""Height of one slot of one member."""
MEMBER_GAP: Final = 0.5
"""Gap between members, in rows."""
MAX_MEMBERS: Final = 24
"""Maximum number of members drawn; more would not be readable."""
TITLE_POINTS: Final = 9.5


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Held-out accuracy of one population over time."""

    label: str
    accuracy_NT: Floats
    """0..1; one thin line per N. A score in units of accuracy may be negative."""


@dataclass(frozen=True, slots=True, eq=False)
class LifeLines:
    """Stage of every slot at each step."""

    slots: tuple[str, ...]
    stage_TES: Codes
    """`SeedStage`."""
    leaving_TES: Bools
    """A pruned seed whose alpha is ramping down."""


def draw_growth(path: Path, curves: Sequence[Curve], lives: LifeLines, title: str) -> None:
    """Write the plot as a PNG."""
    _check(curves, lives)
    members, note = lives.stage_TES.shape[1], ""
    if members > MAX_MEMBERS:
        note = f" (members 0 to {MAX_MEMBERS - 1} of {members})"
        stages, leaving = lives.stage_TES[:, :MAX_MEMBERS], lives.leaving_TES[:, :MAX_MEMBERS]
        lives = LifeLines(lives.slots, stages, leaving)
    write_png(path, _figure(curves, lives, title, note))


def _check(curves: Sequence[Curve], lives: LifeLines) -> None:
    if not 1 <= len(curves) <= len(CURVE_COLOURS):
        raise EsperError(f"{len(curves)} curves: 1 to {len(CURVE_COLOURS)} are distinguishable")
    steps, _, slots = lives.stage_TES.shape
    if lives.leaving_TES.shape != lives.stage_TES.shape or slots != len(lives.slots):
        raise EsperError(
            f"life lines: stages {lives.stage_TES.shape}, leaving {lives.leaving_TES.shape}, "
            f"{len(lives.slots)} slots; expected steps x members x slots for both"
        )
    for curve in curves:
        if curve.accuracy_NT.ndim != 2 or curve.accuracy_NT.shape[1] != steps:
            raise EsperError(
                f"curve {curve.label!r}: shape {curve.accuracy_NT.shape}, expected N x {steps}"
            )


def _figure(curves: Sequence[Curve], lives: LifeLines, title: str, note: str) -> Figure:
    _, members, slots = lives.stage_TES.shape
    lives_inches = max(1.2, ROW_INCHES * members * (slots + MEMBER_GAP))
    figure = new_figure((WIDTH_INCHES, CURVES_INCHES + lives_inches + 1.5), title)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[CURVES_INCHES, lives_inches])
    _draw_curves(top, curves)
    _draw_lives(bottom, lives, note)
    figure.legend(
        handles=_stage_legend(lives), loc="outside lower center", ncols=5, fontsize=8, frameon=False
    )
    return figure


def _draw_curves(axes: Axes, curves: Sequence[Curve]) -> None:
    for curve, colour in zip(curves, CURVE_COLOURS, strict=False):
        accuracy_TN = 100.0 * np.asarray(curve.accuracy_NT, dtype=np.float64).T
        steps = np.arange(1, len(accuracy_TN) + 1)
        axes.plot(steps, accuracy_TN, color=colour, linewidth=0.7, alpha=0.35)
        mean, low, high = t_interval(accuracy_TN.T)
        axes.fill_between(steps, low, high, color=colour, alpha=0.22, linewidth=0)
        label = f"{curve.label}: {mean[-1]:.1f} % at the end"
        axes.plot(steps, mean, color=colour, linewidth=2.4, label=label)
    axes.set_title(
        "Accuracy on held-out samples (thin: one member; thick: mean, band: 95 % interval)",
        fontsize=TITLE_POINTS,
        loc="left",
        color=INK,
    )
    axes.set_ylabel("accuracy, %")
    lowest = 100 * min(float(np.nanmin(curve.accuracy_NT)) for curve in curves)
    axes.set_ylim(min(0.0, lowest - 2.0), 100)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.legend(loc="best", fontsize=9, frameon=True, framealpha=0.9, edgecolor="none")
    _plain_frame(axes)


def _draw_lives(axes: Axes, lives: LifeLines, note: str) -> None:
    from matplotlib.colors import to_rgb

    steps, members, slots = lives.stage_TES.shape
    palette = np.array([to_rgb(STAGE_COLOURS[stage]) for stage in SeedStage])
    colours_TES3 = palette[lives.stage_TES.astype(np.int64)]
    colours_TES3[lives.leaving_TES] = to_rgb(LEAVING_COLOUR)
    tops_E = np.arange(members) * (slots + MEMBER_GAP)
    for top, colours_TS3 in zip(tops_E, colours_TES3.transpose(1, 0, 2, 3), strict=True):
        axes.imshow(
            colours_TS3.transpose(1, 0, 2),
            extent=(0.5, steps + 0.5, top + slots, top),
            aspect="auto",
            interpolation="nearest",
        )
        for slot in range(1, slots):
            axes.axhline(top + slot, color="white", linewidth=0.8)
    axes.set_xlim(0.5, steps + 0.5)
    axes.set_ylim(tops_E[-1] + slots + MEMBER_GAP / 2, -MEMBER_GAP / 2)
    _label_rows(axes, tops_E, lives.slots)
    axes.set_xlabel("step of training")
    axes.set_title(
        f"Stages of every seed{note}: one row per slot of each member",
        fontsize=TITLE_POINTS,
        loc="left",
        color=INK,
    )
    _plain_frame(axes)


def _label_rows(axes: Axes, tops_E: Doubles, slots: tuple[str, ...]) -> None:
    """Label rows with slot ids and members."""
    middles = tops_E[:, None] + np.arange(len(slots)) + 0.5
    axes.set_yticks(middles.ravel(), slots * len(tops_E), fontsize=5.5, color="#666666")
    axes.tick_params(axis="y", length=0, pad=2)
    members = axes.secondary_yaxis(-0.03)
    names = [f"member {e}" for e in range(len(tops_E))]
    members.set_yticks(tops_E + len(slots) / 2, names, fontsize=8)
    members.tick_params(axis="y", length=0)
    members.spines["left"].set_visible(False)


def _stage_legend(lives: LifeLines) -> list[Patch]:
    """Return legend entries of the stages that occur, in order."""
    from matplotlib.patches import Patch

    settled = lives.stage_TES[~lives.leaving_TES]
    shown = [
        (STAGE_COLOURS[stage], ": ".join(filter(None, (stage_name(stage), STAGE_NOTES.get(stage)))))
        for stage in STAGE_COLOURS
        if (settled == stage).any()
    ]
    if lives.leaving_TES.any():
        shown.append((LEAVING_COLOUR, LEAVING_NAME))
    return [Patch(facecolor=colour, label=text, edgecolor="#999999") for colour, text in shown]


def _plain_frame(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#999999")
