"""`write_page`: the report of a run of any kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from esper.karn import views
from esper.karn.report import lineage
from esper.karn.report.sections import SECTIONS, Section, note_section
from esper.karn.views import RunKind, RunState, RunSummary
from esper.karn.views.damage import UNREADABLE, problem_of, reader
from esper.leyline.errors import EsperError
from esper.plotting.durations import duration
from esper.plotting.html import STYLE, Markup, markup, table, tag
from esper.plotting.numbers import interval
from esper.storage.atomic import require_writable, save_file
from esper.storage.run_files import REPORT_PAGE
from esper.storage.sessions import utc_now

T = TypeVar("T")
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""Browsers then load nothing for the page, and run no script in it."""
MORE_STYLE: Final = """
.esper-grow p { overflow-wrap: anywhere; }
.esper-grow .band { opacity: .22; stroke: none; }
.esper-grow .problem { color: var(--host); overflow-wrap: anywhere; }
.esper-grow .bar { opacity: .55; stroke-width: 1.5; }
.esper-grow .plot { overflow: auto; }
.esper-grow .tall { max-height: 44rem; }
.esper-grow .plot svg { min-width: 640px; }
.esper-grow .life { stroke: var(--muted); stroke-width: .6; }
"""


def write_page(run: Path, path: Path | None = None) -> Path:
    """Write the report of a run; by default into its folder. Returns the path."""
    place = run / REPORT_PAGE if path is None else path
    content = page(run).encode(errors="backslashreplace")
    require_writable(place, "report to")
    save_file(place, content)
    return place


@reader
def page(run: Path) -> str:
    """The page as text."""
    found, problems = views.run_summary(run), list[str]()
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", **{"http-equiv": "Content-Security-Policy", "content": POLICY}),
        tag("title", f"{found.name}: report of esper {found.kind}"),
        tag("style", Markup(STYLE + MORE_STYLE + lineage.STYLE)),
    )
    made = list[Section]()
    for make in SECTIONS[found.kind]:
        made += _attempt(lambda make=make: [make(run)], problems)  # type: ignore[misc]
    made += _attempt(lambda: [note_section(note) for note in views.read_notes(run)], problems)
    if found.kind is not RunKind.GROW:
        made += _attempt(lambda: [("Settings", [_settings(run, found)])], problems)
    parts = [_section(title, content) for title, content in made if content]
    said = "".join(_attempt(lambda: [verdict(found)], problems))
    if found.state is RunState.BROKEN:
        problems.append(found.problem)
    problems = list(dict.fromkeys(one for one in (*problems, *views.left_out(run)) if one))
    if not parts:  # nothing but the damage would be on the page
        raise EsperError("; ".join(problems) or f"{run} holds nothing to report")
    lines = [tag("p", problem, class_="problem") for problem in problems]
    unread = [_section("Cannot be read", lines)] if lines else []
    main = tag("main", _opening(found, said), *unread, *parts)
    body = tag("body", main, class_="esper-grow page")
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _attempt(make: Callable[[], list[T]], problems: list[str]) -> list[T]:
    """What `make` returns; nothing, and its reason is noted, if a file is damaged."""
    try:
        return make()
    except UNREADABLE as error:
        problems.append(problem_of(error))
        return []


def _section(title: str, parts: Sequence[Markup]) -> Markup:
    return tag("section", tag("h2", title), *parts)


def _opening(found: RunSummary, said: str) -> Markup:
    time_spent = duration(found.seconds)
    facts = [
        *((fact.name, fact.value, fact.beside) for fact in found.result.facts),
        ("state", found.state.value, found.problem),
        ("progress", "-" if not found.unit or found.amount == time_spent else found.amount, ""),
        ("time", time_spent, f"started {found.created} UTC"),
    ]
    cards = [
        tag("li", title, tag("strong", value), tag("span", beside, class_="muted"))
        for title, value, beside in facts
        if value != "-"
    ]
    return markup(
        tag("h1", found.name),
        tag("p", said, class_="verdict"),
        tag("ul", *cards, class_="facts"),
        *(
            [tag("p", "Resume with:"), tag("pre", tag("code", found.resume))]
            if found.resume
            else ()
        ),
    )


def verdict(found: RunSummary) -> str:
    """The outcome in one line."""
    if found.kind is RunKind.GROW:
        return found.verdict or found.headline or "no network has a score yet"
    if found.kind is RunKind.TRAIN:
        return _training_verdict(found)
    return _contender_verdict(found)


def _training_verdict(found: RunSummary) -> str:
    rounds = views.read_rounds(found.path)
    if not rounds:
        return f"{found.policy} on {found.task}: no round is complete yet"
    last = rounds[-1]
    judged = f"{found.headline}; " if found.result.is_judged else ""
    return (
        f"{found.policy} on {found.task}: {judged}training score {interval(last.score)} in round "
        f"{last.round + 1} of {found.total or len(rounds):g}, accuracy "
        f"{interval(last.accuracy)}, {last.added_params:,.0f} parameters added"
    )


def _contender_verdict(found: RunSummary) -> str:
    if not found.headline:
        return f"{found.kind} of {found.task}: {found.amount} done"
    gain = found.result.gain
    if gain is None or gain.low != gain.low:
        return found.headline
    sure = "better" if gain.low > 0 else "not significantly better"
    return f"{found.headline}: {sure}"


def _settings(run: Path, found: RunSummary) -> Markup:
    rows = [
        ("kind", found.kind.value),
        ("task", found.task),
        ("policy", found.policy),
        ("seed", "-" if found.seed is None else str(found.seed)),
        ("folder", str(run)),
        ("page written", f"{utc_now()} UTC"),
    ]
    setup = views.read_setup(run)
    if setup is not None:
        rows += [
            ("members", str(setup.members)),
            ("steps of an episode", str(setup.episode_length)),
            ("batches a step", f"{setup.batches_per_step} of {setup.batch_size}"),
            ("device", setup.device),
            ("executor", f"{setup.executor} ({setup.executor_reason}), profile {setup.profile}"),
            ("host", f"{setup.host_params:,} parameters, {setup.host_macs:,} MACs"),
            ("blueprints", ", ".join(setup.blueprints)),
        ]
    return table("Settings of the run", ("setting", "value"), [row for row in rows if row[1]])
