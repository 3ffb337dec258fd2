"""The frontier of a result as a picture and a table, for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from esper.growing.frontier_table import FIGURES
from esper.leyline.statistics import Estimate
from esper.leyline.variants import describe_variant
from esper.plotting.frontier_plot import Dot, frontier_plot
from esper.plotting.html import STYLE, Markup, table, tag

if TYPE_CHECKING:
    from esper.growing.result import GrowResult, NetworkRecord, ResultRecord

KINDS: Final = {
    "pick": "the pick",
    "host": "your model",
    "front": "frontier",
}


def notebook_view(result: GrowResult) -> str:
    """Verdict, frontier and its table."""
    shown = result.overview()
    return tag(
        "div",
        tag("style", Markup(STYLE)),
        tag("p", result.verdict, class_="verdict"),
        tag("figure", frontier_picture(result.record, result.info.metric)),
        table("Frontier; the pick is marked", shown.head, shown.rows, FIGURES),
        *([tag("p", shown.note)] if shown.note else ()),
        class_="esper-grow",
    )


def frontier_picture(record: ResultRecord, metric: str) -> Markup:
    """Test score against parameters of the networks that were judged, with the standard error."""
    judged = {one.number: one for one in (record.host, *record.networks)}
    dots = [_dot(one, one.test_score, one.test_se, _kind(one, record)) for one in judged.values()]
    return frontier_plot(dots, f"test {metric}", words=KINDS)


def _dot(one: NetworkRecord, score: float, error: float, kind: str) -> Dot:
    estimate = Estimate(score, score - error, score + error)
    words = [describe_variant(one.variant), *one.topology]
    return Dot(", ".join(filter(None, words)) or "your model", one.params, estimate, kind)


def _kind(one: NetworkRecord, record: ResultRecord) -> str:
    if one.number == record.pick:
        return "pick"
    return "host" if one.number == record.host.number else "front"
