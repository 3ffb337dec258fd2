"""The report of a run: one self-contained HTML page, without scripts and network."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from esper.growing.folder import read_table
from esper.growing.report_svg import (
    Curve,
    Kind,
    curve_plot,
    frontier_plot,
    growth_plot,
    judged,
    kind_of,
)
from esper.growing.runs import Row, Table
from esper.growing.settings_text import settings_of
from esper.leyline.errors import EsperError
from esper.plotting.html import STYLE, Markup, code, details, markup, table, tag
from esper.storage.atomic import require_writable, write_advice, write_atomic

if TYPE_CHECKING:
    from esper.growing.folder import GrowInfo
    from esper.growing.result import GrowResult, NetworkRecord

MOST_NETWORKS: Final = 500
"""Networks shown; the best ones of a longer search."""
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""Browsers then load nothing for the page, and run no script in it."""
HEAD: Final = ("network", "test", "standard error", "validation", "parameters", "MACs",
               "host runs", "learning rate", "seeds")  # fmt: skip
ORIGINS: Final = {
    "given": "your model",
    "width": "your model at another width",
    "seeds": "seeds from the start",
    "grown": "one seed more, from the weights of another network",
    "pruned": "one seed less, from the weights of another network",
}


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
        _section("What was grown", *_growth(result)),
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
    networks = judged(record)
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
        tag("figure", frontier_plot(record, metric), tag("figcaption", note)),
        table(f"Frontier by test {metric}; the pick is marked", HEAD, rows, range(1, 8), marked),
    ]
    if others:
        lines = [_row(network, result) for network in others[:MOST_NETWORKS]]
        held = table(f"Other runs, by validation {metric}", HEAD, lines, range(1, 8))
        parts.append(details(f"{len(others)} other runs", held))
    return parts


def _row(network: NetworkRecord, result: GrowResult) -> tuple[str, ...]:
    names = {"pick": " (the pick)", "host": " (your model)"}
    mark = names.get(kind_of(network, result.record), "")
    return (
        f"{network.number}{mark}",
        _score(network.test_score),
        _score(network.test_se),
        _score(network.val_score),
        f"{network.params:,}",
        f"{network.macs:,}",
        f"{network.runs:.2f}",
        f"{network.recipe.lr:.3g}",
        _seeds(network, result.info),
    )


def _score(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "-"


def _seeds(network: NetworkRecord, info: GrowInfo) -> str:
    pairs = zip(
        network.topology, info.variant_places[info.variants.index(network.variant)], strict=True
    )
    parts = [f"{name} {place}" for name, place in pairs if name]
    if network.variant:
        parts.insert(0, f"{network.variant} as wide")
    origin = f" ({ORIGINS[network.origin]})" if network.origin in ("grown", "pruned") else ""
    return f"{', '.join(parts) or 'none'}{origin}"


def _growth(result: GrowResult) -> list[Markup]:
    info, pick = result.info, result.best.record
    rows = [
        (place, "nothing", name or "nothing")
        for place, name in zip(result.best.places, pick.topology, strict=True)
    ]
    note = f"Network {pick.number}: {ORIGINS[pick.origin]}."
    return [
        tag("figure", growth_plot(info, pick, result.best.places), tag("figcaption", note)),
        table("Places to grow, in order", ("place", "your model", "the pick"), rows),
    ]


def _curves(result: GrowResult) -> list[Markup]:
    """Score by length of the run, from the table of runs."""
    try:
        every = score_by_length(read_table(result.folder), result.info)
    except EsperError as error:
        return [tag("p", f"The runs cannot be shown: {error}")]
    some = _best_known(every, result)
    curves = [Curve(one.number, _curve_kind(one, result), one.points, one.best) for one in some]
    left_out = len(every) - len(some)
    note = (
        "Validation score of every network by the number of batches it was trained on; each point "
        "is a run of its own, with its own schedule. The better ones were trained for longer."
    )
    if left_out:
        note += f" {left_out:,} of {len(every):,} are left out, the worst ones."
    rows = [
        (
            str(one.number),
            f"{one.params:,}",
            f"{one.rate:.3g}",
            ", ".join(f"{batch:,}: {_score(score)}" for batch, score in one.points) or "-",
            one.described,
        )
        for one in some
    ]
    head = ("best run", "parameters", "learning rate", "score by batches", "seeds")
    held = table("Networks of the search", head, rows, (0, 1, 2))
    return [
        tag("figure", curve_plot(curves, result.info.metric), tag("figcaption", note)),
        details(f"{len(some)} networks in a table", held),
    ]


@dataclass(frozen=True, slots=True)
class _Line:
    """One network at one rate, trained for several lengths."""

    number: int
    """Of its best run."""
    params: int
    rate: float
    described: str
    points: tuple[tuple[int, float], ...]
    """(batches, validation score) of its runs."""
    best: tuple[int, float]
    merit: float


def score_by_length(runs: Table, info: GrowInfo) -> list[_Line]:
    """The runs of a table, those of the same network and rate together."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in runs.rows:
        if row.ended and math.isfinite(row.score):
            key = row.variant, row.topology, row.recipe.lr, row.start
            groups.setdefault(key, []).append(row)
    lines = []
    for rows in groups.values():
        rows.sort(key=lambda row: row.trained)
        best = max(rows, key=lambda row: row.merit)
        pairs = zip(best.topology, info.variant_places[best.variant], strict=True)
        seeds = [f"{name} {place}" for name, place in pairs if name]
        width = [f"{info.variants[best.variant]} as wide"] if best.variant else []
        points = tuple((row.trained, row.score) for row in rows if row.trained)
        described = ", ".join((*width, *seeds)) or "none"
        lines.append(
            _Line(
                number=best.number,
                params=best.params,
                rate=best.recipe.lr,
                described=described,
                points=points,
                best=(best.trained, best.score),
                merit=best.merit,
            )
        )
    return lines


def _best_known(lines: Sequence[_Line], result: GrowResult) -> list[_Line]:
    """All networks, or the best of many; those of the result in any case."""
    wanted = {network.number for network in judged(result.record)}
    best = sorted(lines, key=lambda one: (one.number in wanted, one.merit), reverse=True)
    return sorted(best[:MOST_NETWORKS], key=lambda one: one.number)


def _curve_kind(line: _Line, result: GrowResult) -> Kind:
    for network in judged(result.record):
        if network.number == line.number:
            return kind_of(network, result.record)
    full = bool(line.points) and line.points[-1][0] >= result.info.length
    return "done" if full else "stopped"


def _cost(result: GrowResult) -> list[Markup]:
    record, info = result.record, result.info
    minutes, seconds = divmod(round(record.seconds), 60)
    samples = record.runs * info.length * info.batch_size
    rows = [
        ("training compute", f"{record.runs:.2f}{_limit(info)} training runs of your model"),
        ("time", f"{minutes} min {seconds} s" if minutes else f"{record.seconds:.1f} s"),
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
