"""The report of a run: one self-contained HTML page, without scripts and network."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from esper.growing.folder import read_state
from esper.growing.records import Candidate
from esper.growing.report_svg import (
    Curve,
    Kind,
    curve_plot,
    frontier_plot,
    growth_plot,
    judged,
    kind_of,
)
from esper.growing.settings_text import settings_of
from esper.leyline.errors import EsperError
from esper.plotting.html import STYLE, Markup, code, details, markup, table, tag
from esper.storage.atomic import require_writable, write_advice, write_atomic

if TYPE_CHECKING:
    from esper.growing.folder import GrowInfo
    from esper.growing.result import GrowResult, NetworkRecord

MOST_CANDIDATES: Final = 500
"""Candidates shown; the best ones of a longer search."""
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""Browsers then load nothing for the page, and run no script in it."""
HEAD: Final = ("network", "test", "standard error", "validation", "parameters", "MACs",
               "host runs", "learning rate", "seeds")  # fmt: skip
ORIGINS: Final = {
    "host": "your model",
    "planted": "planted from the start",
    "pruned": "a seed removed during training",
    "grown": "a seed added during training",
    "refit": "found in training, planted from the start",
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
        _section("Learning curves", *_curves(result)),
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
        ("host runs", f"{record.runs:.1f}", f"budget: {result.info.runs:.3g}"),
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
    static = [network for network in record.static if network.number not in shown]
    note = (
        "Test score of the networks that none beats on validation, and of your model; bars are one "
        "standard error over samples."
    )
    if static:
        length = "in full" if record.complete else "as far as the search came"
        note += (
            f" Rings are other networks, trained {length} with their seeds from the start: they "
            f"were not judged on test, so their validation score is shown."
        )
    marked = next(i for i, network in enumerate(networks) if network.number == record.pick)
    rows = [_row(network, result) for network in networks]
    parts = [
        tag("figure", frontier_plot(record, metric), tag("figcaption", note)),
        table(f"Frontier by test {metric}; the pick is marked", HEAD, rows, range(1, 8), marked),
    ]
    if static:
        lines = [_row(network, result) for network in static[:MOST_CANDIDATES]]
        held = table(f"Other networks, by validation {metric}", HEAD, lines, range(1, 8))
        parts.append(details(f"{len(static)} other networks with their seeds from the start", held))
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
        f"{network.rate:g}",
        _seeds(network, result.info),
    )


def _score(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "-"


def _seeds(network: NetworkRecord | Candidate, info: GrowInfo) -> str:
    host = network.host if isinstance(network, Candidate) else info.variants.index(network.variant)
    pairs = zip(network.topology, info.variant_places[host], strict=True)
    parts = [f"{name} {place}" for name, place in pairs if name]
    if info.variants[host]:
        parts.insert(0, f"{info.variants[host]} as wide")
    seeds = ", ".join(parts) or "none"
    origin = "" if network.origin in ("host", "planted") else f" ({ORIGINS[network.origin]})"
    return f"{seeds}{origin}"


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
    """Learning curves of the candidates, from the state of the search."""
    info = result.info
    try:
        every = _candidates(result)
    except EsperError as error:
        return [tag("p", f"The learning curves cannot be shown: {error}")]
    some = _best_known(every, result)
    curves = [Curve(c.number, _curve_kind(c, result), _finite(c)) for c in some]
    left_out = len(every) - len(some)
    note = (
        "Validation score of every network at the ends of its stages. After each stage the better "
        "half continues; grey ones were stopped."
    )
    if left_out:
        note += f" {left_out:,} of {len(every):,} are left out, the worst ones."
    rows = [
        (
            str(candidate.number),
            _state(candidate),
            str(candidate.bracket + 1),
            f"{candidate.params:,}",
            f"{candidate.rate:g}",
            ", ".join(f"{batch}: {_score(score)}" for batch, score in candidate.curve) or "-",
            _seeds(candidate, info),
        )
        for candidate in some
    ]
    head = ("network", "state", "bracket", "parameters", "learning rate", "score by batch", "seeds")
    held = table("Networks of the search", head, rows, (0, 2, 3, 4))
    return [
        tag("figure", curve_plot(curves, info.metric), tag("figcaption", note)),
        details(f"{len(some)} networks in a table", held),
    ]


def _candidates(result: GrowResult) -> list[Candidate]:
    """Candidates of the search; an interrupted one has its last scores in the result only."""
    state, record = read_state(result.folder), result.record
    last = {r.number: r.val_score for r in (*record.static, *record.networks, record.host)}
    found = []
    for candidate in state.candidates:
        number, ends = candidate.number, [batch for batch, _ in candidate.curve]
        if number in state.members and number in last and state.batch not in ends:
            curve = (*candidate.curve, (state.batch, last[number]))
            candidate = replace(candidate, curve=curve)
        found.append(candidate)
    return found


def _best_known(candidates: Sequence[Candidate], result: GrowResult) -> list[Candidate]:
    """All candidates, or the best of many; those of the result in any case."""
    wanted = {network.number for network in judged(result.record)}
    if len(candidates) <= MOST_CANDIDATES:
        return list(candidates)

    def worth(candidate: Candidate) -> tuple[bool, bool, float]:
        score = candidate.score if math.isfinite(candidate.score) else -math.inf
        return candidate.number in wanted, candidate.finished, score

    best = sorted(candidates, key=worth, reverse=True)[:MOST_CANDIDATES]
    return sorted(best, key=lambda candidate: candidate.number)


def _finite(candidate: Candidate) -> tuple[tuple[int, float], ...]:
    return tuple(point for point in candidate.curve if math.isfinite(point[1]) and point[0] > 0)


def _curve_kind(candidate: Candidate, result: GrowResult) -> Kind:
    for network in judged(result.record):
        if network.number == candidate.number:
            return kind_of(network, result.record)
    return "done" if candidate.finished else "stopped"


def _state(candidate: Candidate) -> str:
    return "trained in full" if candidate.finished else "stopped"


def _cost(result: GrowResult) -> list[Markup]:
    record, info = result.record, result.info
    minutes, seconds = divmod(round(record.seconds), 60)
    samples = record.runs * info.length * info.batch_size
    rows = [
        ("training compute", f"{record.runs:.2f} of {info.runs:.3g} training runs of your model"),
        ("time", f"{minutes} min {seconds} s" if minutes else f"{record.seconds:.1f} s"),
        ("device", info.device),
        ("search", "came to its end" if record.complete else "interrupted"),
    ]
    if info.train_macs:
        total = f"{samples * info.train_macs:.3g} MACs, forward and backward"
        rows.insert(1, ("that is about", total))
    return [table("What the search cost", ("what", "value"), rows)]


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
