"""The report of a run: one self-contained HTML page, without scripts and network."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Final

from esper.growing.folder import read_table
from esper.growing.report_curves import curve_plot, score_by_length, score_text
from esper.growing.settings_text import settings_of
from esper.leyline.errors import EsperError
from esper.leyline.statistics import Estimate
from esper.plotting.durations import duration_text
from esper.plotting.frontier_plot import Dot, frontier_plot
from esper.plotting.html import STYLE, Markup, code, details, markup, table, tag
from esper.storage.atomic import require_writable, write_advice, write_atomic

if TYPE_CHECKING:
    from esper.growing.folder import GrowInfo
    from esper.growing.result import GrowResult, NetworkRecord, ResultRecord

MAX_NETWORKS: Final = 500
"""Networks shown; the best ones of a longer search."""
KINDS: Final = {
    "pick": "the pick",
    "host": "your model",
    "front": "frontier",
    "others": "others, validation score",
}
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""Browsers then load nothing for the page, and run no script in it."""
HEAD: Final = ("network", "test", "standard error", "validation", "parameters", "MACs",
               "host runs", "learning rate", "seeds")  # fmt: skip


def write_report(result: GrowResult, path: Path) -> None:
    """Write the page."""
    require_writable(path, "report to")
    content = page(result).encode(errors="backslashreplace")
    try:
        write_atomic(path, content)
    except OSError as error:
        raise EsperError(f"cannot write {path}: {error.strerror}; {write_advice(error)}") from error


def page(result: GrowResult) -> str:
    """The page as text."""
    name = result.folder.name or str(result.folder)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", **{"http-equiv": "Content-Security-Policy", "content": POLICY}),
        tag("title", f"{name}: grown network"),
        tag("style", Markup(STYLE)),
    )
    main = tag(
        "main",
        _opening(result, name),
        _section("Frontier", *frontier_parts(result)),
        _section("Score by length of the run", *_curves(result)),
        _section("Cost", *_cost(result)),
        _section("Use it", *_usage(result)),
        _section("Settings", _pairs("Settings of the run", settings_of(result.info))),
        _section("Data", *_data(result.info)),
    )
    body = tag("body", main, class_="esper-grow page")
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def notebook_view(result: GrowResult) -> str:
    """Verdict, frontier and its table, for notebooks."""
    inside = tag("p", result.verdict, class_="verdict"), *frontier_parts(result)
    return tag("div", tag("style", Markup(STYLE)), *inside, class_="esper-grow")


def _section(title: str, *parts: str) -> Markup:
    return tag("section", tag("h2", title), *parts)


def _pairs(caption: str, rows: Sequence[tuple[str, str]]) -> Markup:
    return table(caption, ("setting", "value"), rows)


# ---- sections ---------------------------------------------------------------------------------


def _opening(result: GrowResult, name: str) -> Markup:
    """The verdict and the figures behind it."""
    record, metric = result.record, result.info.metric
    pick, host = result.best.record, record.host
    facts = [
        (f"test {metric}", f"{pick.test_score:.4f}", f"your model: {host.test_score:.4f}"),
        ("parameters", f"{pick.params:,}", f"your model: {host.params:,}"),
        ("MACs per sample", f"{pick.macs:,}", f"your model: {host.macs:,}"),
        ("host runs", f"{record.runs:.1f}", _limit(result.info).strip() or "as time allows"),
    ]
    cards = [
        tag("li", title, tag("strong", value), tag("span", beside, class_="muted"))
        for title, value, beside in facts
    ]
    early = "" if record.complete else "The search was interrupted; this is the best so far."
    return markup(
        tag("h1", name),
        tag("p", record.verdict, class_="verdict"),
        tag("p", early) if early else "",
        tag("ul", *cards, class_="facts"),
    )


def frontier_parts(result: GrowResult) -> list[Markup]:
    """The plot of the frontier and its tables."""
    record, metric = result.record, result.info.metric
    networks = record.judged
    shown = {network.number for network in networks}
    others = [network for network in record.others if network.number not in shown]
    note = (
        "Test score of the networks that none beats on validation, and of your model; bars are one "
        "standard error over samples."
    )
    if others:
        note += (
            " Rings are the other runs: they were not judged on test, so their validation score is "
            "shown."
        )
    marked = next(i for i, network in enumerate(networks) if network.number == record.pick)
    rows = [_row(network, result) for network in networks]
    parts = [
        tag("figure", frontier_picture(record, metric), tag("figcaption", note)),
        table(f"Frontier by test {metric}; the pick is marked", HEAD, rows, range(1, 8), marked),
    ]
    if others:
        lines = [_row(network, result) for network in others[:MAX_NETWORKS]]
        held = table(f"Other runs, by validation {metric}", HEAD, lines, range(1, 8))
        parts.append(details(f"{len(others)} other runs", held))
    return parts


def frontier_picture(record: ResultRecord, metric: str) -> Markup:
    """Test score against parameters, with the standard error; others by validation."""
    dots = [
        Dot(
            f"network {one.number}",
            one.params,
            Estimate(one.test_score, one.test_score - one.test_se, one.test_score + one.test_se),
            record.kind(one),
        )
        for one in record.judged
    ]
    known = {one.number for one in record.judged}
    dots += [
        Dot(f"network {one.number}", one.params, Estimate(one.val_score, nan, nan), "others")
        for one in record.others
        if one.number not in known
    ]
    return frontier_plot(dots, f"test {metric}", words=KINDS)


def _row(network: NetworkRecord, result: GrowResult) -> tuple[str, ...]:
    names = {"pick": " (the pick)", "host": " (your model)"}
    mark = names.get(result.record.kind(network), "")
    return (
        f"{network.number}{mark}",
        score_text(network.test_score),
        score_text(network.test_se),
        score_text(network.val_score),
        f"{network.params:,}",
        f"{network.macs:,}",
        f"{network.runs:.2f}",
        f"{network.recipe.lr:.3g}",
        result.info.describe(network.variant, network.topology, network.origin),
    )


def _curves(result: GrowResult) -> list[Markup]:
    """Score by length of the run, from the table of runs."""
    try:
        every = score_by_length(read_table(result.folder), result)
    except EsperError as error:
        return [tag("p", f"The runs cannot be shown: {error}")]
    some = sorted(every, key=lambda one: (one.judged, one.best.merit), reverse=True)[:MAX_NETWORKS]
    some.sort(key=lambda one: one.best.number)
    left_out = len(every) - len(some)
    note = (
        "Validation score of every network by the number of batches it was trained on; each point "
        "is a run of its own, with its own schedule. The better ones were trained for longer."
    )
    if left_out:
        note += f" {left_out:,} of {len(every):,} are left out, the worst ones."
    rows = [
        (
            str(one.best.number),
            f"{one.best.params:,}",
            f"{one.best.recipe.lr:.3g}",
            ", ".join(f"{batch:,}: {score_text(score)}" for batch, score in one.points) or "-",
            result.info.describe(result.info.variants[one.best.variant], one.best.topology),
        )
        for one in some
    ]
    head = ("best run", "parameters", "learning rate", "score by batches", "seeds")
    held = table("Networks of the search", head, rows, (0, 1, 2))
    return [
        tag("figure", curve_plot(some, result.info.metric), tag("figcaption", note)),
        details(f"{len(some)} networks in a table", held),
    ]


def _cost(result: GrowResult) -> list[Markup]:
    record, info = result.record, result.info
    samples = record.runs * info.length * info.batch_size
    rows = [
        ("training compute", f"{record.runs:.2f}{_limit(info)} training runs of your model"),
        ("time", duration_text(record.seconds)),
        ("device", info.device),
        ("search", record.ended or ("came to its end" if record.complete else "interrupted")),
    ]
    if info.train_macs:
        total = f"{samples * info.train_macs:.3g} MACs, forward and backward"
        rows.insert(1, ("that is about", total))
    return [table("What the search cost", ("what", "value"), rows)]


def _limit(info: GrowInfo) -> str:
    return f" of {info.runs:.3g}" if math.isfinite(info.runs) else ""


def _usage(result: GrowResult) -> list[Markup]:
    folder = str(result.folder)
    quoted = shlex.quote(folder)
    return [
        tag("p", "In Python, without the code of your model:"),
        code(
            "import esper",
            "",
            f"result = esper.GrowResult.load({folder!r})",
            "model = result.model                        # the pick, a plain nn.Module",
            f"small = result.pick(params={result.record.host.params})",
            'small.export("small.onnx")',
        ),
        tag("p", "On the command line:"),
        code(
            f"esper show {quoted}",
            f"esper export {quoted} grown.onnx",
            f"esper export {quoted} --params {result.record.host.params} small.pt2",
        ),
    ]


def _data(info: GrowInfo) -> list[Markup]:
    notes = [tag("li", note) for note in info.notes]
    print_line = tag("p", f"Fingerprint: {info.fingerprint}", class_="muted")
    return [tag("ul", *notes) if notes else tag("p", "Used as given."), print_line]
