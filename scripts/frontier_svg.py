"""Writes the frontier of a grow run as an SVG file for the documentation.

python scripts/frontier_svg.py RUN docs/img/grow_digits.svg

It is the plot of `esper report RUN`, on white, without the rest of the page.
"""

from __future__ import annotations

import sys
from pathlib import Path

import esper
from esper.growing.notebook import frontier_picture
from esper.plotting.frontier_plot import HEIGHT
from esper.plotting.line_plot import WIDTH

STYLE = (
    "text { fill: #1b1f24; font: 13px system-ui, sans-serif; } "
    ".tick, .note { fill: #57606a; font-size: 12px; } "
    ".axis { stroke: #57606a; } .grid { stroke: #d0d7de; } .path { fill: none; } "
    ".front { stroke: #0550ae; fill: #0550ae; } .host { stroke: #953800; fill: #953800; } "
    ".pick { stroke: #116329; fill: #116329; } .others { stroke: #7d8590; fill: none; } "
    "polyline.path { fill: none; }"
)
"""The report's colours for a light page; the report itself has its own style sheet."""


def frontier_svg(run: Path) -> str:
    """The plot of a run, as the text of an SVG file."""
    result = esper.GrowResult.load(run)
    return svg_file(str(frontier_picture(result.record, result.info.metric)), HEIGHT)


def svg_file(plot: str, height: float) -> str:
    """A plot of the report as the text of an SVG file, with its style and on white."""
    start, end = plot.index(">"), plot.rindex("</svg>")
    return (
        f'{plot[:start]} width="{WIDTH}" height="{height:g}">\n<style>{STYLE}</style>\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{plot[start + 1 : end]}</svg>\n'
    )


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(frontier_svg(Path(sys.argv[1])))
