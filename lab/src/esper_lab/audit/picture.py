"""Picture of regrets: what choosing is worth."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

from esper_lab.audit.picks import SEARCH
from esper_lab.audit.regrets import KEPT, STOP, Regrets
from esper_lab.figures.style import COLOURS, FAINT, INK, new_figure, style_axes, write_png

REFERENCE: Final = "table"
"""Contender that the others are compared with."""
KINDS: Final = {
    "knows other hosts of the context, or the judging ones: a yardstick": COLOURS[1],
    "search over networks": COLOURS[2],
    "chooses network and step before training": COLOURS[4],
    "trains to the end, keeps its best step": COLOURS[3],
    "chooses a network before training": COLOURS[0],
}
"""Kinds of contenders, with their colours."""


def kind_of(name: str) -> str:
    """Which of `KINDS` a contender is."""
    yardstick, search, stopping, kept, plain = KINDS
    if name.startswith(("best", "oracle")):
        return yardstick
    if name.startswith(SEARCH):
        return search
    if name.endswith(KEPT):
        return kept
    return stopping if name.endswith(STOP) else plain


def draw_scores(path: Path, regrets: Regrets, title: str = "What choosing is worth") -> None:
    """Score of every contender minus that of the table, paired by context, with intervals.

    Contexts differ far more than contenders do, so scores themselves would show nothing.
    """
    contenders = sorted(regrets.contenders.items(), key=lambda item: -item[1].score.value)
    figure = new_figure((10.5, 1.9 + 0.3 * len(contenders)), title)
    axes = figure.subplots()
    aside, table = axes.get_yaxis_transform(), regrets.contenders[REFERENCE]
    axes.axvline(0.0, color=FAINT, linewidth=1.0, zorder=1)
    seen = set()
    for place, (name, contender) in enumerate(contenders):
        kind, above = kind_of(name), contender.minus(table)
        reach = None
        if not math.isnan(above.low):
            reach = [[above.value - above.low], [above.high - above.value]]
        axes.errorbar([above.value], [place], xerr=reach, fmt="o", markersize=6.5, zorder=3,
                      color=KINDS[kind], elinewidth=2.0, capsize=3,
                      label=None if kind in seen else kind)  # fmt: skip
        seen.add(kind)
        text = f"{contender.score.value:.4f}   {contender.compute_CD.mean():5.1f}"
        axes.text(1.012, place, text, transform=aside, va="center", fontsize=8.5, color=INK)
    axes.text(1.012, -1.0, "score   compute", transform=aside, va="center", fontsize=8.5,
              color=FAINT)  # fmt: skip
    axes.set_yticks(range(len(contenders)), [name for name, _ in contenders])
    axes.set_ylim(len(contenders) - 0.4, -0.6)
    axes.set_xlabel(f"score minus that of `{REFERENCE}`")
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.05 - 0.9 / len(contenders)), ncols=2,
                frameon=False, fontsize=8.5)  # fmt: skip
    style_axes(
        axes,
        f"Paired over {len(regrets.context_C)} contexts, 95 % interval (bootstrap); compute in "
        f"training runs of the host",
    )
    write_png(path, figure)
