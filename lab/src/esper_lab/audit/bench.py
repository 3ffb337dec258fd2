"""A benchmark made of records: query any curve, or play episodes of plan and STOP without a GPU.

    bench = Bench(read_audit(folder))
    curve = bench.query(topology=("conv_light", "", ""), context=3, host=0)

    episodes = SimulatedEpisodes(bench, 1000)
    obs = episodes.reset(seed=0)
    obs = episodes.plan(topology_N)          # plant; the first step is trained
    while not episodes.done:
        obs = episodes.step(stop_N)          # STOP freezes score and compute
    episodes.outcome().score_N

As in the engine: the score is that of the last observation before a STOP, or of the end; compute
that is not used is not paid. The learning rate decays as recorded, also for those that stop.

Shape letters: N episodes, K topologies, T observations so far, C contexts, H hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from esper.leyline.arrays import ArrayStruct, Bools, Doubles, Floats, Ints, read_only
from esper.leyline.errors import EsperError, shown
from esper_lab.audit.cases import (
    TERMS,
    Observed,
    TermsSpec,
    draw_cases,
    recorded,
    recorded_contexts,
    rent,
    uniform,
    within_caps,
)
from esper_lab.audit.records import Audit

NOT_PLANNED = -1
Fitted = TypeVar("Fitted")


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Training of one topology; arrays `[T]`, the first value is before the first step."""

    accuracy: Floats
    """On `val_score`: what scores are made of."""
    control: Floats
    """Accuracy on `val_control`: what policies see."""
    loss: Floats
    """On `val_control`."""
    train_loss: Floats
    compute: Floats
    """Spent so far, in training runs of the host."""
    test: float
    """Test accuracy at the end."""
    params: int
    macs: int


@dataclass(frozen=True, slots=True)
class HiddenContext:
    """What policies do not see of a context."""

    pixel_noise: float
    permuted: bool
    label_noise: float


@dataclass(frozen=True, slots=True)
class BenchContext:
    """A recorded context."""

    index: int
    budget: float
    groups: int
    samples: int
    learning_rate: float
    hidden: HiddenContext | None


class Bench:
    """Look-up of recorded curves."""

    def __init__(self, audit: Audit, terms: TermsSpec = TERMS) -> None:
        """`terms`: distribution of prices and caps of its episodes.

        The records become read-only: a policy is made with the bench.
        """
        read_only(audit.records)
        self.audit, self.info, self.terms = audit, audit.info, terms
        self.context_C = recorded_contexts(audit)
        """Contexts with records, by their number in the audit."""
        self.hosts: int = audit.records.test_CHK.shape[1]
        self.recorded_CK: Bools = recorded(audit)
        self.size_rent_K = rent(self.info, np.ones(len(self.info.topologies)))
        """Rent at price 1 of the sizes alone."""
        self._number = {names: k for k, names in enumerate(self.info.topologies)}
        self._fitted: dict[Hashable, Any] = {}

    @property
    def topologies(self) -> tuple[tuple[str, ...], ...]:
        """Blueprint of every slot, "" for an empty one; the first is the host."""
        return self.info.topologies

    def contexts(self, hidden: bool = False) -> tuple[BenchContext, ...]:
        """Recorded contexts; `hidden`: with what policies do not see."""
        c = self.audit.contexts
        found = []
        for i in self.context_C.tolist():
            unseen = HiddenContext(
                float(c.pixel_noise_C[i]), bool(c.permuted_C[i]), float(c.label_noise_C[i])
            )
            seen = float(c.budget_C[i]), int(c.groups_C[i]), int(c.samples_C[i])
            rate = float(c.learning_rate_C[i])
            found.append(BenchContext(i, *seen, rate, unseen if hidden else None))
        return tuple(found)

    def query(self, topology: int | Sequence[str], context: int, host: int) -> Curve:
        """Curve of a topology, by number or by its blueprints; raises without a record."""
        at = self._at(topology, context, host)
        records, k = self.audit.records, at[2]
        return Curve(
            accuracy=records.accuracy_CHKT[at],
            control=records.control_CHKT[at],
            loss=records.loss_CHKT[at],
            train_loss=records.train_loss_CHKT[at],
            compute=records.compute_CHKT[at],
            test=float(records.test_CHK[at]),
            params=self.info.params[k],
            macs=self.info.macs[k],
        )

    def score(
        self,
        topology: int | Sequence[str],
        context: int,
        host: int,
        price: float = 1.0,
        step: int | None = None,
    ) -> float:
        """Score on `val_score` after `step` steps (None: at the end), at a price factor."""
        at = self._at(topology, context, host)
        row = self.info.steps if step is None else step
        if not 0 <= row <= self.info.steps:
            raise EsperError(f"bench: step {row}, valid: 0 to {self.info.steps}")
        where = tuple(np.array([i]) for i in at)
        return float(self.scores(where, np.array([row]), np.array([price]))[0])

    def scores(self, at_N: tuple[Ints, ...], row_N: Ints, price_N: Doubles) -> Doubles:
        """`[N]`: scores at (context, host, topology) after that many steps."""
        accuracy_N = self.audit.records.accuracy_CHKT[(*at_N, row_N)].astype(np.float64)
        compute_N = self.audit.records.compute_CHKT[(*at_N, row_N)].astype(np.float64)
        rent_N = self.size_rent_K[at_N[2]] + self.info.constants.c_f * (compute_N - 1.0)
        return np.asarray(accuracy_N - price_N * rent_N)

    def fit_once(self, key: Hashable, fit: Callable[[], Fitted]) -> Fitted:
        """What `fit` returns, made once per key: policies share models of the same contexts."""
        if key not in self._fitted:
            self._fitted[key] = fit()
        found: Fitted = self._fitted[key]
        return found

    def _at(self, topology: int | Sequence[str], context: int, host: int) -> tuple[int, int, int]:
        """Position in the records."""
        k = topology if isinstance(topology, int) else self._number.get(tuple(topology), -1)
        if not 0 <= k < len(self.topologies):
            raise EsperError(
                f"bench: topology {shown(topology)} was not recorded; see Bench.topologies"
            )
        if not 0 <= context < len(self.recorded_CK) or not self.recorded_CK[context, k]:
            raise EsperError(
                f"bench: no record of topology {k} in context {context}; recorded contexts: "
                f"{self.context_C.tolist()}"
            )
        if not 0 <= host < self.hosts:
            raise EsperError(f"bench: host {host}, valid: 0 to {self.hosts - 1}")
        return context, host, k


# ---- simulated engine -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Observation(ArrayStruct):
    """What a policy sees; before the plan, T is 1 and the curve that of the host."""

    context: Observed
    available_NK: Bools
    """Topologies with a record that respect the caps."""
    topology_N: Ints
    """What was planted; -1 before the plan."""
    stopped_N: Bools
    control_NT: Floats
    """Accuracy on `val_control`; repeated after STOP."""
    loss_NT: Floats
    train_loss_NT: Floats
    compute_NT: Floats
    """Spent so far, in training runs of the host."""


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeOutcomes(ArrayStruct):
    """Final figures of simulated episodes."""

    context_N: Ints
    host_N: Ints
    topology_N: Ints
    steps_N: Ints
    """Steps trained before STOP or the end."""
    score_N: Doubles
    compute_N: Doubles
    params_N: Ints


_HISTORIES = ("control", "loss", "train_loss", "compute")


class SimulatedEpisodes:
    """Episodes of plan and STOP decisions, played in the records; all N at once."""

    def __init__(
        self,
        bench: Bench,
        episodes: int,
        contexts: Sequence[int] | Ints | None = None,
    ) -> None:
        """`contexts`: to play in, each equally often; None: all recorded ones."""
        if episodes < 1:
            raise EsperError(f"simulated episodes: {episodes}, play 1 or more")
        self.bench, self.episodes = bench, episodes
        chosen = bench.context_C if contexts is None else np.asarray(contexts, dtype=np.int64)
        unknown = np.setdiff1d(chosen, bench.context_C)
        if unknown.size or not chosen.size:
            raise EsperError(
                f"simulated episodes in contexts {chosen.tolist()}: no records of "
                f"{unknown.tolist() or 'any'}, recorded: {bench.context_C.tolist()}"
            )
        self._contexts = chosen
        self._row = -1

    def reset(self, seed: int) -> Observation:
        """Draw host, price and caps of every episode; equal seeds give equal episodes."""
        index_N = np.arange(self.episodes)
        context_N = self._contexts[index_N % len(self._contexts)]
        draw_N = index_N // len(self._contexts)
        place_N = uniform(seed, "host", context_N, "draw", draw_N)
        host_N = np.floor(place_N * self.bench.hosts).astype(np.int64)
        return self.reset_to(context_N, host_N, draw_N, seed)

    def reset_to(self, context_N: Ints, host_N: Ints, draw_N: Ints, seed: int) -> Observation:
        """As `reset`, in given contexts on given hosts; `draw_N`: numbers of price and caps."""
        self.context_N: Ints = context_N
        self.host_N: Ints = host_N
        audit = self.bench.audit
        self.observed = draw_cases(audit, context_N, draw_N, self.bench.terms, seed)
        self.available_NK: Bools = self.bench.recorded_CK[self.context_N]
        self.available_NK &= within_caps(audit.info, self.observed)
        self.topology_N: Ints = np.full(self.episodes, NOT_PLANNED)
        self.stopped_N: Bools = np.zeros(self.episodes, dtype=np.bool_)
        self._last_row_N: Ints = np.zeros(self.episodes, dtype=np.int64)
        shape = (self.episodes, audit.info.steps + 1)
        self._history_NT = {name: np.full(shape, np.nan, np.float32) for name in _HISTORIES}
        self._row = 0
        self._observe(np.zeros(self.episodes, dtype=np.int64))
        return self._observation()

    def plan(self, topology_N: Ints) -> Observation:
        """Plant topologies and train the first step; raises for one that is not available."""
        if self._row != 0:
            raise EsperError("simulated episodes: plan once, directly after reset")
        chosen_N = np.asarray(topology_N)
        self._require_available(chosen_N)
        self.topology_N = chosen_N.astype(np.int64)
        self._observe(self.topology_N)
        self._advance()
        return self._observation()

    def step(self, stop_N: Bools) -> Observation:
        """Stop some episodes for good, train the others for one step.

        As in the engine, an episode that has not trained on any batch yet continues.
        """
        if self._row < 1 or self.done:
            where = "the episodes are over, reset" if self._row > 0 else "plan first"
            raise EsperError(f"simulated episodes: {where}")
        stop_N = np.asarray(stop_N)
        if stop_N.shape != (self.episodes,) or stop_N.dtype != np.bool_:
            raise EsperError(
                f"STOP of shape {stop_N.shape} and dtype {stop_N.dtype}: give one bool for each of "
                f"the {self.episodes} episodes"
            )
        trained_N = self._history_NT["compute"][:, self._row] > 0
        self.stopped_N = self.stopped_N | (stop_N & trained_N)
        self._advance()
        return self._observation()

    @property
    def done(self) -> bool:
        """Whether every episode has ended."""
        return bool(self._row == self.bench.info.steps or self.stopped_N.all())

    def outcome(self) -> EpisodeOutcomes:
        """Figures of the episodes; raises before their end."""
        if self._row < 1 or not self.done:
            raise EsperError("simulated episodes: no outcome before all episodes are done")
        at_N = self.context_N, self.host_N, self.topology_N
        compute_N = self.bench.audit.records.compute_CHKT[(*at_N, self._last_row_N)]
        return EpisodeOutcomes(
            *at_N,
            steps_N=self._last_row_N,
            score_N=self.bench.scores(at_N, self._last_row_N, self.observed.price_N),
            compute_N=compute_N.astype(np.float64),
            params_N=np.array(self.bench.info.params)[self.topology_N],
        )

    # ---- helpers -------------------------------------------------------------------------------

    def _require_available(self, chosen_N: Ints) -> None:
        topologies = self.available_NK.shape[1]
        if chosen_N.shape != (self.episodes,) or chosen_N.dtype.kind not in "iu":
            raise EsperError(
                f"plan of shape {chosen_N.shape} and dtype {chosen_N.dtype}: give the number of a "
                f"topology for each of the {self.episodes} episodes"
            )
        inside_N = (chosen_N >= 0) & (chosen_N < topologies)
        legal_N = self.available_NK[np.arange(self.episodes), np.where(inside_N, chosen_N, 0)]
        bad = np.flatnonzero(~(inside_N & legal_N))
        if bad.size:
            raise EsperError(
                f"plan of episode {bad[0]}: topology {chosen_N[bad[0]]} is not available there "
                f"(no record, or above a cap); choose where available_NK is true"
            )

    def _advance(self) -> None:
        """Train one step, those that have stopped excepted."""
        self._row += 1
        self._last_row_N = np.where(self.stopped_N, self._last_row_N, self._row)
        self._observe(self.topology_N)

    def _observe(self, topology_N: Ints) -> None:
        """Write the current observation into the histories, so that none holds the future."""
        records, row_N = self.bench.audit.records, self._last_row_N
        at_N = self.context_N, self.host_N, topology_N, row_N
        for name, history_NT in self._history_NT.items():
            history_NT[:, self._row] = getattr(records, f"{name}_CHKT")[at_N]

    def _observation(self) -> Observation:
        seen = [history_NT[:, : self._row + 1] for history_NT in self._history_NT.values()]
        known = self.available_NK, self.topology_N, self.stopped_N
        return read_only(Observation(self.observed, *known, *seen))
