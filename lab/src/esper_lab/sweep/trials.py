"""Trials of a sweep: train a controller, then score it on the tuning hosts.

Shape letters: E hosts, N hosts of all controllers of a trial.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from esper.compare.host_runs import HostRunner, draw_limits
from esper.compare.policies import Limits, controller_entry
from esper.jobs.worker import Reporter
from esper.leyline.arrays import Doubles
from esper.simic.agent.agent import PPOAgent
from esper.simic.training.config import TrainingConfig
from esper.simic.training.history import RoundRecord
from esper.simic.training.vectorized import train_ppo_vectorized
from esper.tamiyo.grammar import ParsedPolicy
from esper.tasks.spec import TaskSpec
from esper.tasks.task_data import TaskData
from esper_lab.sweep.config import TUNING_SEED


@dataclass(frozen=True, slots=True)
class TrialJob:
    """One trial."""

    number: int
    training: TrainingConfig
    """With its first seed."""


@dataclass(frozen=True, slots=True)
class RoundScore:
    """Mean score of a round; the answer is whether the trial ends here."""

    step: int
    """Rounds of the trial before it."""
    score: float


@dataclass(frozen=True, slots=True, eq=False)
class TrialResult:
    """What came of a trial."""

    score_N: Doubles
    """Scores on the tuning hosts, controller by controller; empty if it was pruned."""
    seconds: float

    @property
    def pruned(self) -> bool:
        """Whether it ended early."""
        return len(self.score_N) == 0


class _PrunedError(Exception):
    """Ends the training of a trial."""


class TrialWorker:
    """Runs trials."""

    def __init__(self, repeats: int, hosts: int, data_dir: Path | None) -> None:
        from esper.tolaria.runtime import set_deterministic_cublas

        set_deterministic_cublas()
        self._repeats, self._hosts, self._data_dir = repeats, hosts, data_dir

    def do(self, job: TrialJob, reporter: Reporter) -> TrialResult:
        """Train and score."""
        start, training = time.perf_counter(), job.training
        spec = training.check()
        data, scores = spec.load(self._data_dir), [np.zeros(0)]
        try:
            for repeat in range(self._repeats):
                seeded = replace(training, seed=training.seed + repeat)
                agent = _train(seeded, spec, data, reporter, repeat * training.rounds)
                scores.append(tuning_scores(seeded, agent, spec, data, self._hosts))
        except _PrunedError:
            scores = [np.zeros(0)]
        return TrialResult(np.concatenate(scores), time.perf_counter() - start)


def _train(
    training: TrainingConfig, spec: TaskSpec, data: TaskData, reporter: Reporter, before: int
) -> PPOAgent:
    """Train a controller; `before`: rounds of the trial's other controllers."""

    def on_round(record: RoundRecord) -> None:
        if reporter.ask(RoundScore(before + record.round_index, record.mean_score)):
            raise _PrunedError

    agent, _ = train_ppo_vectorized(training, on_round=on_round, spec=spec, data=data)
    return agent


def tuning_scores(
    training: TrainingConfig, agent: PPOAgent, spec: TaskSpec, data: TaskData, hosts: int
) -> Doubles:
    """Score `[E]` of the greedy controller on the tuning hosts."""
    population = replace(training.population, envs=hosts)
    limits = draw_limits(replace(training.task, blueprints=()).spec(), population, data)
    parsed = ParsedPolicy("ppo", "ppo", "controller")
    entry = controller_entry(parsed, spec, agent, Limits.of(spec, training.population))
    run = HostRunner(population, data, limits).run(entry, TUNING_SEED, hosts)
    return run.result.outcome.score_E
