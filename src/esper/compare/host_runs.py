"""One episode of the hosts of a run seed, under any policy of a comparison.

Most policies run one population with a member per host. `replay` first records its policy on other
hosts; `asha` and `best-of` run several members per host and report the one that survives.

Shape letters: E hosts of a population, T steps, S slots.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from esper.compare.policies import PolicyEntry, search_rungs
from esper.leyline.arrays import Doubles, Ints
from esper.leyline.limits import MAX_MEMBERS
from esper.leyline.protocols import EngineListener, PolicyProtocol, RewardProtocol
from esper.leyline.streams import stream_seed
from esper.simic.rewards.score import ScoreReward
from esper.simic.training.config import PopulationConfig
from esper.tamiyo.asha import AshaPolicy, AshaState, BestOfPolicy
from esper.tamiyo.replay import ActionRecorder, ReplayPolicy
from esper.tasks.spec import TaskSpec
from esper.tasks.task_data import TaskData
from esper.tolaria.context_state import DrawLimits
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.engine_config import EngineConfig
from esper.tolaria.round_results import RoundResult, StepTimer, run_round

_T = TypeVar("_T")
_LETTERS: Final = re.compile(r"_([A-Z]+)$")
_COMBINED: Final = "ENG"
"""Letters of axes along which records are combined: members, hosts, populations."""


@dataclass(frozen=True, slots=True, eq=False)
class HostRun:
    """One episode of the hosts of a run seed."""

    result: RoundResult
    """One entry per host, in order."""
    compute_E: Doubles
    """Training compute spent on each host, in runs of the host; for a search that of all its
    members."""
    engine: VectorizedEngine
    """The engine of the last population."""
    timer: StepTimer
    """Times of its steps."""

    @classmethod
    def joined(cls, parts: Sequence[HostRun]) -> HostRun:
        """Episodes of further hosts as one."""
        results = [part.result for part in parts]
        seconds = sum(part.seconds for part in results)
        compute_E = np.concatenate([part.compute_E for part in parts])
        whole = replace(combine(results, np.concatenate), seconds=seconds)
        return cls(whole, compute_E, parts[-1].engine, parts[-1].timer)


@dataclass(frozen=True, slots=True, eq=False)
class HostRunner:
    """Runs policies on the same hosts, in the same contexts."""

    population: PopulationConfig
    """Compute settings; `envs`: members trained in parallel."""
    data: TaskData
    limits: DrawLimits | None = None
    """From `draw_limits`."""
    reward: RewardProtocol | None = None
    """Reported reward; None: the score."""
    listener: EngineListener | None = None

    def run(
        self, entry: PolicyEntry, seed: int, members: int, planted_ES: Ints | None = None
    ) -> HostRun:
        """Run one episode of `members` hosts of a run seed.

        `planted_ES`: static-final, the final topologies of `entry.found_by` on these hosts.
        """
        if entry.parsed.searches:
            return self._search(entry, seed, members)
        settings = entry.engine_config(self.population, seed, members)
        policy: PolicyProtocol[Any]
        if entry.parsed.kind == "replay":
            policy = self._replay(entry, settings)
        else:
            policy = entry.policy(seed, self.reward, planted_ES)
        engine, timer = self._engine(entry.spec, settings), StepTimer()
        result = run_round(engine, policy, timer)
        return HostRun(result, result.outcome.flops_ratio_E, engine, timer)

    def _engine(self, spec: TaskSpec, settings: EngineConfig) -> VectorizedEngine:
        engine = VectorizedEngine(spec, settings, self.listener, self.data)
        if self.limits is not None:
            engine.context.limits = self.limits
        return engine

    def _replay(self, entry: PolicyEntry, settings: EngineConfig) -> ReplayPolicy:
        """Record the policy on the neighbours: other hosts, which differ in all that is hidden."""
        source, seed, members = entry.found_by, settings.seed, settings.members
        assert source is not None  # the parser rejects replay without a policy
        neighbours = replace(
            settings,
            member_ids=tuple((member + 1) % max(members, 2) for member in range(members)),
            context_ids=tuple(range(members)),
            hidden_seed=stream_seed(seed, "replay"),
        )
        recorder = ActionRecorder()
        self._engine(source.spec, neighbours).run_rollout(source.policy(seed), recorder)
        return ReplayPolicy(recorder.recording, self.reward or ScoreReward(entry.spec.upkeep))

    def _search(self, entry: PolicyEntry, seed: int, members: int) -> HostRun:
        """Run a search, as many hosts at a time as fit into `population.envs` members."""
        at_once = hosts_at_once(entry, self.population.envs)
        groups = [range(at, min(at + at_once, members)) for at in range(0, members, at_once)]
        parts = [self._search_hosts(entry, seed, group) for group in groups]
        return HostRun.joined(parts)

    def _search_hosts(self, entry: PolicyEntry, seed: int, hosts: Sequence[int]) -> HostRun:
        """Run a search on these hosts in one population."""
        candidates, fresh = entry.parsed.candidates, entry.parsed.kind == "best-of"
        host_E = np.repeat(np.array(hosts), candidates)
        # the first initialisation is the host's own; others have numbers that no host has
        further_E = np.tile(np.arange(candidates), len(hosts)) * MAX_MEMBERS * fresh
        settings = replace(
            entry.engine_config(self.population, seed, len(host_E)),
            member_ids=tuple((host_E + further_E).tolist()),
            context_ids=tuple(host_E.tolist()),
        )
        rungs, eta = search_rungs(entry.parsed, entry.spec)
        policy = (BestOfPolicy if fresh else AshaPolicy)(
            host_E,
            seed,
            rungs,
            eta=eta,
            equal_compute=entry.spec.context.clock == "compute",
            reward=self.reward or ScoreReward(entry.spec.upkeep),
        )
        engine, timer = self._engine(entry.spec, settings), StepTimer()
        done = run_round(engine, policy, timer)
        state = engine.env.lstm_hidden
        assert isinstance(state, AshaState)
        spent_E = np.where(state.searched_E, done.outcome.flops_ratio_E, 0.0)
        compute_E = np.asarray(np.bincount(host_E - hosts[0], spent_E), dtype=np.float64)
        survivors = np.flatnonzero(state.running_E)
        result = combine([done], lambda arrays, axis: arrays[0].take(survivors, axis))
        outcome = replace(result.outcome, member_E=np.array(hosts, dtype=np.int64))
        return HostRun(replace(result, outcome=outcome), compute_E, engine, timer)


def hosts_at_once(entry: PolicyEntry, envs: int) -> int:
    """Hosts that run in one population of a policy."""
    return max(1, envs // entry.parsed.candidates) if entry.parsed.searches else envs


def draw_limits(spec: TaskSpec, population: PopulationConfig, data: TaskData) -> DrawLimits | None:
    """Limits of the draws of a task's contexts, for policies with fewer blueprints than the task.

    None if no draw depends on the blueprints.
    """
    if spec.context.capped == 0 and spec.context.budget is not None:
        return None
    settings = replace(population, envs=1, rollout_steps=None, frozen_heads=()).engine_config(0)
    return VectorizedEngine(spec, settings, data=data).context.limits


# ---- records of hosts --------------------------------------------------------------------------


def combine(
    records: Sequence[_T], by: Callable[[Sequence[npt.NDArray[Any]], int], npt.NDArray[Any]]
) -> _T:
    """Combine records array by array: `by(arrays, axis of hosts or populations)`.

    Everything that is not an array is taken from the first record.
    """
    combined: dict[str, Any] = {}
    for field in fields(records[0]):  # type: ignore[arg-type]
        values = [getattr(record, field.name) for record in records]
        if letters := _LETTERS.search(field.name):
            axis = re.search(f"[{_COMBINED}]", letters[1])
            assert axis is not None, field.name
            combined[field.name] = by(values, axis.start())
        elif is_dataclass(values[0]):
            combined[field.name] = combine(values, by)
    return replace(records[0], **combined)  # type: ignore[type-var]
