"""Runs a comparison: every policy on the same hosts, each result kept as soon as it is there.

    OUT/settings.json          what all policies share; another command's settings are refused
    OUT/policies/NAME.json     one file for each policy: who it is, and its numbers

A run that was cut off goes on where it stopped: what is in the folder is not computed again.

Shape letters: E members, N hosts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from rich.console import Console

import esper
from esper.karn.compare_progress import CompareProgress
from esper.leyline.codec import Json, read_record, to_json
from esper.leyline.errors import EsperError
from esper.leyline.protocols import EngineListener
from esper.leyline.statistics import interquartile_estimate
from esper.scripts.cli.report_files import json_bytes
from esper.scripts.compare.comparison import Comparison, ComparisonSettings, PolicyResult, judge
from esper.scripts.compare.config import Compare
from esper.scripts.compare.policies import Contender, Identity, make_contender
from esper.storage.atomic import require_not_folders, require_writable, write_atomic
from esper.storage.sealed_json import read_document, seal
from esper.tamiyo.grammar import parse_all
from esper.tasks.scoring import charge_length
from esper.tasks.spec import TaskData, TaskSpec
from esper.tolaria.device_info import describe_device
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.runtime import parse_device

SETTINGS: Final = "settings.json"
POLICIES: Final = "policies"


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """The file of one policy."""

    label: str
    """What it was called when it was computed; names do not matter."""
    identity: Identity
    result: PolicyResult


def run_comparison(config: Compare, console: Console | None = None) -> Comparison:
    """Compute what is not there yet, and judge; all words are checked before anything runs."""
    spec = config.task.spec()
    contenders = [make_contender(config, word, spec) for word in parse_all(config.policies)]
    settings = settings_of_comparison(config, spec)
    folder = config.folder(spec.name)
    open_folder(folder, settings)
    missing = _missing(folder, contenders)
    if missing:
        data = spec.load(config.data_dir)
        _run_all(config, folder, missing, data, console)
    results = []
    for contender in contenders:
        kept = read_kept(place_of(folder, contender.identity), contender.identity)
        results.append((contender.label, contender.identity.policy, kept.result))
    return judge(settings, results)


def _missing(folder: Path, contenders: list[Contender]) -> list[Contender]:
    """Those without a file, in the order they can run; of equal ones the first."""
    missing: dict[Path, Contender] = {}
    for contender in _with_those_needed(contenders):
        place = place_of(folder, contender.identity)
        if place.exists():
            read_kept(place, contender.identity)  # what is wrong with it is said before anything
        else:
            missing.setdefault(place, contender)
    return list(missing.values())


def _with_those_needed(contenders: list[Contender]) -> Iterator[Contender]:
    """The contenders, each after the policy whose topologies it plants."""
    for contender in contenders:
        if contender.found_by is not None:
            yield contender.found_by
        yield contender


def _run_all(
    config: Compare,
    folder: Path,
    missing: list[Contender],
    data: TaskData,
    console: Console | None,
) -> None:
    populations = len(list(config.populations()))
    hosts = min(config.envs, config.seeds)
    steps = {one.label: one.spec.episode_length * populations for one in missing}
    shown = CompareProgress(steps, hosts, console)
    with nullcontext() if config.quiet else shown:
        for done, contender in enumerate(missing):
            shown.begin(contender.label)
            try:
                found = _found(folder, contender)
                listener = None if config.quiet else shown
                result = run_contender(config, contender, data, listener, found)
            except KeyboardInterrupt:
                shown.say(
                    f"{done} of {len(missing)} policies done, kept in {folder}: the same command "
                    f"goes on from there"
                )
                raise
            keep(folder, Kept(contender.label, contender.identity, result))
            if not config.quiet:
                shown.say(_done_line(contender.label, result))


def _found(folder: Path, contender: Contender) -> PolicyResult | None:
    """What the policy came to whose topologies this one plants."""
    by = contender.found_by
    return None if by is None else read_kept(place_of(folder, by.identity), by.identity).result


def _done_line(label: str, result: PolicyResult) -> str:
    score = interquartile_estimate(result.score_N)
    return (
        f"{label}: score {score.value:.4f} ({score.low:.4f} to {score.high:.4f}), "
        f"{result.hosts} hosts, {result.seconds_G.sum():.0f} s"
    )


# ---- one policy --------------------------------------------------------------------------------


def run_contender(
    config: Compare,
    contender: Contender,
    data: TaskData,
    listener: EngineListener | None = None,
    found: PolicyResult | None = None,
) -> PolicyResult:
    """One episode of every host under this policy; `found`: what `contender.found_by` came to."""
    parts = [
        _run_population(config, contender, data, listener, seed, members, found)
        for seed, members in config.populations()
    ]
    joined: dict[str, Any] = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])
        for field in fields(PolicyResult)
        if isinstance(getattr(parts[0], field.name), np.ndarray)
    }
    return replace(parts[0], **joined)


def _run_population(
    config: Compare,
    contender: Contender,
    data: TaskData,
    listener: EngineListener | None,
    seed: int,
    members: int,
    found: PolicyResult | None = None,
) -> PolicyResult:
    """One episode of the hosts of one run seed."""
    settings = contender.engine_config(config.population, seed, members)
    engine = VectorizedEngine(contender.spec, settings, listener, data)
    planted_ES = None if found is None else found.blueprint_NS[found.seed_N == seed]
    rollout = engine.run_rollout(contender.policy(seed, planted_ES=planted_ES))
    outcome, choice = rollout.outcome, engine.env.model.choice
    assert choice is not None  # the engine showed the population an input
    length = contender.spec.episode_length / config.task.spec().episode_length
    score_E, flops_ratio_E = charge_length(
        outcome.score_E, outcome.flops_ratio_E, length, contender.spec.score
    )
    return PolicyResult(
        seed_N=np.full(members, seed, dtype=np.int64),
        member_N=outcome.member_E,
        score_N=score_E,
        accuracy_N=outcome.accuracy_E,
        test_N=engine.test(),
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
        seconds_G=np.array([rollout.seconds]),
        host_params=engine.episode.host_params,
        host_macs=engine.episode.host_macs,
        executor=choice.executor.name,
        device=describe_device(engine.device)["device"],
    )


# ---- the folder --------------------------------------------------------------------------------


class ReportPlaces(NamedTuple):
    """Where the files of the report are."""

    picture: Path
    report: Path
    numbers: Path


def report_places(folder: Path) -> ReportPlaces:
    """The files of a comparison's report."""
    return ReportPlaces(*(folder / f"compare.{end}" for end in ("png", "md", "json")))


def settings_of_comparison(config: Compare, spec: TaskSpec) -> ComparisonSettings:
    """What all policies share."""
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
    )


def open_folder(folder: Path, settings: ComparisonSettings) -> None:
    """Make the folder this comparison's; one that holds another's numbers is refused."""
    path = folder / SETTINGS
    require_not_folders((path, *report_places(folder), folder / POLICIES / "any"))
    require_writable(path, "--out")
    (folder / POLICIES).mkdir(exist_ok=True)
    wanted = to_json(settings)
    if path.exists():
        saved = read_document(path)
        if isinstance(saved, dict):  # folders of older versions do not say whose kernels
            saved = {"kernels": "auto", **saved}
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
    """What differs, by name, innermost entries only."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in (*wanted, *(key for key in found if key not in wanted)):
            inner = f"{name}.{key}" if name else key
            yield from _differences(found.get(key), wanted.get(key), inner)
    elif found != wanted:
        yield f"{name} is {json.dumps(found)} there and {json.dumps(wanted)} here"


def place_of(folder: Path, identity: Identity) -> Path:
    """The file of a policy: readable, and another one for anything that changes its numbers."""
    known = json.dumps(to_json(identity), sort_keys=True).encode()
    name = re.sub(r"[^A-Za-z0-9]+", "-", identity.policy).strip("-")[:60]
    return folder / POLICIES / f"{name}-{hashlib.sha256(known).hexdigest()[:10]}.json"


def keep(folder: Path, kept: Kept) -> None:
    """Write the file of a policy, sealed: it is not computed again."""
    content = to_json(kept)
    assert isinstance(content, dict)  # records are
    try:
        write_atomic(place_of(folder, kept.identity), json_bytes(seal(content)))
    except OSError as error:
        raise unwritable(folder, error) from error


def unwritable(folder: Path, error: OSError) -> EsperError:
    """What to do when a result cannot be written."""
    return EsperError(
        f"cannot write to {folder} ({error.strerror or error}): make room there; policies that are "
        f"done are kept, and the same command goes on"
    )


def read_kept(path: Path, identity: Identity) -> Kept:
    """A result that was kept, of this very policy."""
    try:
        content = read_document(path)
        kept = read_record(Kept, content, str(path))
    except EsperError as error:
        raise EsperError(f"{error}; remove that file to compute it again") from None
    if kept.identity != identity:
        raise EsperError(f"{path} belongs to another policy; remove that file to compute it again")
    return kept
