"""Runs a comparison: every policy on the same hosts, each result saved when it is complete.

    OUT/settings.json          the shared settings; a mismatch raises
    OUT/policies/NAME.json     identity and results of one policy
    OUT/trackers/              files of trackers

An interrupted comparison resumes: results in the folder are reused.

Shape letters: E members, N hosts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console

import esper
from esper.karn.compare_progress import CompareProgress
from esper.leyline.codec import Json, read_record, to_json
from esper.leyline.context import FIXED
from esper.leyline.errors import EsperError
from esper.leyline.statistics import interquartile_estimate
from esper.nissa.trackers.tracking import track_run
from esper.scripts.cli.report_files import json_bytes
from esper.scripts.cli.user_objects import UserFiles, user_files
from esper.scripts.compare.comparison import (
    Comparison,
    ComparisonSettings,
    PolicyDone,
    PolicyResult,
    SearchCompute,
    compare_results,
    metric_means,
)
from esper.scripts.compare.config import Compare
from esper.scripts.compare.host_runs import HostRunner, combine, draw_limits, hosts_at_once
from esper.scripts.compare.policies import Identity, PolicyEntry, make_entry
from esper.storage.atomic import require_not_folders, require_writable, write_atomic
from esper.storage.run_files import POLICIES as POLICIES
from esper.storage.run_files import SETTINGS as SETTINGS
from esper.storage.sealed_json import read_document, seal
from esper.tamiyo.grammar import parse_all
from esper.tasks.scoring import charge_length
from esper.tasks.spec import TaskSpec
from esper.tolaria.device_info import describe_device
from esper.tolaria.runtime import parse_device


@dataclass(frozen=True, slots=True, eq=False)
class SavedResult:
    """The result file of one policy."""

    label: str
    """Label when it was computed; not part of its identity."""
    identity: Identity
    result: PolicyResult


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
    entries = [make_entry(config, word, spec, files) for word in parse_all(config.policies)]
    settings = settings_of_comparison(config, spec)
    folder = config.folder(spec.name)
    open_folder(folder, settings)
    missing = _entries_to_run(folder, entries)
    if missing:
        data = spec.load(config.data_dir)
        limits = draw_limits(spec, config.population, data)
        runner = HostRunner(config.population, data, limits)
        with _reported(config, folder, settings, on_round) as report:
            _run_all(config, folder, missing, runner, console, report)
    results = []
    for entry in entries:
        saved = read_result(result_path(folder, entry.identity), entry.identity)
        results.append((entry.label, entry.identity.policy, saved.result))
    return compare_results(settings, results)


def _entries_to_run(folder: Path, entries: list[PolicyEntry]) -> list[PolicyEntry]:
    """Entries without a result file, in the order to run; duplicates are dropped."""
    missing: dict[Path, PolicyEntry] = {}
    for entry in _with_sources(entries):
        place = result_path(folder, entry.identity)
        if place.exists():
            read_result(place, entry.identity)  # raise on damage before anything runs
        else:
            missing.setdefault(place, entry)
    return list(missing.values())


def _with_sources(entries: list[PolicyEntry]) -> Iterator[PolicyEntry]:
    """Yield the entries, each after the policy whose result it needs."""
    for entry in entries:
        if entry.found_by is not None and entry.needs_result:
            yield from _with_sources([entry.found_by])
        yield entry


def _run_all(
    config: Compare,
    folder: Path,
    missing: list[PolicyEntry],
    runner: HostRunner,
    console: Console | None,
    report: OnRound,
) -> None:
    hosts = min(config.envs, config.seeds)
    steps = {one.label: one.spec.episode_length * _episodes(config, one) for one in missing}
    shown = CompareProgress(steps, hosts, console)
    with nullcontext() if config.quiet else shown:
        for done, entry in enumerate(missing):
            shown.begin(entry.label)
            try:
                found = _source_result(folder, entry)
                listening = runner if config.quiet else replace(runner, listener=shown)
                result = run_policy(config, entry, listening, found)
            except KeyboardInterrupt:
                shown.say(
                    f"{done} of {len(missing)} policies done, saved in {folder}: the same command "
                    f"resumes from there"
                )
                raise
            save_result(folder, SavedResult(entry.label, entry.identity, result))
            if not config.quiet:
                shown.say(_done_line(entry.label, result))
            report(_policy_done(folder, entry, result, done + 1, len(missing)))


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


def _source_result(folder: Path, entry: PolicyEntry) -> PolicyResult | None:
    """Result of the policy that this one needs."""
    by = entry.found_by
    if by is None or not entry.needs_result:
        return None
    return read_result(result_path(folder, by.identity), by.identity).result


def _done_line(label: str, result: PolicyResult) -> str:
    score = interquartile_estimate(result.score_N)
    return (
        f"{label}: score {score.value:.4f} ({score.low:.4f} to {score.high:.4f}), "
        f"{result.hosts} hosts, {result.seconds_G.sum():.0f} s"
    )


# ---- one policy --------------------------------------------------------------------------------


def run_policy(
    config: Compare, entry: PolicyEntry, runner: HostRunner, found: PolicyResult | None = None
) -> PolicyResult:
    """Run one episode of every host; `found`: result of `entry.found_by`, if it needs one."""
    if found is not None:
        entry = entry.with_compute_of(found)
    parts = [
        _run_population(config, entry, runner, found, seed, members)
        for seed, members in config.populations()
    ]
    return combine(parts, np.concatenate)


def _run_population(
    config: Compare,
    entry: PolicyEntry,
    runner: HostRunner,
    found: PolicyResult | None,
    seed: int,
    members: int,
) -> PolicyResult:
    """Run one episode of the hosts of one run seed."""
    planted_ES = None
    if found is not None and entry.word.kind == "static-final":
        planted_ES = found.blueprint_NS[found.seed_N == seed]
    run = runner.run(entry, seed, members, planted_ES)
    engine, outcome, contexts = run.engine, run.result.outcome, run.result.contexts
    choice = engine.env.model.choice
    assert choice is not None  # chosen when the engine was built
    length = entry.spec.episode_length / config.task.spec().episode_length
    score_E, flops_ratio_E = charge_length(
        outcome.score_E, outcome.flops_ratio_E, length, entry.spec.score, contexts.price_N
    )
    return PolicyResult(
        seed_N=np.full(members, seed, dtype=np.int64),
        member_N=outcome.member_E,
        score_N=score_E,
        accuracy_N=outcome.accuracy_E,
        test_N=run.result.test_E,
        parameters_N=engine.episode.host_params + outcome.added_params_E,
        macs_N=engine.episode.host_macs + outcome.added_macs_E,
        flops_ratio_N=flops_ratio_E,
        germinated_N=outcome.germinated_E,
        fossilized_N=outcome.fossilized_E,
        pruned_N=outcome.pruned_E,
        rollbacks_N=outcome.rollbacks_E,
        blueprint_NS=outcome.blueprint_ES,
        slots=engine.env.model.slots,
        blueprints=engine.env.model.blueprints,
        seconds_G=np.array([run.result.seconds]),
        host_params=engine.episode.host_params,
        host_macs=engine.episode.host_macs,
        executor=choice.executor.name,
        device=describe_device(engine.device)["device"],
        contexts=contexts,
        search=SearchCompute(run.compute_E) if entry.word.kind == "asha" else None,
    )


# ---- output folder -----------------------------------------------------------------------------


class ReportPaths(NamedTuple):
    """Paths of the report files."""

    picture: Path
    report: Path
    numbers: Path


def report_paths(folder: Path) -> ReportPaths:
    """Report paths in the output folder."""
    return ReportPaths(*(folder / f"compare.{end}" for end in ("png", "md", "json")))


def settings_of_comparison(config: Compare, spec: TaskSpec) -> ComparisonSettings:
    """The settings shared by all policies."""
    return ComparisonSettings(
        task=spec.name,
        data=config.task.data,
        seeds=config.seeds,
        first_seed=config.first_seed,
        envs=min(config.envs, config.seeds),
        slots=spec.slots,
        blueprints=spec.blueprints,
        episode_length=spec.episode_length,
        batches_per_step=spec.batches_per_step,
        batch_size=spec.batch_size,
        rent=config.task.rent,
        score=spec.score,
        optim=spec.optim,
        augmentation=spec.augmentation,
        device=parse_device(config.device).type,
        profile=config.profile,
        executor=config.executor,
        precision=config.precision,
        esper=esper.__version__,
        torch=version("torch"),
        kernels=config.kernels,
        context=spec.context,
    )


def open_folder(folder: Path, settings: ComparisonSettings) -> None:
    """Create the folder, or check that it holds a comparison with the same settings."""
    path = folder / SETTINGS
    require_not_folders((path, *report_paths(folder), folder / POLICIES / "any"))
    require_writable(path, "--out")
    (folder / POLICIES).mkdir(exist_ok=True)
    wanted = to_json(settings)
    if path.exists():
        saved = read_document(path)
        if isinstance(saved, dict):  # missing in folders of older versions
            saved = {"kernels": "auto", "context": to_json(FIXED), **saved}
        different = next(_differences(saved, wanted, ""), None)
        if different is not None:
            raise EsperError(
                f"{folder} holds a comparison with other settings: {different}; set it back or "
                f"choose another --out"
            )
        return
    try:
        write_atomic(path, json_bytes(wanted))
    except OSError as error:
        raise unwritable(folder, error) from error


def _differences(found: Json, wanted: Json, name: str) -> Iterator[str]:
    """Yield the differing entries by dotted name."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in (*wanted, *(key for key in found if key not in wanted)):
            inner = f"{name}.{key}" if name else key
            yield from _differences(found.get(key), wanted.get(key), inner)
    elif found != wanted:
        yield f"{name} is {json.dumps(found)} there and {json.dumps(wanted)} here"


def result_path(folder: Path, identity: Identity) -> Path:
    """Result file of a policy; its name contains a hash of the identity."""
    known = json.dumps(to_json(identity), sort_keys=True).encode()
    name = re.sub(r"[^A-Za-z0-9]+", "-", identity.policy).strip("-")[:60]
    return folder / POLICIES / f"{name}-{hashlib.sha256(known).hexdigest()[:10]}.json"


def save_result(folder: Path, saved: SavedResult) -> None:
    """Write the result file of a policy with a checksum."""
    content = to_json(saved)
    assert isinstance(content, dict)  # records encode to objects
    try:
        write_atomic(result_path(folder, saved.identity), json_bytes(seal(content)))
    except OSError as error:
        raise unwritable(folder, error) from error


def unwritable(folder: Path, error: OSError) -> EsperError:
    """Error for a result that cannot be written."""
    return EsperError(
        f"cannot write to {folder} ({error.strerror or error}): free some space there; finished "
        f"policies are saved, and the same command resumes"
    )


def read_result(path: Path, identity: Identity) -> SavedResult:
    """Read a result file; raises if it is damaged or of another policy."""
    try:
        content = read_document(path)
        saved = read_record(SavedResult, content, str(path))
    except EsperError as error:
        raise EsperError(f"{error}; remove that file to compute it again") from None
    if saved.identity != identity:
        raise EsperError(f"{path} belongs to another policy; remove that file to compute it again")
    return saved
