"""What happened in a run, oldest first, one line each: the log of every kind of run.

Of training these are its events in words. Searches, comparisons and audits write no events: their
lines follow from the table of runs, the results and the sessions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from esper.karn.views.audit_records import AuditRow, AuditSetup, read_audit_setup, read_contexts
from esper.karn.views.contenders import Contender, read_contenders
from esper.karn.views.damage import reader
from esper.karn.views.documents import Entries, read_entries, text, whole
from esper.karn.views.events import EventLine
from esper.karn.views.frontier import BestPoint, read_best
from esper.karn.views.headline import policies_headline, search_headline
from esper.karn.views.kinds import RunKind, kind_of
from esper.karn.views.lineage import LineageRun, read_lineage
from esper.karn.views.run_story import end_text
from esper.karn.views.search_table import SearchTable, judged_at, read_search
from esper.karn.views.sentences import UNUSUAL, sentences_of
from esper.karn.views.sessions import RunSession, read_work_sessions
from esper.karn.views.setup import RunSetup
from esper.plotting.durations import duration
from esper.plotting.numbers import interval, number
from esper.storage import run_files as f
from esper.storage.folder_lock import is_locked
from esper.storage.sessions import SessionEnd, utc_time


@dataclass(frozen=True, slots=True)
class LogLine:
    """One thing that happened."""

    text: str
    time: float = math.nan
    """Seconds since 1970; NaN: not recorded."""
    elapsed: float = math.nan
    """Seconds of the search until then; NaN: not of a search."""
    round: int | None = None
    """Of training, or rung of a search, from 0; None: of the whole run."""
    unusual: bool = False


def log_of_events(
    events: Iterable[EventLine], setup: RunSetup | None = None
) -> tuple[LogLine, ...]:
    """Events of a training run as lines."""
    return tuple(
        LogLine(one.text, one.time, round=one.round, unusual=one.type in UNUSUAL)
        for event in events
        for one in sentences_of(event, setup)
    )


@reader
def read_log(run: Path) -> tuple[LogLine, ...]:
    """The log of a search, a comparison or an audit; empty for training, which has events."""
    read = _READERS.get(kind_of(run))
    return () if read is None else tuple(read(run))


# ---- sessions ----------------------------------------------------------------------------------


def _in_time(run: Path, first: str, results: Iterable[LogLine]) -> list[LogLine]:
    """Results between the starts and ends of sessions; those without a time follow the first."""
    sessions = read_work_sessions(run)
    began = sessions[0].started if sessions else 0.0
    starts = [_start(one, first if not place else "") for place, one in enumerate(sessions)]
    ends = [line for one in (sessions[:-1] if is_locked(run) else sessions) for line in _end(one)]
    ordered = (*(starts or [LogLine(first)]), *results, *ends)  # of the same second, too
    return sorted(ordered, key=lambda line: began if math.isnan(line.time) else line.time)


def _start(session: RunSession, first: str) -> LogLine:
    of = f": {session.from_round} of {session.total} are done" if session.total else ""
    return LogLine(first or f"resumed{of}", session.started)


def _end(session: RunSession) -> list[LogLine]:
    """How a session ended, unless all work was done: results say that."""
    if session.end == SessionEnd.FINISHED.name:
        return []
    said = "interrupted"
    if session.end != SessionEnd.INTERRUPTED.name:
        said = f"failed: {session.failure}" if session.failure else "the process was killed"
    return [LogLine(said, _last_record(session), unusual=said != "interrupted")]


def _last_record(session: RunSession | None) -> float:
    """Rounded up, because its start is rounded down: no result of it is later."""
    if session is None or math.isnan(session.ended):
        return math.nan
    return float(math.ceil(session.ended))


def _session_end(run: Path) -> float:
    return _last_record(next(reversed(read_work_sessions(run)), None))


# ---- grow --------------------------------------------------------------------------------------


def _searched(run: Path) -> list[LogLine]:
    search = read_search(run)
    if not (search.rows or search.result):
        search.require_whole()
    lineage, best = (read_lineage(run), read_best(run)) if search.rows else ((), ())
    rows = {str(whole(row, "number")): row for row in search.rows}
    lines, now = [_search_started(run, search)], 0.0
    for rung in sorted({one.rung for one in lineage}):
        runs = [one for one in lineage if one.rung == rung]
        planned = (f"#{one.label} planned: {_within_line(one.made)}" for one in runs)
        lines += [LogLine(said, math.nan, now, rung) for said in planned]
        for one in sorted(runs, key=lambda one: _known(judged_at(rows[one.label]), math.inf)):
            now = max(now, _known(judged_at(rows[one.label]), now))
            said = _ended(search, rows[one.label], one)
            is_bad = one.state == "diverged"
            lines += [LogLine(said, math.nan, now, rung, is_bad)] if said else []
            lines += [LogLine(new, math.nan, now, rung) for new in _became_best(best, one.label)]
    ends = [*_search_ended(run, search), *_refitted(lineage), *_judged(search)]
    return lines + [LogLine(said, math.nan, now, unusual=bad) for said, bad in ends]


def _known(seconds: float, other: float) -> float:
    return other if math.isnan(seconds) else seconds


def _search_started(run: Path, search: SearchTable) -> LogLine:
    model, created = text(search.info, "model"), text(search.info, "created")
    size = f"{whole(search.info, 'host_params') or 0:,} parameters"
    later = (one.started for one in read_work_sessions(run)[1:])
    stamps = [utc_time(at) for at in later if math.isfinite(at)]
    again = f"; resumed {', '.join(stamps)} UTC" if stamps else ""
    return LogLine(f"search of {model} ({size}) started {created} UTC{again}", elapsed=0.0)


def _ended(search: SearchTable, row: Entries, one: LineageRun) -> str:
    """How a run ended, with its figures; empty if it was not started."""
    if one.state == "planned":
        return ""
    end = _within_line(end_text(search, row, one.state == "under way"))
    score = "" if math.isnan(one.val_score) else f"{_metric(search)} {number(one.val_score)}"
    figures = ", ".join(part for part in (score, f"{one.params:,} parameters") if part)
    return f"#{one.label}, {one.network}: {end}; {figures}; {one.recipe}"


def _within_line(sentence: str) -> str:
    return f"{sentence[:1].lower()}{sentence[1:]}".rstrip(".")


def _metric(search: SearchTable) -> str:
    return f"validation {text(search.info, 'metric') or 'score'}"


def _became_best(best: tuple[BestPoint, ...], label: str) -> list[str]:
    """That a run has the best score so far, and the one before."""
    places = [place for place, one in enumerate(best) if one.label == label]
    return [_best(best[place], best[place - 1] if place else None) for place in places]


def _best(now: BestPoint, before: BestPoint | None) -> str:
    was = "" if before is None else f" (before: {number(before.val_score)}, #{before.label})"
    return f"best so far: {number(now.val_score)}, #{now.label}{was}"


def _search_ended(run: Path, search: SearchTable) -> Iterator[tuple[str, bool]]:
    """(why the search is over, whether that is unusual); nothing while it goes on."""
    if why := text(search.spent, "ended"):
        yield f"the search ended: {why}", False
    sessions = read_work_sessions(run)
    if sessions and not is_locked(run):
        yield from ((line.text, line.unusual) for line in _end(sessions[-1]))


def _refitted(lineage: tuple[LineageRun, ...]) -> Iterator[tuple[str, bool]]:
    for one in lineage:
        if one.is_refit:
            yield f"#{one.label} trained once more, on training and validation samples", False


def _judged(search: SearchTable) -> Iterator[tuple[str, bool]]:
    """What test says, then the verdict."""
    if search.pick:
        pick = whole(search.pick, "number")
        yield f"judged on test, the pick is #{pick}: {search_headline(search).text}", False
    if verdict := text(search.result, "verdict"):
        yield f"verdict: {verdict}", False


# ---- compare -----------------------------------------------------------------------------------


def _compared(run: Path) -> list[LogLine]:
    settings = read_entries(run / f.SETTINGS)
    seeds, hosts = whole(settings, "seeds"), whole(settings, "envs")
    of = f": {seeds} seeds, {hosts} hosts side by side" if seeds and hosts else ""
    first = f"comparison on {text(settings, 'task') or 'a task'} started{of}"
    lines = _in_time(run, first, map(_policy_done, read_contenders(run)))
    best = policies_headline(run).text
    is_over = best and (run / f.COMPARISON).exists()
    return [*lines, LogLine(f"all compared: {best}", _session_end(run))] if is_over else lines


def _policy_done(one: Contender) -> LogLine:
    if not one.policy:  # its file is damaged
        return LogLine(one.label, unusual=True)
    test = "" if math.isnan(one.test.value) else f"test accuracy {interval(one.test)}"
    score = f"score {interval(one.score)}"
    figures = (score, test, f"n = {one.n}", f"{duration(one.seconds)} of episodes")
    return LogLine(f"{one.label} done: {', '.join(part for part in figures if part)}", one.ended)


# ---- audit -------------------------------------------------------------------------------------


def _audited(run: Path) -> list[LogLine]:
    setup = read_audit_setup(run)
    first = (
        f"audit of {setup.task} started: {len(setup.topologies)} topologies on {setup.hosts} "
        f"hosts in {setup.contexts} contexts"
    )
    rows: dict[int, list[AuditRow]] = {}
    found, problems = read_contexts(run)
    for row in found:
        rows.setdefault(row.context, []).append(row)
    done = [_context_done(setup, at, rows[at]) for at in sorted(rows)]
    damaged = [LogLine(f"cannot be read: {one}", unusual=True) for one in problems]
    lines = _in_time(run, first, [*done, *damaged])
    best = policies_headline(run).text
    return [*lines, LogLine(f"ways to choose judged: {best}", _session_end(run))] if best else lines


def _context_done(setup: AuditSetup, context: int, rows: list[AuditRow]) -> LogLine:
    best = max(rows, key=lambda row: -math.inf if math.isnan(row.test) else row.test)
    names = setup.topologies[best.topology] if best.topology < len(setup.topologies) else ()
    grown = ", ".join(name for name in names if name) or "the host without seeds"
    said = f"context {context} done, budget {number(best.budget)} x the training of the host"
    return LogLine(f"{said}: best test accuracy {number(best.test)}, {grown}")


_READERS: Mapping[RunKind, Callable[[Path], list[LogLine]]] = {
    RunKind.GROW: _searched,
    RunKind.COMPARE: _compared,
    RunKind.AUDIT: _audited,
}
