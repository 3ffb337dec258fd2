"""The default policy of `esper.grow`: brackets of successive halving over planted topologies.

At the end of every stage the better half of a bracket's candidates continues: first the best of
each size, later those on the frontier of validation score against size, then those behind it.
Copies of survivors join them, with the seed removed that is missed least, or with one more seed.
What a copy finds is planted from the start in a later bracket. The model as given is among the
candidates and always trained in full.

Shape letters: E members of a bracket, N others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final, Literal, Protocol

import numpy as np

from esper.growing.batches import BatchSource
from esper.growing.frontier import best_by_size, hypervolume, pareto, survivors
from esper.growing.plan import affordable, remaining_share, stage_ends, within_cost
from esper.growing.proposals import Proposal, Proposer
from esper.growing.ranks import ALONE, Ranks
from esper.growing.records import Candidate, SearchState
from esper.growing.topologies import EMPTY, Topology, with_seed
from esper.growing.training import BracketTrainer, Validation
from esper.growing.variants import Field, Variant
from esper.kasmina.population import Population
from esper.leyline.arrays import Bools, Doubles, Ints
from esper.leyline.streams import stream_seed

VARIATIONS: Final = 0.25
"""Cost of copies with a seed less or more, as a share of the survivors'."""
GROWN_COST: Final = 2.0
"""Most that a copy with a new seed may cost, relative to its parent: the seed trains in an extra
pass."""
LARGEST_SHARE: Final = 0.5
"""A candidate may cost this share of what is left of the budget when it is trained in full."""
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
    """Compute, in full training runs of the model as given."""
    seconds: float
    """Wall-clock time; infinite: no limit."""
    seed: int
    policy: SearchPolicy = "halving"


class OutOfTimeError(Exception):
    """The minutes of the budget are over."""


class SearchStore(Protocol):
    """Where a search keeps its state and the networks it has trained."""

    def save_state(self, state: SearchState, populations: Mapping[int, Population]) -> None:
        """Save everything a resume needs; `populations`: of the bracket under way, by variant."""
        ...

    def save_network(self, candidate: Candidate, population: Population, member: int) -> None:
        """Save the weights of a candidate."""
        ...


class SearchObserver(Protocol):
    """What is shown of a search."""

    def on_batch(self, search: Search, field: Field) -> None:
        """After some batches."""
        ...

    def on_stage(self, search: Search, field: Field) -> None:
        """After the validation that ends a stage."""
        ...

    def on_saved(self) -> None:
        """After that stage is saved: if this raises, a resume continues from there."""
        ...


class Search:
    """Searches the topologies of the variants of one model."""

    def __init__(
        self,
        settings: SearchSettings,
        variants: Sequence[Variant],
        batches: BatchSource,
        val: Validation,
        constant: float,
        store: SearchStore,
        observer: SearchObserver,
        ranks: Ranks = ALONE,
    ) -> None:
        """`variants`: the model as given first; `constant`: validation score of the best constant
        prediction; `ranks`: the processes that search together.
        """
        self.settings, self.variants = settings, variants
        self.state = SearchState()
        self._batches, self._val = batches, val
        self._metric, self._constant = val.metric, constant
        self._store, self._observer = store, observer
        self._ranks = ranks
        self._began = self._saved_at = ranks.now()
        self._earlier_seconds = 0.0
        self._current: Field | None = None

    def run(
        self, state: SearchState | None = None, populations: Mapping[int, Population] | None = None
    ) -> bool:
        """Search until the budget is spent or nothing improves; returns whether it came to an end.

        `state`, `populations`: resume from there. Interrupted by Ctrl-C or out of time, it saves
        where it is, and judges the members under way as they are.
        """
        if state is not None:
            self.state, self._earlier_seconds = state, state.seconds
        try:
            with self._ranks.interruptible():
                if self.state.members and populations:
                    self._resume_bracket(populations)
                while proposals := self.next_candidates():
                    self._run_bracket(proposals)
        except (KeyboardInterrupt, OutOfTimeError) as reason:
            self._close_early()
            if not frontier_numbers(self.state.candidates):
                raise  # nothing to return yet
            return isinstance(reason, OutOfTimeError)
        self._store.save_state(self._timed(), {})
        return True

    def _close_early(self) -> None:
        """Judge the members under way without further training; the saved state is kept."""
        field = self._current
        if field is None or not self.state.members or not any(self.state.compute_E):
            return
        self._save(field)
        field.settle()
        score_E, loss_E = field.validate(self._val)
        self._record(field, score_E, loss_E, finished=True)
        self._save_networks(field)

    # ---- budget ---------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Time spent, earlier sessions included."""
        return self._earlier_seconds + self._ranks.now() - self._began

    @property
    def runs(self) -> float:
        """Compute spent, in full training runs of the model as given."""
        return self.state.compute / self.settings.length

    def next_candidates(self) -> list[Proposal]:
        """The candidates of the next bracket that the budget pays for; none: the search is over."""
        settings, state = self.settings, self.state
        if state.stalled >= PATIENCE:
            return []
        left = settings.runs - self.runs
        if np.isfinite(settings.seconds) and state.bracket:
            left = min(left, (settings.seconds - self.seconds) * self.runs / self.seconds)
        first = not state.bracket
        compute = left - 1.0 if first else left  # the model itself is always trained in full
        proposals = [
            one
            for one in self._proposals(settings.most_members)
            if self._cost(one) <= LARGEST_SHARE * compute or (first and self._is_given(one))
        ]
        costs = [(1.0 + VARIATIONS) * self._cost(one) for one in proposals]
        kept = affordable(costs, settings.length, compute)
        if first and 0 not in kept:  # the model itself comes first, whatever else would fit
            return self._proposals(1)
        return [proposals[index] for index in kept]

    def _is_given(self, one: Proposal) -> bool:
        """Whether a proposal is the model as given."""
        return one.host == 0 and not any(one.topology)

    def _cost(self, one: Proposal | Candidate) -> float:
        """Cost of training, relative to the model as given."""
        return self.variants[one.host].size(one.topology).cost

    def _proposals(self, count: int) -> list[Proposal]:
        state, settings = self.state, self.settings
        proposer = Proposer(
            self.variants, settings.rates, state.candidates, state.bracket, settings.seed
        )
        return proposer.propose(count, settings.policy == "asha")

    def _timed(self) -> SearchState:
        return replace(self.state, seconds=self.seconds)

    # ---- one bracket ----------------------------------------------------------------------

    def _run_bracket(self, proposals: Sequence[Proposal]) -> None:
        """Run a bracket from the start."""
        state = self.state
        fresh = []
        for offset, one in enumerate(sorted(proposals, key=lambda one: one.host)):
            size = self.variants[one.host].size(one.topology)
            number = len(state.candidates) + offset
            fresh.append(
                Candidate(
                    number,
                    one.host,
                    one.topology,
                    one.rate,
                    one.origin,
                    one.parent,
                    state.bracket,
                    size.params,
                    size.macs,
                    lower_is_better=not self._metric.higher_is_better,
                )
            )
        self.state = replace(
            state,
            candidates=(*state.candidates, *fresh),
            members=tuple(candidate.number for candidate in fresh),
            compute_E=(0.0,) * len(fresh),
            ends=stage_ends(self.settings.length, len(fresh)),
            stage=0,
            batch=0,
        )
        trainers = {}
        for host in sorted({candidate.host for candidate in fresh}):
            mine = [candidate for candidate in fresh if candidate.host == host]
            population = self.variants[host].builder([candidate.number for candidate in mine])
            trainers[host] = self._trainer(host, population, mine)
            trainers[host].plant([candidate.topology for candidate in mine])
        self._run_stages(Field(self.variants, trainers))

    def _resume_bracket(self, populations: Mapping[int, Population]) -> None:
        state = self.state
        here = [state.candidates[number] for number in state.members]
        trainers = {}
        for host, population in populations.items():
            mine = [candidate for candidate in here if candidate.host == host]
            trainers[host] = self._trainer(host, population, mine)
            trainers[host].batch = dict(state.batches)[host]
        field = Field(self.variants, trainers)
        field.set_compute(np.array(state.compute_E))
        self._run_stages(field)

    def _trainer(
        self, host: int, population: Population, candidates: Sequence[Candidate]
    ) -> BracketTrainer:
        return BracketTrainer(
            population,
            self.variants[host].space,
            self._batches,
            self.settings.length,
            [candidate.rate for candidate in candidates],
            self.variants[host].builder.autocast,
        )

    def _run_stages(self, field: Field) -> None:
        self._current = field
        ends = self.state.ends
        for stage in range(self.state.stage, len(ends)):
            field.train(ends[stage], lambda _: self._after_batches(field))
            last = stage == len(ends) - 1
            if last:
                field.settle()
            score_E, loss_E = field.validate(self._val)
            self._record(field, score_E, loss_E, finished=last)
            self._observer.on_stage(self, field)
            if not last:
                self._halve(field, self._metric.merit(score_E))
                self.state = replace(self.state, stage=stage + 1)
                self._save(field)
                self._ranks.on_first(self._observer.on_saved)
        self._finish(field)
        self._ranks.on_first(self._observer.on_saved)

    def _after_batches(self, field: Field) -> None:
        compute_E = field.compute_E
        spent = float(compute_E.sum()) - sum(self.state.compute_E)
        self.state = replace(
            self.state,
            compute=self.state.compute + spent,
            batch=field.batch,
            batches=tuple((host, t.batch) for host, t in field.trainers.items()),
            compute_E=tuple(compute_E.tolist()),
        )
        self._ranks.agree()
        if self._ranks.now() - self._saved_at > SAVE_SECONDS:
            self._save(field)
        self._observer.on_batch(self, field)
        if self.seconds > self.settings.seconds:
            raise OutOfTimeError

    def _save(self, field: Field) -> None:
        populations = {host: t.population for host, t in field.trainers.items()}
        self._store.save_state(self._timed(), populations)
        self._saved_at = self._ranks.now()

    def _record(self, field: Field, score_E: Doubles, loss_E: Doubles, finished: bool) -> None:
        """Write what a stage measured into the candidates."""
        candidates, compute_E = list(self.state.candidates), field.compute_E
        for member, topology in enumerate(field.topologies()):
            number = self.state.members[member]
            before = candidates[number]
            size = self.variants[before.host].size(topology)
            candidates[number] = replace(
                before,
                topology=topology,
                params=size.params,
                macs=size.macs,
                curve=(*before.curve, (field.batch, float(score_E[member]))),
                loss=float(loss_E[member]),
                compute=float(compute_E[member]),
                finished=finished,
            )
        self.state = replace(self.state, candidates=tuple(candidates))

    # ---- halving --------------------------------------------------------------------------

    def _halve(self, field: Field, score_E: Doubles) -> None:
        """Keep the better members that make up half of the cost, and add copies of some.

        `score_E`: higher is better.
        """
        here = [self.state.candidates[number] for number in self.state.members]
        costs = [self._cost(candidate) for candidate in here]
        size_E = np.array([float(candidate.params) for candidate in here])
        control_E = self._controls(here, score_E)
        controls = np.flatnonzero(control_E).tolist()
        ranked = self._ranked(score_E, size_E, control_E)
        most = self._affordable(sum(costs[e] for e in controls))
        share = min(sum(costs) / 2.0, most)
        kept = np.array(controls + within_cost(ranked, costs, share), dtype=np.int64)
        if not kept.size:
            kept = np.array([min(ranked, key=costs.__getitem__)])
        spent = sum(costs[member] for member in kept) - sum(costs[e] for e in controls)
        changes: list[tuple[int, int, str]] = []
        if self.settings.policy == "halving":
            limit = min(VARIATIONS * share, most - spent)
            changes = self._variations(field, score_E, kept, costs, limit)
        parents = np.array([member for member, *_ in changes], dtype=np.int64)
        order = field.select(np.concatenate([kept, parents]))
        members, candidates = [], list(self.state.candidates)
        compute_E = field.compute_E
        for member, place in enumerate(order.tolist()):
            if place < len(kept):
                members.append(here[kept[place]].number)
                continue
            parent, slot, name = changes[place - len(kept)]
            members.append(len(candidates))
            candidates.append(self._copy(field, member, here[parent], slot, name, len(candidates)))
            compute_E[member] = 0.0
        field.set_compute(compute_E)
        self.state = replace(
            self.state,
            candidates=tuple(candidates),
            members=tuple(members),
            compute_E=tuple(field.compute_E.tolist()),
            batches=tuple((host, t.batch) for host, t in field.trainers.items()),
        )

    def _ranked(self, score_E: Doubles, size_E: Doubles, control_E: Bools) -> list[int]:
        """Members without the controls, best first."""
        if self.settings.policy == "halving" and not self.state.stage:
            order_E = best_by_size(score_E, size_E)
        else:
            order_E = survivors(score_E, size_E, len(score_E))
        return [int(member) for member in order_E if not control_E[member]]

    def _copy(
        self, field: Field, member: int, parent: Candidate, slot: int, name: str, number: int
    ) -> Candidate:
        """Change a member that is a copy of another; returns its candidate."""
        trainer, own = field.locate(member)
        if name == EMPTY:
            trainer.prune(own, slot)
        else:
            trainer.germinate(own, slot, name)
        topology = with_seed(parent.topology, slot, name)
        size = self.variants[parent.host].size(topology)
        return replace(
            parent,
            number=number,
            topology=topology,
            origin="pruned" if name == EMPTY else "grown",
            parent=parent.number,
            params=size.params,
            macs=size.macs,
            compute=0.0,
        )

    def _affordable(self, control_cost: float) -> float:
        """Total cost of the survivors that the rest of the budget pays for, besides controls."""
        state, settings = self.state, self.settings
        left = settings.runs - self.runs
        left -= control_cost * (state.ends[-1] - state.ends[state.stage]) / state.ends[-1]
        return left / remaining_share(state.ends, state.stage)

    def _controls(self, here: Sequence[Candidate], score_E: Doubles) -> Bools:
        """`[E]`: the best of the members that are the model as given, if there are any."""
        control_E = np.zeros(len(here), dtype=np.bool_)
        bare = [e for e, one in enumerate(here) if one.origin == "host" and one.host == 0]
        if bare:
            control_E[max(bare, key=lambda e: _known(float(score_E[e])))] = True
        return control_E

    def _variations(
        self, field: Field, score_E: Doubles, kept: Ints, costs: Sequence[float], most: float
    ) -> list[tuple[int, int, str]]:
        """(member, slot, blueprint) of the copies to make; an empty blueprint removes the seed.

        `most`: their total cost, where one more seed counts `GROWN_COST` times.
        """
        pruned: list[tuple[int, int, str]] = []
        member_N, slot_N, score_N = field.without_each_seed(self._val)
        missed_N = score_E[member_N] - self._metric.merit(score_N)
        lost_N = np.where(np.isin(member_N, kept), missed_N, np.inf)
        for index in np.argsort(lost_N, kind="stable"):
            if np.isfinite(lost_N[index]):
                pruned.append((int(member_N[index]), int(slot_N[index]), EMPTY))
        seed = stream_seed(self.settings.seed, "grow", "vary", self.state.bracket, field.batch)
        generator = np.random.default_rng(seed)
        grown: list[tuple[int, int, str]] = []
        topologies, host_E = field.topologies(), field.host_E
        for member in sorted(kept.tolist(), key=lambda e: -_known(float(score_E[e]))):
            options = self._additions(int(host_E[member]), topologies[member])
            if options:
                slot, name = options[int(generator.integers(len(options)))]
                grown.append((member, slot, name))
        wanted = [one for pair in zip_longest(pruned, grown) for one in pair if one is not None]
        needed = [costs[member] * (GROWN_COST if name else 1.0) for member, _, name in wanted]
        chosen = within_cost(range(len(wanted)), needed, most)
        return [wanted[index] for index in chosen[: max(1, len(kept) // 2)]]

    def _additions(self, host: int, topology: Topology) -> list[tuple[int, str]]:
        """(slot, blueprint) of the seeds that may be added."""
        space = self.variants[host].space
        return [
            (slot, name)
            for slot, held in enumerate(topology)
            if held == EMPTY
            for name in space.options(slot)
            if space.allows(with_seed(topology, slot, name))
        ]

    # ---- the end of a bracket -------------------------------------------------------------

    def _finish(self, field: Field) -> None:
        """Save the networks of the frontier and close the bracket."""
        self._save_networks(field)
        state = self.state
        before = self._volume([c for c in state.candidates if c.bracket < state.bracket])
        improved = self._volume(state.candidates) > before * (1.0 + PROGRESS)
        self.state = replace(
            state,
            bracket=state.bracket + 1,
            stalled=0 if improved else state.stalled + 1,
            ends=(),
            stage=0,
            batch=0,
            batches=(),
            members=(),
            compute_E=(),
        )
        self._current = None
        self._store.save_state(self._timed(), {})

    def _save_networks(self, field: Field) -> None:
        """Save those members that are on the frontier, and the control."""
        candidates = list(self.state.candidates)
        for number in sorted(frontier_numbers(candidates) | control_numbers(candidates)):
            if number in self.state.members and not candidates[number].saved:
                trainer, member = field.locate(self.state.members.index(number))
                self._store.save_network(candidates[number], trainer.population, member)
                candidates[number] = replace(candidates[number], saved=True)
        self.state = replace(self.state, candidates=tuple(candidates))

    def _volume(self, candidates: Sequence[Candidate]) -> float:
        """Hypervolume of the candidates that are trained in full."""
        some = [c for c in candidates if c.finished]
        if not some:
            return 0.0
        spaces = [variant.space for variant in self.variants]
        smallest = min(space.costs.host_params for space in spaces)
        largest = max(space.size(space.largest()).params for space in spaces)
        score_N = np.array([c.merit for c in some])
        size_N = np.array([float(c.params) for c in some])
        worst = float(np.nan_to_num(self._metric.merit(self._constant)))
        return hypervolume(score_N, size_N, max(largest, smallest + 1), smallest, min(worst, 0.99))


def _known(score: float) -> float:
    """A score that can be compared: NaN is the worst."""
    return float(np.nan_to_num(score, nan=-np.inf))


def frontier_numbers(candidates: Sequence[Candidate]) -> set[int]:
    """Numbers of the finished candidates that none dominates on validation."""
    finished = [c for c in candidates if c.finished]
    score_N = np.array([c.merit for c in finished])
    size_N = np.array([float(c.params) for c in finished])
    return {finished[index].number for index in pareto(score_N, size_N)} if finished else set()


def control_numbers(candidates: Sequence[Candidate]) -> set[int]:
    """Number of the best run of the model as given, trained in full."""
    bare = [c for c in candidates if c.finished and c.host == 0 and not any(c.topology)]
    best = max(bare, key=lambda c: _known(c.merit), default=None)
    return set() if best is None else {best.number}
