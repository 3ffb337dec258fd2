"""Plot of a controller's training: score, actions, entropy and value function.

Shape letters: U updates, E members, O operations, Z stages, A action heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from esper.karn.stages import stage_name
from esper.leyline.actions import ActionHead, LifecycleOp
from esper.leyline.arrays import ArrayStruct, Bools, Doubles, Ints
from esper.leyline.errors import EsperError
from esper.leyline.stages import SeedStage
from esper.leyline.statistics import t_interval
from esper.plotting.style import INK, new_figure, write_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE_INCHES: Final = (11.5, 8.5)
SCORE_COLOUR: Final = "#0b6e99"
LEVEL_COLOURS: Final = ("#4d4d4d", "#c1571a", "#a08000", "#6b4fa0", "#2f7d32", "#a03a5a", "#1f8a8a")
KL_COLOUR: Final = "#c1571a"
SMALL_SHARE: Final = 0.01
"""Kinds of actions that never exceed this share of an update are merged."""


@dataclass(frozen=True, slots=True, eq=False)
class LearningCurves(ArrayStruct):
    """Training curves of a controller, one row per update."""

    score_UE: Doubles
    """At the end of each member's episode."""
    whole_UE: Bools
    """Members whose episode was not cut; only their scores are drawn."""
    waited_U: Ints
    """Member-steps at which WAIT was chosen."""
    chosen_UOZ: Ints
    """Member-steps at which each operation was chosen, by the stage its slot was in."""
    head_entropy_UA: Doubles
    """In nats; NaN if the head was never used."""
    explained_variance_U: Doubles
    approx_kl_U: Doubles

    def __post_init__(self) -> None:
        sizes = self.sizes()
        expected = {"O": len(LifecycleOp), "Z": len(SeedStage), "A": len(ActionHead)}
        for letter, count in expected.items():
            if sizes[letter] != count:
                raise EsperError(f"LearningCurves: {letter} is {sizes[letter]}, expected {count}")
        if sizes["U"] < 1:
            raise EsperError("LearningCurves without updates: nothing to draw")


@dataclass(frozen=True, slots=True)
class Level:
    """A reference score, drawn as a horizontal line."""

    label: str
    score: float


def draw_learning(path: Path, curves: LearningCurves, levels: Sequence[Level], title: str) -> None:
    """Write the plot as a PNG."""
    if len(levels) > len(LEVEL_COLOURS):
        raise EsperError(f"{len(levels)} levels: at most {len(LEVEL_COLOURS)} are distinguishable")
    write_png(path, _figure(curves, levels, title))


def action_shares(curves: LearningCurves) -> dict[str, Doubles]:
    """Return the share `[U]` of each operation and stage; small ones are merged as `other`.

    The shares of an update sum to 1.
    """
    total_U = curves.waited_U + curves.chosen_UOZ.sum(axis=(1, 2))
    shares = {"WAIT": curves.waited_U / np.maximum(total_U, 1)}
    other_U = np.zeros(len(total_U))
    for op in LifecycleOp:
        for stage in SeedStage:
            share_U = curves.chosen_UOZ[:, op, stage] / np.maximum(total_U, 1)
            if share_U.max() > SMALL_SHARE:
                shares[f"{op.name}, {stage_name(stage)}"] = share_U
            else:
                other_U += share_U
    return shares | {"other": other_U} if other_U.any() else shares


def _figure(curves: LearningCurves, levels: Sequence[Level], title: str) -> Figure:
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(SIZE_INCHES, title)
    panels = figure.subplots(2, 2, sharex=True)
    _draw_score(panels[0, 0], curves, levels)
    _draw_actions(panels[0, 1], curves)
    _draw_entropy(panels[1, 0], curves)
    _draw_value(panels[1, 1], curves)
    for axes in panels.flat:
        axes.grid(color="#dddddd", linewidth=0.6)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    for axes in panels[1]:
        axes.set_xlabel("update")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _rounds(curves: LearningCurves) -> Ints:
    return np.arange(1, len(curves.waited_U) + 1)


def _draw_score(axes: Axes, curves: LearningCurves, levels: Sequence[Level]) -> None:
    x = _rounds(curves)
    rows = zip(curves.score_UE, curves.whole_UE, strict=True)
    mean_U, low_U, high_U = np.array([t_interval(score_E[whole_E]) for score_E, whole_E in rows]).T
    axes.fill_between(x, low_U, high_U, color=SCORE_COLOUR, alpha=0.2, linewidth=0)
    axes.plot(x, mean_U, color=SCORE_COLOUR, linewidth=1.8, label="while learning")
    for level, colour in zip(levels, LEVEL_COLOURS, strict=False):
        text = f"{level.label}: {level.score:.3f}"
        axes.axhline(level.score, color=colour, linewidth=1.2, linestyle="--", label=text)
    axes.set_ylabel("score")
    _titled(axes, "Score at the end of an episode (mean of the members, 95 % interval)")


def _draw_actions(axes: Axes, curves: LearningCurves) -> None:
    from matplotlib import colormaps

    shares = action_shares(curves)
    colours = [colormaps["tab20"](i % 20) for i in range(len(shares))]
    axes.stackplot(
        _rounds(curves), list(shares.values()), labels=list(shares), colors=colours, linewidth=0
    )
    axes.set_ylim(0, 1)
    axes.set_ylabel("share of actions")
    _titled(axes, "Actions by stage of the target slot")


def _draw_entropy(axes: Axes, curves: LearningCurves) -> None:
    for head in ActionHead:
        entropy_U = curves.head_entropy_UA[:, head]
        if np.nan_to_num(entropy_U).any():
            axes.plot(_rounds(curves), entropy_U, linewidth=1.5, label=head.name.lower())
    axes.set_ylabel("entropy, nats")
    _titled(axes, "Entropy of each head where it is used (frozen heads omitted)")


def _draw_value(axes: Axes, curves: LearningCurves) -> None:
    x = _rounds(curves)
    axes.plot(x, curves.explained_variance_U, color=SCORE_COLOUR, label="explained variance of V")
    axes.plot(x, curves.approx_kl_U, color=KL_COLOUR, linewidth=1.2, label="KL of an update")
    axes.axhline(0.0, color="#999999", linewidth=0.8)
    lowest = float(np.nanmin(np.append(curves.explained_variance_U, 0.0)))
    axes.set_ylim(max(-1.0, lowest) - 0.05, 1.05)
    _titled(axes, "Explained variance of the value function, and KL of updates")


def _titled(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=9.5, loc="left", color=INK)
    if not axes.get_legend_handles_labels()[0]:
        return  # every head was frozen
    axes.legend(loc="best", fontsize=7.5, frameon=True, framealpha=0.85, edgecolor="none")
