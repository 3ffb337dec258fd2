"""Policies that can be trained for real in the contexts of an audit.

Policies of the bench decide on an `Observation`; `BenchClient` makes one from the state of an
engine, so that they run unchanged. The closed loop, and any other `PolicyProtocol`, drives the
engine itself.

Shape letters: E members, one for each of N cases, K topologies, S slots, T observations so far.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Protocol

import numpy as np

from esper.leyline.actions import ActionHead, LifecycleOp
from esper.leyline.arrays import Bools, Doubles, Floats, Ints, read_only
from esper.leyline.codec import Json, to_json
from esper.leyline.errors import EsperError
from esper.leyline.masks import ActionMasks
from esper.leyline.protocols import PolicyProtocol
from esper.leyline.records import PolicyDecision
from esper.leyline.signals import NO_BLUEPRINT, TrainingSignals
from esper.tamiyo.planning import plan_actions
from esper.tamiyo.scripted import ScriptedPolicy, build_actions
from esper.tolaria.engine import VectorizedEngine
from esper_lab.audit.bench import NOT_PLANNED, Bench, Observation
from esper_lab.audit.cases import Observed, best_available, recorded, within_caps
from esper_lab.audit.closed_loop import FILL, ClosedLoop, ClosedLoopConfig
from esper_lab.audit.leaderboard import BUILT_IN, LIVE_BENCH
from esper_lab.audit.planners import Planner
from esper_lab.audit.policies import Policy, SeesAll, fit_planner

GENEROUS: Final = 0.25
"""Factor on the price at which `closed_loop_generous` plans."""


@dataclass(frozen=True, slots=True, eq=False)
class LiveCases:
    """Episodes to train: one member each, all in one context."""

    context: int
    host_N: Ints
    draw_N: Ints
    """Number of the draw of price and caps."""
    observed: Observed
    """What is known before training, price and caps included."""

    def take(self, index_N: Ints) -> LiveCases:
        """The given cases, in that order."""
        observed = self.observed.take(index_N)
        return LiveCases(self.context, self.host_N[index_N], self.draw_N[index_N], observed)

    @staticmethod
    def joined(parts: Sequence[LiveCases]) -> LiveCases:
        """Cases of one context, one part after the other."""
        arrays = (
            np.concatenate([getattr(part.observed, f.name) for part in parts])
            for f in fields(Observed)
        )
        return LiveCases(
            parts[0].context,
            np.concatenate([part.host_N for part in parts]),
            np.concatenate([part.draw_N for part in parts]),
            Observed(*arrays),
        )


@dataclass(frozen=True, slots=True)
class LiveLimits:
    """Choices open to a policy, and how often its seeds are measured."""

    stride: int | None = 1
    """Steps between measurements of contributions; None: only at the end."""
    frozen_heads: tuple[tuple[ActionHead, int], ...] = ()
    """Action heads fixed to one choice. The blend style always is: seeds get no gates."""
    blueprints: tuple[str, ...] = ()
    """Blueprints it may grow; empty: all of the audit."""


UNMEASURED: Final = LiveLimits(stride=None)
"""Of policies that do not read contributions."""


class LivePolicy(Protocol):
    """A policy that is ready for episodes of an audit."""

    @property
    def limits(self) -> LiveLimits:
        """What the engine lets it do and see."""
        ...

    def client(self, cases: LiveCases, engine: VectorizedEngine) -> PolicyProtocol[Any]:
        """The policy that drives an engine whose members are these cases."""
        ...


LiveMaker = Callable[[Bench, Ints], LivePolicy]
"""Makes a policy from a benchmark and the training contexts, by their numbers in the audit."""


# ---- policies of the bench ---------------------------------------------------------------------


class BenchLive:
    """A policy of the bench, trained for real."""

    limits = UNMEASURED

    def __init__(self, bench: Bench, policy: Policy) -> None:
        if isinstance(policy, SeesAll):
            raise EsperError(
                f"{type(policy).__name__} looks into the records: it cannot be trained live"
            )
        self.bench, self.policy = bench, policy

    def client(self, cases: LiveCases, engine: VectorizedEngine) -> BenchClient:
        """The adapter to the engine."""
        return BenchClient(self.bench, self.policy, cases, engine)


@dataclass
class _Played:
    """State of `BenchClient`: what was planted, and compute spent at each observation."""

    topology_E: Ints
    compute: list[Doubles] = field(default_factory=list)


class BenchClient(ScriptedPolicy):
    """Lets a policy of the bench decide in an engine.

    The observation is built from the engine's own histories, in the precision of the records, so
    it is that of the simulated engine. A rollback vetoes a STOP of that step, which then comes one
    step later.
    """

    def __init__(
        self, bench: Bench, policy: Policy, cases: LiveCases, engine: VectorizedEngine
    ) -> None:
        super().__init__()
        self.policy, self.cases, self.engine = policy, cases, engine
        self.kinds_KS = topology_kinds(bench)
        self.available_NK = available_topologies(bench, cases)

    def initial_state(self, members: int) -> _Played:
        """Nothing is planted."""
        return _Played(np.full(members, NOT_PLANNED), [np.zeros(members)])

    def reset_state(self, policy_state: _Played, reset_E: Bools) -> _Played:
        """Return the state as it is: the bench knows no rollbacks."""
        return policy_state

    def act(
        self, obs: TrainingSignals, masks: ActionMasks, policy_state: _Played
    ) -> tuple[PolicyDecision, _Played]:
        """Return PLANT in the plan phase, then STOP or WAIT."""
        played = policy_state
        if obs.planning:
            if obs.plan_slot == 0:
                played.topology_E = self._plan(obs, played)
            wanted_ES = self.kinds_KS[played.topology_E]
            return PolicyDecision.deterministic(plan_actions(obs, masks, wanted_ES)), played
        clock = self.engine.context.clock
        assert clock is not None  # audits have a compute clock
        played.compute.append(clock.runs_E.copy())
        stop_E = np.zeros(len(played.topology_E), dtype=np.bool_)
        trained = obs.step + 1
        if trained < obs.episode_length:
            stop_E = self.policy.stop(self._observation(obs, played), trained)
        stop_E = stop_E & masks.op_EO[:, LifecycleOp.STOP]
        op_E = np.where(stop_E, int(LifecycleOp.STOP), int(LifecycleOp.WAIT))
        actions = build_actions(op_E, np.zeros_like(op_E), {})
        return PolicyDecision.deterministic(actions), played

    def _plan(self, obs: TrainingSignals, played: _Played) -> Ints:
        planned_E = np.asarray(self.policy.plan(self._observation(obs, played)), dtype=np.int64)
        if not self.available_NK[np.arange(len(planned_E)), planned_E].all():
            raise EsperError(
                f"{type(self.policy).__name__} plans a topology that is not available: choose "
                f"where available_NK is true"
            )
        return planned_E

    def _observation(self, obs: TrainingSignals, played: _Played) -> Observation:
        """What the policy would see in the simulated engine."""
        episode, rows = self.engine.episode, len(played.compute)

        def seen(history_TE: Doubles) -> Floats:
            return np.ascontiguousarray(history_TE[:rows].T, dtype=np.float32)

        seen_now = Observation(
            context=self.cases.observed,
            available_NK=self.available_NK,
            topology_N=played.topology_E,
            stopped_N=obs.context.stopped_E,
            control_NT=seen(episode.accuracy_TE),
            loss_NT=seen(episode.loss_TE),
            train_loss_NT=seen(episode.train_loss_TE),
            compute_NT=seen(np.stack(played.compute)),
        )
        return read_only(seen_now)


def topology_kinds(bench: Bench) -> Ints:
    """`[K, S]`: blueprint index of every slot of every topology."""
    known = {name: kind for kind, name in enumerate(bench.info.blueprints)}
    kinds = [[known.get(name, NO_BLUEPRINT) for name in names] for names in bench.topologies]
    return np.array(kinds, dtype=np.int64).reshape(len(bench.topologies), len(bench.info.slots))


def available_topologies(bench: Bench, cases: LiveCases) -> Bools:
    """`[N, K]`: topologies with a record that respect the caps."""
    known_K = recorded(bench.audit)[cases.context]
    return np.asarray(within_caps(bench.info, cases.observed) & known_K)


# ---- the closed loop, and others ---------------------------------------------------------------


class ClosedLoopLive:
    """The closed loop, with the plan of a planner or the fullest one."""

    limits = LiveLimits()

    def __init__(
        self,
        bench: Bench,
        planner: Planner | None,
        config: ClosedLoopConfig,
        generosity: float = 1.0,
    ) -> None:
        """`planner`: None: fill. `generosity`: factor on the price at which it plans."""
        self.bench, self.planner, self.config = bench, planner, config
        self.generosity = generosity

    def client(self, cases: LiveCases, engine: VectorizedEngine) -> ClosedLoop:
        """A closed loop that plants the plan of these cases."""
        if self.planner is None:
            return ClosedLoop(FILL, self.config)
        observed = replace(cases.observed, price_N=self.generosity * cases.observed.price_N)
        rank_NK = self.planner.rank(observed)
        chosen_N = best_available(rank_NK, available_topologies(self.bench, cases))
        return ClosedLoop(topology_kinds(self.bench)[chosen_N], self.config)


class ReadyPolicy:
    """Any policy that needs no fitting, such as a trained controller."""

    def __init__(self, policy: PolicyProtocol[Any], limits: LiveLimits | None = None) -> None:
        """`limits`: None: none, contributions at every step."""
        self.policy, self.limits = policy, limits or LiveLimits()

    def client(self, cases: LiveCases, engine: VectorizedEngine) -> PolicyProtocol[Any]:
        """The policy itself."""
        return self.policy


def _of_bench(name: str) -> LiveMaker:
    return lambda bench, contexts: BenchLive(bench, BUILT_IN[name](bench, contexts))


def _closed_loop(
    config: ClosedLoopConfig, planner: str | None = "regression", generosity: float = 1.0
) -> LiveMaker:
    def make(bench: Bench, contexts: Ints) -> LivePolicy:
        fitted = None if planner is None else fit_planner(planner, bench, contexts)
        return ClosedLoopLive(bench, fitted, config, generosity)

    return make


CLOSED_LOOPS: Final[Mapping[str, tuple[ClosedLoopConfig, str | None, float]]] = {
    "closed_loop": (ClosedLoopConfig(), "regression", 1.0),
    "closed_loop_generous": (ClosedLoopConfig(), "regression", GENEROUS),
    "closed_loop_fill": (ClosedLoopConfig(), None, 1.0),
    "closed_loop_prune": (ClosedLoopConfig(stops=False), "regression", 1.0),
    "closed_loop_stop": (ClosedLoopConfig(prunes=False), "regression", 1.0),
}
"""Settings, planner (None: fill) and generosity of closed loops, by name."""
LIVE_POLICIES: Final[Mapping[str, LiveMaker]] = {
    **{name: _closed_loop(*settings) for name, settings in CLOSED_LOOPS.items()},
    **{name: _of_bench(name) for name in LIVE_BENCH},
}
"""Live policies by name."""


def policy_settings(name: str) -> Json:
    """Settings of a built-in policy that its results depend on."""
    if name not in CLOSED_LOOPS:
        return None
    config, planner, generosity = CLOSED_LOOPS[name]
    return {"config": to_json(config), "planner": planner or FILL, "generosity": generosity}
