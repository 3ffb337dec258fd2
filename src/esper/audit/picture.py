"""Picture of regrets: what choosing is worth."""

from __future__ import annotations

import math
from pathlib import Path

from esper.audit.regrets import Regrets
from esper.audit.tables import estimate_text
from esper.plotting.style import COLOURS, INK, new_figure, style_axes, write_png


def draw_scores(path: Path, regrets: Regrets, title: str = "What choosing is worth") -> None:
    """Bars of mean score with intervals, and the regret against the best topology per context."""
    contenders = sorted(regrets.contenders.items(), key=lambda item: -item[1].score.value)
    figure = new_figure((10.5, 1.4 + 0.36 * len(contenders)), title)
    axes = figure.subplots()
    aside = axes.get_yaxis_transform()
    for place, (name, contender) in enumerate(contenders):
        score = contender.score
        reach = None
        if not math.isnan(score.low):
            reach = [[score.value - score.low], [score.high - score.value]]
        colour = COLOURS[0] if name != "best" else COLOURS[1]
        axes.barh([place], [score.value], xerr=reach, color=colour, alpha=0.75, height=0.62,
                  error_kw={"ecolor": INK, "elinewidth": 1.2, "capsize": 3})  # fmt: skip
        text = "the reference"
        if name != "best":
            text = f"regret {estimate_text(regrets.regret(name))}"
        axes.text(1.012, place, text, transform=aside, va="center", fontsize=8.5)
    axes.set_yticks(range(len(contenders)), [name for name, _ in contenders])
    axes.set_ylim(len(contenders) - 0.4, -0.6)
    axes.set_xlabel("mean score")
    style_axes(axes, f"Mean over {len(regrets.context_C)} contexts, 95 % interval (bootstrap)")
    write_png(path, figure)
