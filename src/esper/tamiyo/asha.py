"""Successive halving over planted topologies or initialisations, inside one population.

Every host has several members with the same initial weights, batches and context. Each plants
another topology in the plan phase. At the rungs the worse half of a host's running members stops;
one survives. Topologies are ranked by validation accuracy minus rent, both as a controller sees
them: on `val_control`, at the member's price.

The topologies of a host, in this order: the host; one blueprint in every slot, for each
blueprint, in an order drawn for the host; random ones. All are distinct and within the caps. So the
topologies of a smaller search are among those of a larger one.

`BestOfPolicy` does the same with members that differ in their initial weights and batches alone: it
halves them, or keeps the best after one step.

Shape letters: E members, S slots, K blueprints, N topologies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from esper.leyline.actions import LifecycleOp
from esper.leyline.arrays import ArrayStruct, Bools, Doubles, Ints
from esper.leyline.errors import EsperError
from esper.leyline.masks import ActionMasks
from esper.leyline.protocols import RewardProtocol
from esper.leyline.records import PolicyDecision
from esper.leyline.signals import NO_BLUEPRINT, TrainingSignals
from esper.leyline.streams import stream_seed
from esper.tamiyo.planning import plan_actions
from esper.tamiyo.scripted import ScriptedPolicy, build_actions

ETA: Final = 2
"""One of this many members continues after a rung."""
TRIES: Final = 50
"""Repeated random topologies in a row after which there seem to be no others."""


def rung_steps(topologies: int, episode_length: int) -> tuple[int, ...]:
    """Trained steps after which the worse half stops: 1/2, 1/4, ... of the episode, rounded up.

    >>> rung_steps(8, 50)
    (7, 13, 25)
    """
    rungs = (topologies - 1).bit_length()
    if rungs >= episode_length:
        raise EsperError(
            f"a search among {topologies}: {rungs} halvings need an episode of at least "
            f"{rungs + 1} steps, it has {episode_length}; search among fewer"
        )
    steps: list[int] = []
    for rung in range(rungs):
        share = ETA ** (rungs - rung)
        steps.append(max(steps[-1] + 1 if steps else 1, -(-episode_length // share)))
    return tuple(min(step, episode_length - rungs + rung) for rung, step in enumerate(steps))


@dataclass(frozen=True, slots=True, eq=False)
class AshaState(ArrayStruct):
    """Policy state; S is 0 until the first `act`."""

    topology_ES: Ints
    """Blueprint to plant in each slot."""
    searched_E: Bools
    """Members with a topology of their own; a host with fewer legal ones leaves the rest unused."""
    running_E: Bools
    """Members that have not lost yet."""


class AshaPolicy(ScriptedPolicy):
    """Plants another topology in each member of a host, and stops the worse half at every rung."""

    def __init__(
        self,
        host_E: Sequence[int] | Ints,
        seed: int,
        rungs: Sequence[int],
        *,
        eta: int = ETA,
        equal_compute: bool = False,
        reward: RewardProtocol | None = None,
    ) -> None:
        """`host_E`: number of each member's host, members of a host next to each other.

        `rungs`: trained steps after which one of `eta` members continues. `equal_compute`: every
        member has the same compute budget; otherwise a larger network pays for more training FLOPs.
        """
        super().__init__(reward)
        self.host_E = np.asarray(host_E, dtype=np.int64)
        self.seed, self.equal_compute = seed, equal_compute
        self.rungs, self.eta = tuple(rungs), eta

    def initial_state(self, members: int) -> AshaState:
        """Return the state before the plan phase."""
        nobody_E = np.zeros(members, dtype=np.bool_)
        return AshaState(np.zeros((members, 0), dtype=np.int64), nobody_E, nobody_E.copy())

    def reset_state(self, policy_state: AshaState, reset_E: Bools) -> AshaState:
        """Return the state as it is: a rollback does not bring a member back."""
        return policy_state

    def act(
        self, obs: TrainingSignals, masks: ActionMasks, policy_state: AshaState
    ) -> tuple[PolicyDecision, AshaState]:
        """Return PLANT in the plan phase, STOP for members that have lost, else WAIT."""
        state = policy_state
        if obs.planning:
            if obs.plan_slot == 0:
                state = self._drawn(obs)
            actions = plan_actions(obs, masks, state.topology_ES)
            return PolicyDecision.deterministic(actions), state
        if not state.searched_E.any():
            raise EsperError("asha needs a plan phase: run it with contexts that have one")
        if obs.step + 1 in self.rungs:
            state = replace(state, running_E=self._winners(obs, state.running_E))
        stop_E = ~state.running_E & masks.op_EO[:, LifecycleOp.STOP]
        op_E = np.where(stop_E, int(LifecycleOp.STOP), int(LifecycleOp.WAIT))
        actions = build_actions(op_E, np.zeros_like(op_E), {})
        return PolicyDecision.deterministic(actions), state

    def _drawn(self, obs: TrainingSignals) -> AshaState:
        """Draw the topologies of every host within its caps."""
        shape = obs.slots.stage_ES.shape
        topology_ES = np.full(shape, NO_BLUEPRINT, dtype=np.int64)
        searched_E = np.zeros(shape[0], dtype=np.bool_)
        for host in np.unique(self.host_E):
            at = np.flatnonzero(self.host_E == host)
            drawn = _draw_topologies(obs, int(at[0]), len(at), self.seed, int(host))
            at = at[: len(drawn)]
            topology_ES[at], searched_E[at] = drawn, True
        return AshaState(topology_ES, searched_E, searched_E.copy())

    def _winners(self, obs: TrainingSignals, running_E: Bools) -> Bools:
        """`[E]`: the better half of each host's running members; ties go to the first."""
        value_E = np.where(running_E, _ranking_value(obs, self.equal_compute), -np.inf)
        value_E = np.where(np.isnan(value_E), -np.inf, value_E)
        order_E = np.lexsort((-value_E, ~running_E, self.host_E))
        first_of_host_E = np.searchsorted(self.host_E[order_E], self.host_E[order_E])
        rank_E = np.empty_like(order_E)
        rank_E[order_E] = np.arange(len(order_E)) - first_of_host_E
        running_of_host = np.bincount(self.host_E, running_E)
        kept_E = np.ceil(running_of_host[self.host_E] / self.eta)
        return np.asarray(running_E & (rank_E < kept_E))


class BestOfPolicy(AshaPolicy):
    """Plants nothing: the members of a host differ in initial weights and batches."""

    def _drawn(self, obs: TrainingSignals) -> AshaState:
        """Nothing is planted; every member is searched."""
        shape = obs.slots.stage_ES.shape
        all_E = np.ones(shape[0], dtype=np.bool_)
        return AshaState(np.full(shape, NO_BLUEPRINT, dtype=np.int64), all_E, all_E.copy())


def _ranking_value(obs: TrainingSignals, equal_compute: bool) -> Doubles:
    """`[E]`: validation accuracy minus the rent at the member's price, at the end of training."""
    context = obs.context
    extra_E = np.zeros_like(context.cost_E) if equal_compute else context.cost_E - 1.0
    rent_E = context.constants.rent(obs.params_over_host_E, obs.macs_over_host_E, extra_E)
    return np.asarray(obs.val_accuracy_E - context.price_E * rent_E, dtype=np.float64)


# ---- topologies --------------------------------------------------------------------------------


def _draw_topologies(obs: TrainingSignals, member: int, count: int, seed: int, host: int) -> Ints:
    """Up to `count` distinct topologies `[N, S]` of a host, within the caps of `member`."""
    context, candidates = obs.context, obs.candidates
    sizes_SKC = np.stack([candidates.params_SK, candidates.macs_SK], axis=-1)
    left_C = np.array(
        [
            context.params_cap_E[member] - context.reserved_params_E[member],
            context.macs_cap_E[member] - context.reserved_macs_E[member],
        ]
    )
    path = ("asha", "round", obs.round_index, "host", host)
    generator = np.random.default_rng(stream_seed(seed, *path))
    found: dict[tuple[int, ...], None] = {}
    for topology in _proposals(candidates.fits_ESK[member], sizes_SKC, left_C, generator):
        found.setdefault(topology)
        if len(found) == count:
            break
    return np.array(list(found), dtype=np.int64)


def _proposals(
    fits_SK: Bools, sizes_SKC: Ints, left_C: Doubles, generator: np.random.Generator
) -> Iterator[tuple[int, ...]]:
    """Yield the host, the full topologies, then random ones; repetitions are possible."""
    slots, kinds = fits_SK.shape
    yield (NO_BLUEPRINT,) * slots
    for kind in generator.permutation(kinds):
        wanted_S = np.where(fits_SK[:, kind], kind, NO_BLUEPRINT)
        yield _within_caps(wanted_S, np.arange(slots), sizes_SKC, left_C)
    tries = TRIES
    seen: set[tuple[int, ...]] = set()
    while tries:
        options = [np.flatnonzero(fits_K) for fits_K in fits_SK]
        wanted_S = np.array(
            [generator.choice(np.append(option_K, NO_BLUEPRINT)) for option_K in options]
        )
        topology = _within_caps(wanted_S, generator.permutation(slots), sizes_SKC, left_C)
        tries = tries - 1 if topology in seen else TRIES
        seen.add(topology)
        yield topology


def _within_caps(
    wanted_S: Ints, order_S: Ints, sizes_SKC: Ints, left_C: Doubles
) -> tuple[int, ...]:
    """Leave out seeds that exceed the caps, going through the slots in this order."""
    kept_S, left_C = wanted_S.copy(), left_C.copy()
    for slot in order_S:
        kind = wanted_S[slot]
        if kind == NO_BLUEPRINT:
            continue
        if (sizes_SKC[slot, kind] <= left_C).all():
            left_C -= sizes_SKC[slot, kind]
        else:
            kept_S[slot] = NO_BLUEPRINT
    return tuple(kept_S.tolist())
