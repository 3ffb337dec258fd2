"""Runs a comparison: every policy on the same hosts, each result saved when it is complete.

An interrupted comparison resumes: results in the folder are reused (`folder.py`). Populations are
jobs that may run in several processes or on a cluster (`policy_jobs.py`); results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from rich.console import Console

from esper.jobs.messages import StepDone
from esper.jobs.run import run_jobs
from esper.karn.compare_progress import CompareProgress
from esper.leyline.codec import to_json
from esper.leyline.statistics import interquartile_estimate
from esper.nissa.trackers.tracking import track_run
from esper.scripts.cli.user_objects import UserFiles, user_files
from esper.scripts.compare.comparison import (
    Comparison,
    ComparisonSettings,
    PolicyDone,
    PolicyResult,
    compare_results,
    metric_means,
)
from esper.scripts.compare.config import Compare
from esper.scripts.compare.folder import (
    POLICIES,
    open_folder,
    read_result,
    result_path,
    settings_of_comparison,
)
from esper.scripts.compare.host_runs import hosts_at_once
from esper.scripts.compare.policies import PolicyEntry
from esper.scripts.compare.policy_jobs import (
    PolicyJobs,
    PolicyWorker,
    entries_of,
    make_worker,
    with_sources,
)
from esper.storage.folder_lock import FolderLock
from esper.tasks.spec import TaskSpec

OnRound = Callable[[PolicyDone], None]


def run_comparison(
    config: Compare, console: Console | None = None, on_round: OnRound | None = None
) -> Comparison:
    """Run the missing policies and compare all; policies are checked before any runs.

    `on_round`: called for every policy that ran, once its result is saved.
    """
    with user_files() as files:
        return _compare_all(config, console, files, on_round)


def _compare_all(
    config: Compare, console: Console | None, files: UserFiles, on_round: OnRound | None
) -> Comparison:
    """`files`: runs the files of policies; they are loaded as long as their policies run."""
    spec = config.task.spec()
    entries = entries_of(config, spec, files)
    settings = settings_of_comparison(config, spec)
    folder = config.folder(spec.name)
    open_folder(folder, settings)
    missing = _entries_to_run(folder, entries)
    if missing:
        with _locked(folder), _reported(config, folder, settings, on_round) as report:
            _run_all(config, spec, folder, missing, console, report)
    results = []
    for entry in entries:
        saved = read_result(result_path(folder, entry.identity), entry.identity)
        results.append((entry.label, entry.identity.policy, saved.result))
    return compare_results(settings, results)


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
    console: Console | None,
    report: OnRound,
) -> None:
    hosts = min(config.envs, config.seeds)
    steps = {one.label: one.spec.episode_length * _episodes(config, one) for one in missing}
    shown = CompareProgress(steps, hosts, console)

    def done(entry: PolicyEntry, result: PolicyResult, count: int) -> None:
        if not config.quiet:
            shown.say(_done_line(entry.label, result))
        report(_policy_done(folder, entry, result, count, len(missing)))

    def show(step: StepDone) -> None:
        shown.advance(step.label, step.score, step.seeds)

    jobs = PolicyJobs(config, folder, missing, done)
    here = partial(PolicyWorker, config, spec, missing)
    make = here if config.jobs.inline else partial(make_worker, config)
    loud = (None, None) if config.quiet else (show, shown.say)
    with nullcontext() if config.quiet else shown:
        try:
            run_jobs(make, jobs, config.jobs.on_device(config.device), *loud)
        except KeyboardInterrupt:
            shown.say(
                f"{jobs.done} of {len(missing)} policies done, saved in {folder}: the same command "
                f"resumes from there"
            )
            raise


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
        means=metric_means(result),
    )


def _results(folder: Path) -> int:
    """Results that a folder holds."""
    return len(list((folder / POLICIES).glob("*.json")))


def _episodes(config: Compare, entry: PolicyEntry) -> int:
    """Episodes of whole populations that a policy runs."""
    per_run = [-(-hosts // hosts_at_once(entry, config.envs)) for _, hosts in config.populations()]
    return sum(per_run) * (2 if entry.word.kind == "replay" else 1)


def _done_line(label: str, result: PolicyResult) -> str:
    score = interquartile_estimate(result.score_N)
    return (
        f"{label}: score {score.value:.4f} ({score.low:.4f} to {score.high:.4f}), "
        f"{result.hosts} hosts, {result.seconds_G.sum():.0f} s"
    )
