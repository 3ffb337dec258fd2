"""The default policy of `esper.grow`: brackets of successive halving over planted topologies.

At the end of every stage the better half of a bracket's candidates continues: those on the frontier
of validation score against size, then those behind it. Copies of survivors join them, with the seed
removed that is missed least, or with one more seed. What a copy finds is planted from the start in
a later bracket. The model as given is among the candidates and always trained in full.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Literal, Protocol

import numpy as np

from esper.growing.batches import BatchSource
from esper.growing.frontier import hypervolume, pareto, survivors
from esper.growing.plan import Bracket, make_bracket
from esper.growing.proposals import Proposal, propose
from esper.growing.records import Candidate, SearchState
from esper.growing.topologies import EMPTY, Topology, TopologySpace
from esper.growing.training import BracketTrainer, Validation
from esper.kasmina.population import Population
from esper.leyline.arrays import Bools, Doubles, Ints
from esper.leyline.streams import stream_seed
from esper.tasks.objectives import Objective

VARIATIONS: Final = 0.25
"""Copies with a seed less or more, as a share of the survivors."""
PATIENCE: Final = 2
"""Brackets without progress after which a search ends."""
PROGRESS: Final = 1e-3
"""Least relative growth of the frontier's hypervolume that counts as progress."""
SAVE_SECONDS: Final = 60.0
"""A bracket under way is saved this often."""


SearchPolicy = Literal["halving", "asha"]
"""`halving`: candidates come from the frontier, and copies with a seed less or more join them.
`asha`: successive halving over random topologies alone."""


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Settings of a search, all decided."""

    length: int
    """Batches of a full training run."""
    rates: tuple[float, ...]
    """Learning rates that candidates may have."""
    most_members: int
    """Members that fit into a population."""
    runs: float
    """Compute, in full training runs of the bare host."""
    seconds: float
    """Wall-clock time; infinite: no limit."""
    seed: int
    policy: SearchPolicy = "halving"


class OutOfTimeError(Exception):
    """The minutes of the budget are over."""


class SearchStore(Protocol):
    """Where a search keeps its state and the networks it has trained."""

    def save_state(self, state: SearchState, population: Population | None) -> None:
        """Save everything a resume needs."""
        ...

    def save_network(self, candidate: Candidate, population: Population, member: int) -> None:
        """Save the weights of a candidate."""
        ...


class SearchObserver(Protocol):
    """What is shown of a search."""

    def on_batch(self, search: Search, trainer: BracketTrainer) -> None:
        """After some batches."""
        ...

    def on_stage(self, search: Search, stage: int, trainer: BracketTrainer) -> None:
        """After the validation that ends a stage."""
        ...


class Search:
    """Searches the topologies of one host."""

    def __init__(
        self,
        settings: SearchSettings,
        space: TopologySpace,
        build: Callable[[Sequence[int]], Population],
        batches: BatchSource,
        val: Validation,
        objective: Objective,
        store: SearchStore,
        observer: SearchObserver,
        autocast: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """`build`: makes a population whose members have these numbers in their streams."""
        self.settings, self.space = settings, space
        self.state = SearchState()
        self._build, self._batches, self._val = build, batches, val
        self._objective, self._store, self._observer = objective, store, observer
        self._autocast = autocast
        self._began = time.monotonic()
        self._earlier_seconds = 0.0
        self._saved_at = self._began
        self._current: BracketTrainer | None = None

    def run(self, state: SearchState | None = None, population: Population | None = None) -> bool:
        """Search until the budget is spent or nothing improves; returns whether it came to an end.

        `state`, `population`: resume from there. Interrupted by Ctrl-C or out of time, it saves
        where it is, and judges the members under way as they are.
        """
        if state is not None:
            self.state, self._earlier_seconds = state, state.seconds
        try:
            if self.state.members and population is not None:
                self._resume_bracket(population)
            while (bracket := self.next_bracket()) is not None:
                if not self._run_bracket(bracket):
                    break
        except (KeyboardInterrupt, OutOfTimeError) as reason:
            self._close_early()
            return isinstance(reason, OutOfTimeError)
        self._store.save_state(self._timed(), None)
        return True

    def _close_early(self) -> None:
        """Judge the members under way without further training; the saved state is kept."""
        trainer = self._current
        if trainer is None or not self.state.members or not trainer.batch:
            return
        self._save(trainer)
        trainer.settle()
        score_E, loss_E = trainer.validate(self._val)
        self._record(trainer, score_E, loss_E, finished=True)
        self._save_networks(trainer)

    # ---- budget ---------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Time spent, earlier sessions included."""
        return self._earlier_seconds + time.monotonic() - self._began

    @property
    def runs(self) -> float:
        """Compute spent, in full training runs of the bare host."""
        return self.state.compute / self.settings.length

    def next_bracket(self) -> Bracket | None:
        """The next bracket that the budget pays for; None if the search is over."""
        settings, state = self.settings, self.state
        if state.stalled >= PATIENCE:
            return None
        left = settings.runs - self.runs
        if np.isfinite(settings.seconds) and state.bracket:
            left = min(left, (settings.seconds - self.seconds) * self.runs / self.seconds)
        if left <= 0:
            return None
        cost = (1.0 + VARIATIONS / 2) * self._expected_cost()
        bracket = make_bracket(settings.length, settings.most_members, left / cost)
        if bracket is None and not state.bracket:  # train the host at least
            return Bracket((1,), (settings.length,))
        return bracket

    def _expected_cost(self) -> float:
        """Mean training cost of the next candidates, relative to the bare host's."""
        next_ones = self._proposals(self.settings.most_members)
        costs = [self.space.size(proposal.topology).cost for proposal in next_ones]
        return float(np.mean(costs)) if costs else 1.0

    def _proposals(self, count: int) -> list[Proposal]:
        state, settings = self.state, self.settings
        return propose(
            self.space,
            settings.rates,
            state.candidates,
            state.bracket,
            count,
            settings.seed,
            settings.policy == "asha",
        )

    def _timed(self) -> SearchState:
        return replace(self.state, seconds=self.seconds)

    # ---- one bracket ----------------------------------------------------------------------

    def _run_bracket(self, bracket: Bracket) -> bool:
        """Run a bracket from the start; returns whether there was anything left to try."""
        state = self.state
        proposals = self._proposals(bracket.members[0])
        if not proposals:
            return False
        fresh = []
        for offset, proposal in enumerate(proposals):
            size = self.space.size(proposal.topology)
            fresh.append(
                Candidate(
                    len(state.candidates) + offset,
                    proposal.topology,
                    proposal.rate,
                    proposal.origin,
                    proposal.parent,
                    state.bracket,
                    size.params,
                    size.macs,
                )
            )
        self.state = replace(
            state,
            candidates=(*state.candidates, *fresh),
            members=tuple(candidate.number for candidate in fresh),
            compute_E=(0.0,) * len(fresh),
            ends=bracket.ends,
            sizes=bracket.members,
            stage=0,
            batch=0,
        )
        trainer = self._trainer(self._build(self.state.members), fresh)
        trainer.plant([candidate.topology for candidate in fresh])
        self._run_stages(trainer)
        return True

    def _resume_bracket(self, population: Population) -> None:
        state = self.state
        trainer = self._trainer(population, [state.candidates[n] for n in state.members])
        trainer.batch, trainer.compute_E = state.batch, np.array(state.compute_E)
        self._run_stages(trainer)

    def _trainer(self, population: Population, candidates: Sequence[Candidate]) -> BracketTrainer:
        return BracketTrainer(
            population,
            self.space,
            self._batches,
            self._objective,
            self.settings.length,
            [candidate.rate for candidate in candidates],
            self._autocast,
        )

    def _run_stages(self, trainer: BracketTrainer) -> None:
        self._current = trainer
        ends, sizes = self.state.ends, self.state.sizes
        for stage in range(self.state.stage, len(ends)):
            trainer.train(ends[stage], lambda _: self._after_batches(trainer))
            last = stage == len(ends) - 1
            if last:
                trainer.settle()
            score_E, loss_E = trainer.validate(self._val)
            self._record(trainer, score_E, loss_E, finished=last)
            self._observer.on_stage(self, stage, trainer)
            if not last:
                self._halve(trainer, score_E, sizes[stage + 1])
                self.state = replace(self.state, stage=stage + 1)
                self._save(trainer)
        self._finish(trainer)

    def _after_batches(self, trainer: BracketTrainer) -> None:
        spent = float(trainer.compute_E.sum()) - sum(self.state.compute_E)
        self.state = replace(
            self.state,
            compute=self.state.compute + spent,
            batch=trainer.batch,
            compute_E=tuple(trainer.compute_E.tolist()),
        )
        if time.monotonic() - self._saved_at > SAVE_SECONDS:
            self._save(trainer)
        self._observer.on_batch(self, trainer)
        if self.seconds > self.settings.seconds:
            raise OutOfTimeError

    def _save(self, trainer: BracketTrainer) -> None:
        self._store.save_state(self._timed(), trainer.population)
        self._saved_at = time.monotonic()

    def _record(
        self, trainer: BracketTrainer, score_E: Doubles, loss_E: Doubles, finished: bool
    ) -> None:
        """Write what a stage measured into the candidates."""
        candidates = list(self.state.candidates)
        for member, topology in enumerate(trainer.topologies()):
            number = self.state.members[member]
            size = self.space.size(topology)
            candidates[number] = replace(
                candidates[number],
                topology=topology,
                params=size.params,
                macs=size.macs,
                curve=(*candidates[number].curve, (trainer.batch, float(score_E[member]))),
                loss=float(loss_E[member]),
                compute=float(trainer.compute_E[member]),
                finished=finished,
            )
        self.state = replace(self.state, candidates=tuple(candidates))

    # ---- halving --------------------------------------------------------------------------

    def _halve(self, trainer: BracketTrainer, score_E: Doubles, keep: int) -> None:
        """Keep the better half, and add copies of it with a seed less or more."""
        numbers = np.array(self.state.members)
        here = [self.state.candidates[number] for number in numbers]
        size_E = np.array([float(candidate.params) for candidate in here])
        ranked = survivors(score_E, size_E, keep, self._controls(here, score_E))
        kept = ranked[: self._affordable(here, ranked)]
        copies = []
        if len(kept) == len(ranked) and self.settings.policy == "halving":
            copies = self._variations(trainer, score_E, kept, round(VARIATIONS * keep))
        parents = np.array([member for member, *_ in copies], dtype=np.int64)
        trainer.select(np.concatenate([kept, parents]))
        candidates, members = list(self.state.candidates), numbers[kept].tolist()
        for offset, (parent, slot, name) in enumerate(copies):
            member, number = len(kept) + offset, len(candidates)
            if name == EMPTY:
                trainer.prune(member, slot)
            else:
                trainer.germinate(member, slot, name)
            topology = _changed(here[parent].topology, slot, name)
            size = self.space.size(topology)
            origin = here[parent]
            candidates.append(
                replace(
                    origin,
                    number=number,
                    topology=topology,
                    origin="pruned" if name == EMPTY else "grown",
                    parent=origin.number,
                    params=size.params,
                    macs=size.macs,
                    compute=0.0,
                )
            )
            members.append(number)
            trainer.compute_E[member] = 0.0
        self.state = replace(
            self.state,
            candidates=tuple(candidates),
            members=tuple(members),
            compute_E=tuple(trainer.compute_E.tolist()),
        )

    def _affordable(self, here: Sequence[Candidate], ranked: Ints) -> int:
        """How many of the survivors the rest of the budget pays for; at least 1."""
        state, settings = self.state, self.settings
        ends, sizes = state.ends[state.stage :], state.sizes[state.stage :]
        steps = [later - end for end, later in pairwise(ends)]
        # A later stage trains fewer of them.
        batches = sum(step * size / sizes[1] for step, size in zip(steps, sizes[1:], strict=True))
        costs = [self.space.size(here[member].topology).cost for member in ranked]
        left = settings.runs * settings.length - state.compute
        return max(1, int((np.cumsum(costs) * batches <= left).sum()))

    def _controls(self, here: Sequence[Candidate], score_E: Doubles) -> Bools:
        """`[E]`: the best of the bare hosts, if any is among them."""
        control_E = np.zeros(len(here), dtype=np.bool_)
        bare = [e for e, candidate in enumerate(here) if candidate.origin == "host"]
        if bare:
            control_E[max(bare, key=lambda e: np.nan_to_num(score_E[e], nan=-np.inf))] = True
        return control_E

    def _variations(
        self, trainer: BracketTrainer, score_E: Doubles, kept: Ints, count: int
    ) -> list[tuple[int, int, str]]:
        """(member, slot, blueprint) of the copies to make; an empty blueprint removes the seed."""
        if not count:
            return []
        found: list[tuple[int, int, str]] = []
        member_N, slot_N, score_N = trainer.without_each_seed(self._val)
        cost_N = np.where(np.isin(member_N, kept), score_E[member_N] - score_N, np.inf)
        for index in np.argsort(cost_N, kind="stable"):
            if np.isfinite(cost_N[index]) and len(found) < max(1, count // 2):
                found.append((int(member_N[index]), int(slot_N[index]), EMPTY))
        seed = stream_seed(self.settings.seed, "grow", "vary", self.state.bracket, trainer.batch)
        generator = np.random.default_rng(seed)
        topologies = trainer.topologies()
        by_score = sorted(kept.tolist(), key=lambda e: -np.nan_to_num(score_E[e], nan=-np.inf))
        for member in by_score:
            if len(found) >= count:
                break
            options = self._additions(topologies[member])
            if options:
                slot, name = options[int(generator.integers(len(options)))]
                found.append((member, slot, name))
        return found

    def _additions(self, topology: Topology) -> list[tuple[int, str]]:
        """(slot, blueprint) of the seeds that may be added."""
        return [
            (slot, name)
            for slot, held in enumerate(topology)
            if held == EMPTY
            for name in self.space.options(slot)
            if self.space.allows(_changed(topology, slot, name))
        ]

    # ---- the end of a bracket -------------------------------------------------------------

    def _finish(self, trainer: BracketTrainer) -> None:
        """Save the networks of the frontier and close the bracket."""
        self._save_networks(trainer)
        state = self.state
        before = self._volume([c for c in state.candidates if c.bracket < state.bracket])
        improved = self._volume(state.candidates) > before * (1.0 + PROGRESS)
        self.state = replace(
            state,
            bracket=state.bracket + 1,
            stalled=0 if improved else state.stalled + 1,
            ends=(),
            sizes=(),
            stage=0,
            batch=0,
            members=(),
            compute_E=(),
        )
        self._current = None
        self._store.save_state(self._timed(), None)

    def _save_networks(self, trainer: BracketTrainer) -> None:
        """Save those members that are on the frontier, and the control."""
        candidates = list(self.state.candidates)
        for number in sorted(frontier_numbers(candidates) | control_numbers(candidates)):
            if number in self.state.members and not candidates[number].saved:
                member = self.state.members.index(number)
                self._store.save_network(candidates[number], trainer.population, member)
                candidates[number] = replace(candidates[number], saved=True)
        self.state = replace(self.state, candidates=tuple(candidates))

    def _volume(self, candidates: Sequence[Candidate]) -> float:
        """Hypervolume of the candidates that are trained in full."""
        some = [c for c in candidates if c.finished]
        if not some:
            return 0.0
        host = self.space.costs.host_params
        largest = max(self.space.size(self.space.largest()).params, host + 1)
        score_N = np.array([c.score for c in some])
        size_N = np.array([float(c.params) for c in some])
        worst = float(np.nan_to_num(self._objective.constant_score))
        return hypervolume(score_N, size_N, largest, host, min(worst, 0.99))


def _changed(topology: Topology, slot: int, name: str) -> Topology:
    return (*topology[:slot], name, *topology[slot + 1 :])


def frontier_numbers(candidates: Sequence[Candidate]) -> set[int]:
    """Numbers of the finished candidates that none dominates on validation."""
    finished = [c for c in candidates if c.finished]
    score_N = np.array([c.score for c in finished])
    size_N = np.array([float(c.params) for c in finished])
    return {finished[index].number for index in pareto(score_N, size_N)} if finished else set()


def control_numbers(candidates: Sequence[Candidate]) -> set[int]:
    """Number of the best bare host that was trained in full."""
    bare = [c for c in candidates if c.finished and not any(c.topology)]
    best = max(bare, key=lambda c: np.nan_to_num(c.score, nan=-np.inf), default=None)
    return set() if best is None else {best.number}
