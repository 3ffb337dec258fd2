"""Runs a comparison: every policy on the same hosts, each result saved when it is complete.

An interrupted comparison resumes: results in the folder are reused (`folder.py`). Populations are
jobs that may run in several processes or on a cluster (`policy_jobs.py`); results are the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from esper.compare.comparison import (
    Comparison,
    ComparisonSettings,
    PolicyDone,
    PolicyResult,
    compare_results,
    metric_means,
)
from esper.compare.config import Compare, Populations
from esper.compare.folder import (
    POLICIES,
    open_folder,
    read_result,
    result_path,
    settings_of_comparison,
)
from esper.compare.host_runs import hosts_at_once
from esper.compare.policies import PolicyEntry, probe_notes
from esper.compare.policy_jobs import (
    PolicyJobs,
    PolicyWorker,
    entries_of,
    make_worker,
    with_sources,
)
from esper.jobs.messages import StepDone
from esper.jobs.run import run_jobs
from esper.karn.compare_progress import CompareProgress
from esper.karn.resuming import resumable
from esper.karn.terminal import console_for_report
from esper.leyline.codec import to_json
from esper.leyline.context import ContextSpec
from esper.leyline.statistics import student_estimate
from esper.leyline.user_errors import user_callback
from esper.nissa.trackers.tracking import track_run
from esper.storage.folder_lock import FolderLock
from esper.storage.live import LiveFile
from esper.storage.sessions import SessionLog, recorded_session
from esper.tasks.spec import TaskSpec
from esper.tasks.user_objects import user_files

OnRound = Callable[[PolicyDone], None]
OnEnd = Callable[[Comparison, Path], None]


def compare_policies(config: Compare, on_round: OnRound | None = None) -> Comparison:
    """Compare policies on the same hosts, with the first as reference.

    Results are saved in the config's folder; existing ones are reused. `on_round`: called for every
    policy that ran, once its result is saved; what it raises ends the comparison.
    """
    config.check()
    return run_comparison(config, on_round)


def run_comparison(
    config: Compare,
    on_round: OnRound | None = None,
    on_end: OnEnd | None = None,
    command: str = "",
) -> Comparison:
    """Run the missing policies and compare all; policies are checked before any runs.

    `on_round`: called for every policy that ran, once its result is saved. `on_end`: called with
    the comparison and its folder, which is still locked. `command`: what resumes it in a shell.
    """
    with user_files() as files:
        spec = config.task.spec()
        entries = entries_of(config, spec, files)
        for note in probe_notes(entries):
            print(note, file=sys.stderr)
        settings = settings_of_comparison(config, spec)
        folder = config.folder(spec.name)
        open_folder(folder, settings)
        if on_end is None and not _entries_to_run(folder, entries):
            return _compare(folder, entries, settings)  # only reads, which needs no lock
        with _locked(folder), recorded_session(folder, command) as session:
            with resumable(command, lambda: _progress(folder, entries)):
                _run_missing(config, spec, entries, session, on_round)
            found = _compare(folder, entries, settings)
            if on_end is not None:
                on_end(found, folder)
        return found


def _run_missing(
    config: Compare,
    spec: TaskSpec,
    entries: list[PolicyEntry],
    session: SessionLog,
    on_round: OnRound | None,
) -> None:
    """Run what has no result yet, and record how far the comparison is."""
    folder, settings = config.folder(spec.name), settings_of_comparison(config, spec)
    missing = _entries_to_run(folder, entries)
    places = _places(folder, entries)
    session.plan(len(places) - len(missing), len(places))
    if not missing:
        return
    with _reported(config, folder, settings, on_round) as report:

        def saved(done: PolicyDone) -> None:
            session.saved(sum(place.exists() for place in places))
            report(done)

        steps = _steps(config, spec, missing)
        before = len(places) - len(missing)
        shown = CompareProgress(steps, config.population_size(spec), console_for_report(), before)
        with LiveFile(folder, lambda: shown.record):
            _run_all(config, spec, folder, missing, shown, saved)


def _compare(folder: Path, entries: list[PolicyEntry], settings: ComparisonSettings) -> Comparison:
    results = []
    for entry in entries:
        saved = read_result(result_path(folder, entry.identity), entry.identity)
        results.append((entry.label, entry.identity.policy, saved.result))
    return compare_results(settings, results)


def _places(folder: Path, entries: list[PolicyEntry]) -> list[Path]:
    """Result files of a comparison, those of sources included."""
    found = (result_path(folder, one.identity) for one in with_sources(entries))
    return list(dict.fromkeys(found))


def _progress(folder: Path, entries: list[PolicyEntry]) -> str:
    places = _places(folder, entries)
    done = sum(place.exists() for place in places)
    return f"{done} of {len(places)} policies done, saved in {folder}"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock: one command writes it, and views see that it runs."""
    lock = FolderLock(folder)
    try:
        yield
    finally:
        lock.release()


def _entries_to_run(folder: Path, entries: list[PolicyEntry]) -> list[PolicyEntry]:
    """Entries without a result file, in the order to run; duplicates are dropped."""
    missing: dict[Path, PolicyEntry] = {}
    for entry in with_sources(entries):
        place = result_path(folder, entry.identity)
        if place.exists():
            read_result(place, entry.identity)  # raise on damage before anything runs
        else:
            missing.setdefault(place, entry)
    return list(missing.values())


def _run_all(
    config: Compare,
    spec: TaskSpec,
    folder: Path,
    missing: list[PolicyEntry],
    shown: CompareProgress,
    report: OnRound,
) -> None:
    def done(entry: PolicyEntry, result: PolicyResult, count: int) -> None:
        if not config.quiet:
            shown.say(_done_line(entry.label, result, spec.context))
        report(_policy_done(folder, entry, result, count, len(missing)))

    def show(step: StepDone) -> None:
        shown.advance(step.label, step.score, step.seeds)

    def note(step: StepDone) -> None:
        shown.note(step.label, step.score)

    jobs = PolicyJobs(folder, missing, done, len(config.populations(spec)))
    here = partial(PolicyWorker, config, spec, missing)
    make = here if config.jobs.inline else partial(make_worker, config)
    said = (note, None) if config.quiet else (show, shown.say)
    with nullcontext() if config.quiet else shown:
        run_jobs(make, jobs, config.jobs.on_device(config.device), *said)


def _steps(config: Compare, spec: TaskSpec, missing: list[PolicyEntry]) -> dict[str, int]:
    """Steps of every policy, over all its populations."""
    populations = config.populations(spec)
    episodes = {one.label: _episodes(config, one, populations) for one in missing}
    return {one.label: one.spec.episode_length * episodes[one.label] for one in missing}


@contextmanager
def _reported(
    config: Compare, folder: Path, settings: ComparisonSettings, on_round: OnRound | None
) -> Iterator[OnRound]:
    """What passes every finished policy to trackers, then to `on_round`."""
    described = to_json(settings)
    assert isinstance(described, dict)
    first = _results(folder)
    with track_run(config.track, folder, folder.absolute().name, described, first) as tracking:

        def report(done: PolicyDone) -> None:
            tracking.log(done.round, done.figures())
            if on_round is not None:
                with user_callback("on_round fails"):
                    on_round(done)

        yield report


def _policy_done(
    folder: Path, entry: PolicyEntry, result: PolicyResult, done: int, policies: int
) -> PolicyDone:
    return PolicyDone(
        label=entry.label,
        policy=entry.identity.policy,
        round=_results(folder) - 1,
        done=done,
        policies=policies,
        hosts=result.hosts,
        seconds=float(result.seconds_G.sum()),
        means=metric_means(result, entry.spec.context),
    )


def _results(folder: Path) -> int:
    """Results that a folder holds."""
    return len(list((folder / POLICIES).glob("*.json")))


def _episodes(config: Compare, entry: PolicyEntry, populations: Populations) -> int:
    """Episodes of whole populations that a policy runs."""
    per_run = [-(-hosts // hosts_at_once(entry, config.envs)) for _, hosts in populations]
    return sum(per_run) * (2 if entry.parsed.kind == "replay" else 1)


def _done_line(label: str, result: PolicyResult, context: ContextSpec) -> str:
    score = student_estimate(result.by_draw(result.score_N, context))
    return (
        f"{label}: score {score.value:.4f} ({score.low:.4f} to {score.high:.4f}), "
        f"{result.hosts} hosts, {result.seconds_G.sum():.0f} s"
    )
