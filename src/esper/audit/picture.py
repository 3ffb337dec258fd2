"""Two pictures of an audit: what every topology reaches at its size, and what choosing is worth.

Colours and form follow the plots of a comparison, which belong to the commands.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from esper.audit.cases import final_means
from esper.audit.records import Audit
from esper.audit.regrets import Contender, Regrets
from esper.audit.tables import estimate_text
from esper.leyline.arrays import Bools, Doubles
from esper.leyline.errors import EsperError
from esper.storage.atomic import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI: Final = 110
INK: Final = "#222222"
FAINT: Final = "#8a8a8a"
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#56b4e9", "#e69f00")
"""Okabe-Ito palette, distinguishable for colour-blind readers; without yellow, which fades."""
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*")
PRICE_GROUPS: Final = 3
LARGEST_SHOWN: Final = 16
"""Largest search in the frontier picture, in topologies."""
LOG_FROM: Final = 3.0
"""Ratio of the largest to the smallest network from which the axis is logarithmic."""


def draw_topologies(
    path: Path, audit: Audit, regrets: Regrets, context: int | None = None, title: str = ""
) -> None:
    """Test accuracy against parameters: every topology, the frontier, and what contenders pick.

    `context`: its number in the audit; None: mean over all that were judged. What contenders pick
    differs with the price, so each has a marker for low, medium and high prices, without caps; high
    prices have small markers.
    """
    if context is not None and context not in regrets.context_C:
        raise EsperError(
            f"picture of context {context}: not among those judged, {regrets.context_C.tolist()}"
        )
    chosen_C = np.isin(regrets.context_C, regrets.context_C if context is None else [context])
    test_CK = final_means(audit, np.arange(regrets.hosts)).take(regrets.context_C).test_CK
    level_C = np.nanmean(test_CK, axis=1)
    # Groups of prices hold other shares of easy contexts, so how easy they are is taken out.
    easier_C = level_C - level_C[chosen_C].mean()
    where = f"context {context}" if context is not None else f"mean of {chosen_C.sum()} contexts"
    figure = _figure((10.5, 5.6), title or f"{audit.info.task}: every topology tried")
    axes = figure.subplots()
    _draw_cloud(axes, np.array(audit.info.params, dtype=np.float64), test_CK[chosen_C].mean(axis=0))
    groups = price_groups(regrets, chosen_C)
    for place, name in enumerate(shown_contenders(regrets)):
        found = regrets.contenders[name]
        found = replace(found, test_CD=found.test_CD - easier_C[:, None])
        _draw_picks(axes, place, found, groups)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8.5, frameon=False)
    axes.set_xlabel("parameters")
    axes.set_ylabel("test accuracy")
    _style(axes, f"Test accuracy against parameters ({where}, {regrets.hosts} hosts)")
    _write(path, figure)


def shown_contenders(regrets: Regrets) -> list[str]:
    """Contenders of the frontier picture; of the searches, the largest up to 16."""
    searches = [p.topologies for p in regrets.search if p.topologies <= LARGEST_SHOWN]
    return ["one", "table", "regression", "best", *(f"asha:{n}" for n in searches[-1:])]


def price_groups(regrets: Regrets, chosen_C: Bools) -> list[Bools]:
    """Cases `[C, D]` without caps, in thirds by price; with caps if there are too few."""
    usable_CD = np.broadcast_to(chosen_C[:, None], regrets.price_CD.shape)
    if (usable_CD & ~regrets.capped_CD).sum() >= PRICE_GROUPS:
        usable_CD = usable_CD & ~regrets.capped_CD
    shares = np.arange(1, PRICE_GROUPS) / PRICE_GROUPS
    edges = np.quantile(regrets.price_CD[usable_CD], shares)
    group_CD = np.searchsorted(edges, regrets.price_CD)
    groups = [usable_CD & (group_CD == group) for group in range(PRICE_GROUPS)]
    return [group for group in groups if group.any()]


def draw_scores(path: Path, regrets: Regrets, title: str = "What choosing is worth") -> None:
    """Bars of mean score with intervals, and the regret against the best topology per context."""
    contenders = sorted(regrets.contenders.values(), key=lambda found: -found.score.value)
    figure = _figure((10.5, 1.4 + 0.36 * len(contenders)), title)
    axes = figure.subplots()
    aside = axes.get_yaxis_transform()
    for place, contender in enumerate(contenders):
        score = contender.score
        reach = None
        if not math.isnan(score.low):
            reach = [[score.value - score.low], [score.high - score.value]]
        colour = COLOURS[0] if contender.name != "best" else COLOURS[1]
        axes.barh([place], [score.value], xerr=reach, color=colour, alpha=0.75, height=0.62,
                  error_kw={"ecolor": INK, "elinewidth": 1.2, "capsize": 3})  # fmt: skip
        text = "the reference"
        if contender.name != "best":
            text = f"regret {estimate_text(regrets.regret(contender.name))}"
        axes.text(1.012, place, text, transform=aside, va="center", fontsize=8.5)
    axes.set_yticks(range(len(contenders)), [found.name for found in contenders])
    axes.set_ylim(len(contenders) - 0.4, -0.6)
    axes.set_xlabel("mean score")
    _style(axes, f"Mean over {len(regrets.context_C)} contexts, 95 % interval (bootstrap)")
    _write(path, figure)


def pareto(params: Sequence[float] | Doubles, accuracy: Sequence[float] | Doubles) -> list[int]:
    """Indices of the topologies that no smaller one reaches, smallest first; NaN is left out.

    >>> pareto([1.0, 2.0, 3.0, 4.0], [0.1, 0.5, 0.4, 0.9])
    [0, 1, 3]
    """
    found: list[int] = []
    for k in sorted(range(len(params)), key=lambda k: (params[k], -accuracy[k])):
        if accuracy[k] > (accuracy[found[-1]] if found else -math.inf):
            found.append(k)
    return found


# ---- helpers -----------------------------------------------------------------------------------


def _draw_cloud(axes: Axes, params_K: Doubles, test_K: Doubles) -> None:
    """Every topology, and the line of those that no smaller one reaches."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    label = f"{len(params_K)} topologies"
    axes.plot(params_K, test_K, "o", color=FAINT, alpha=0.45, markersize=4, label=label)
    joined = pareto(params_K, test_K)
    axes.step(params_K[joined], test_K[joined], where="post", color=INK, linewidth=1.2,
              linestyle="--", label="frontier")  # fmt: skip
    if params_K.max() / params_K.min() >= LOG_FROM:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))


def _draw_picks(axes: Axes, place: int, contender: Contender, groups: Sequence[Bools]) -> None:
    """A marker for every group of prices, joined by a line."""
    colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
    params = [float(np.exp(np.log(contender.params_CD[group]).mean())) for group in groups]
    test = [float(contender.test_CD[group].mean()) for group in groups]
    compute = np.mean([contender.compute_CD[group].mean() for group in groups])
    label = f"{contender.name}: compute {compute:.1f}"
    axes.plot(params, test, color=colour, linewidth=1.0, alpha=0.7, marker=marker, markersize=5,
              label=label, zorder=3)  # fmt: skip
    for i, (x, y) in enumerate(zip(params, test, strict=True)):
        size = 11.0 - 2.5 * i
        axes.plot([x], [y], color=colour, marker=marker, markersize=size, markeredgecolor="white",
                  markeredgewidth=0.7, zorder=4)  # fmt: skip


def _figure(size: tuple[float, float], title: str) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=13, fontweight="bold", color=INK)
    return figure


def _style(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10, loc="left", color=INK)
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _write(path: Path, figure: Figure) -> None:
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with rc_context({"text.parse_math": False}):  # names may contain dollar signs
        figure.savefig(buffer, format="png", metadata={"Software": "esper"})
    write_atomic(path, buffer.getvalue())
