"""One session of a run whose policy does not learn: finished rounds and best members are kept.

The folder is that of a learner (`folder.py`) with `policy.json` and `rounds/` in place of
checkpoints. `config.json` holds a `TrainingConfig` of which only task, population, rounds and seed
are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from esper.leyline.codec import read_record
from esper.simic.telemetry.listener import RunTally
from esper.simic.training.runs.checkpoint_store import Summary
from esper.simic.training.runs.checkpoints import task_facts
from esper.simic.training.runs.folder import Retention, read_retention
from esper.simic.training.runs.policy_file import RunPolicy, check_policy, write_policy
from esper.simic.training.runs.resume import (
    check_changes,
    check_task_facts,
    require_rounds,
    task_file_change,
    version_notes,
)
from esper.simic.training.runs.round_store import RoundStore
from esper.simic.training.runs.session import RunSession
from esper.tolaria.round_results import RoundResult

if TYPE_CHECKING:
    from esper.simic.training.config import TrainingConfig
    from esper.simic.training.runs.folder import RunFolder
    from esper.tolaria.engine import VectorizedEngine


class PolicySession(RunSession):
    """Runs the rounds that are left, and stores each as soon as it is finished.

    session = PolicySession(folder, config, policy, resume=True)
    notes = session.begin(engine)
    rounds = session.run(engine, lambda: run_round(...))     `session.interrupts` is a listener
    """

    def __init__(
        self,
        folder: RunFolder,
        config: TrainingConfig,
        policy: RunPolicy,
        resume: bool = False,
        keep_members: int | None = None,
    ) -> None:
        """`keep_members`: None: as many as in the last session. Raises if it cannot resume."""
        before = read_retention(folder.path)
        kept = before.members if keep_members is None else keep_members
        super().__init__(folder, config, Retention(before.every, before.keep, kept))
        self._policy, self._resume = policy, resume
        self._changed: tuple[str, ...] = ()
        self._store = RoundStore(folder.path)
        stored, self._problem = self._store.read_all() if resume else ([], "")
        self._stored = stored
        self._summary = stored[-1].summary if stored else None
        self.rounds = [read_record(RoundResult, one.result, str(one.path)) for one in stored]
        """Results of all rounds so far."""
        if resume:
            self._check()

    @property
    def tally(self) -> RunTally:
        """Progress of the run before this session."""
        if self._summary is None:
            return RunTally()
        episodes = len(self.rounds) * self._config.population.envs
        return RunTally(len(self.rounds), episodes, self._summary.best_score)

    def _check(self) -> None:
        folder, config = self._folder, self._config
        check_policy(folder.path, self._policy)
        self._changed = (
            *check_changes(folder.config, config),
            *task_file_change(folder.path, config),
        )
        require_rounds(folder.path, config.rounds, len(self.rounds))

    def begin(self, engine: VectorizedEngine) -> list[str]:
        """Record the session and set the engine to the next round; returns lines to print."""
        folder, done = self._folder, len(self.rounds)
        if not self._resume:
            write_policy(folder.path, self._policy)
        else:
            if self._stored:
                last = self._stored[-1]
                check_task_facts(last.task, engine.spec, str(last.path))
            engine.load_state_dict(engine.state_dict() | {"round": done})
        notes = [*version_notes(folder), *self._changed] if self._resume else []
        if self._problem:
            notes.append(f"{self._problem}; falling back to {done} rounds")
        if self._resume:
            folder.begin(self._config, done, self._changed)
            notes.append(f"resume: {done} of {self._config.rounds} rounds are done")
        self._begin()
        return notes

    def run(
        self,
        engine: VectorizedEngine,
        run_one: Callable[[], RoundResult],
        on_round: Callable[[RoundResult], None],
    ) -> list[RoundResult]:
        """Run all rounds that are left; returns the results of all rounds.

        `on_round`: called with every round that is stored.
        Raises `Interrupted` after a stop signal; finished rounds are stored by then.
        """
        with self._recorded(engine, self._policy.policy):
            while len(self.rounds) < self._config.rounds:
                self._keep(engine, run_one())
                on_round(self.rounds[-1])
                self.interrupts.check()
        return self.rounds

    @property
    def _rounds_done(self) -> int:
        return len(self.rounds)

    def _save(self, engine: VectorizedEngine) -> str:
        return f"{len(self.rounds)} of {self._config.rounds} rounds are saved"

    def _keep(self, engine: VectorizedEngine, done: RoundResult) -> None:
        """Save members first: every stored round then has its members."""
        self.members.add_round(engine, done.outcome)
        score, varied = float(np.mean(done.outcome.score_E)), engine.spec.context.varies_rounds
        self._summary = self._summarise(score, varied)
        self._store.write(self._summary, task_facts(engine.spec), done)
        self.rounds.append(done)

    def _summarise(self, score: float, varied: bool) -> Summary:
        number, before = len(self.rounds) + 1, self._summary
        if varied:
            return Summary(number, self._config.rounds, score, 0, math.nan, varied=True)
        best = (number, score)
        if before is not None and not score > before.best_score:  # a NaN is never better
            best = (before.best_round, before.best_score)
            if math.isnan(before.best_score):
                best = (number, score)
        return Summary(number, self._config.rounds, score, *best)
