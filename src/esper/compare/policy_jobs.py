"""The jobs of a comparison: one population of one policy each, independent but for their sources.

A job runs one episode of the hosts of a run seed. A policy that needs the result of another waits
until that is saved. Only the command writes: a policy's result, once all its populations are done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from esper.compare.comparison import PolicyResult, Restarts, SearchCompute
from esper.compare.config import Compare
from esper.compare.folder import SavedResult, read_result, result_path, save_result
from esper.compare.host_runs import HostRunner, combine, draw_limits
from esper.compare.policies import PolicyEntry, make_entry, with_untrained
from esper.jobs.run import JobSource
from esper.jobs.worker import Reporter
from esper.storage.sessions import utc_now
from esper.tamiyo.grammar import parse_all
from esper.tasks.scoring import charge_length
from esper.tasks.spec import TaskSpec
from esper.tasks.user_objects import UserFiles
from esper.tolaria.device_info import describe_device


@dataclass(frozen=True, slots=True, eq=False)
class _PopulationJob:
    """One population of a policy."""

    policy: str
    """Name of its result file."""
    label: str
    place: int
    """Which of the policy's populations."""
    found: PolicyResult | None
    """Result of the policy that it needs."""


def entries_of(config: Compare, spec: TaskSpec, files: UserFiles) -> list[PolicyEntry]:
    """The policies of a comparison, controllers beside themselves untrained.

    `files`: runs those that they name.
    """
    named = [make_entry(config, parsed, spec, files) for parsed in parse_all(config.policies)]
    return with_untrained(named)


def with_sources(entries: Sequence[PolicyEntry]) -> Iterator[PolicyEntry]:
    """Yield the entries, each after the policy whose result it needs."""
    for entry in entries:
        if entry.found_by is not None and entry.needs_result:
            yield from with_sources([entry.found_by])
        yield entry


# ---- in the command ----------------------------------------------------------------------------


class PolicyJobs(JobSource[_PopulationJob, PolicyResult]):
    """Source of jobs; saves each policy when it is complete."""

    def __init__(
        self,
        folder: Path,
        missing: Sequence[PolicyEntry],
        on_done: Callable[[PolicyEntry, PolicyResult, int], None],
        populations: int,
    ) -> None:
        """`on_done`: called with the policy, its result, and how many are done."""
        self._folder, self._on_done = folder, on_done
        self._entries = {result_path(folder, one.identity).name: one for one in missing}
        self._populations = populations
        self._waiting = [
            (policy, place) for policy in self._entries for place in range(self._populations)
        ]
        self._parts: dict[str, dict[int, PolicyResult]] = {name: {} for name in self._entries}
        self.most, self.done = len(self._waiting), 0

    def next(self) -> _PopulationJob | None:
        """The first job whose source has a result."""
        for at, (policy, place) in enumerate(self._waiting):
            entry = self._entries[policy]
            source = entry.found_by if entry.needs_result else None
            if source is None or result_path(self._folder, source.identity).exists():
                del self._waiting[at]
                found = None if source is None else self._result(source)
                return _PopulationJob(policy, entry.label, place, found)
        return None

    def _result(self, source: PolicyEntry) -> PolicyResult:
        path = result_path(self._folder, source.identity)
        return read_result(path, source.identity).result

    def label(self, job: _PopulationJob) -> str:
        """Policy and population."""
        return f"{job.label}, population {job.place + 1} of {self._populations}"

    def keep(self, job: _PopulationJob, result: PolicyResult) -> None:
        """Keep a population; save the policy if it was the last."""
        parts = self._parts[job.policy]
        parts[job.place] = result
        if len(parts) < self._populations:
            return
        entry = self._entries[job.policy]
        whole = combine([parts[place] for place in sorted(parts)], np.concatenate)
        save_result(self._folder, SavedResult(entry.label, entry.identity, whole, utc_now()))
        self.done += 1
        self._on_done(entry, whole, self.done)


# ---- where jobs run ----------------------------------------------------------------------------


class PolicyWorker:
    """Runs populations."""

    def __init__(self, config: Compare, spec: TaskSpec, entries: Sequence[PolicyEntry]) -> None:
        data = spec.load(config.data_dir)
        limits = draw_limits(spec, config.population, data)
        self._config, self._runner = config, HostRunner(config.population, data, limits)
        self._populations = config.populations(spec)
        folder = config.folder(spec.name)
        self._entries = {
            result_path(folder, one.identity).name: one for one in with_sources(entries)
        }

    def do(self, job: _PopulationJob, reporter: Reporter) -> PolicyResult:
        """Run one population."""
        reporter.begin(job.label)
        entry, found = self._entries[job.policy], job.found
        if found is not None:
            entry = entry.with_compute_of(found)
        seed, members = self._populations[job.place]
        runner = replace(self._runner, listener=reporter)
        return run_population(self._config, entry, runner, found, seed, members)


def make_worker(config: Compare) -> PolicyWorker:
    """The worker of a process of its own."""
    from esper.tolaria.runtime import set_deterministic_cublas

    set_deterministic_cublas()
    spec = config.task.spec()
    return PolicyWorker(config, spec, entries_of(config, spec, UserFiles()))


def run_population(
    config: Compare,
    entry: PolicyEntry,
    runner: HostRunner,
    found: PolicyResult | None,
    seed: int,
    members: int,
) -> PolicyResult:
    """Run one episode of the hosts of one run seed."""
    planted_ES = None
    if found is not None and entry.parsed.kind == "static-final":
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
        search=SearchCompute(run.compute_E) if entry.parsed.searches else None,
        restarts=Restarts(outcome.restarts_E) if entry.spec.context.restarts else None,
    )
