"""Baseline policies: wait, random, restarts by a threshold, and static topologies.

The fixed schedule is in `schedule.py`, the heuristic in `heuristic.py`. All implement
`PolicyProtocol`.

Shape letters: E members, S slots, O operations, A action heads, C choices of one head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from esper.leyline.actions import ActionHead, ActionSpec, LifecycleOp
from esper.leyline.arrays import Bools, Doubles, Ints
from esper.leyline.errors import EsperError
from esper.leyline.masks import ActionMasks
from esper.leyline.protocols import RewardProtocol
from esper.leyline.records import PolicyDecision
from esper.leyline.signals import NO_BLUEPRINT, TrainingSignals
from esper.leyline.streams import stream_keys
from esper.tamiyo.actions import HEAD_USED_OA, parse_sampled_action
from esper.tamiyo.scripted import ScriptedPolicy, build_actions, cannot_grow, fixed_mask, index_of


class StatelessPolicy(ScriptedPolicy):
    """A scripted policy without state."""

    def initial_state(self, members: int) -> None:
        """No-op."""

    def reset_state(self, policy_state: None, reset_E: Bools) -> None:
        """No-op."""


class WaitPolicy(StatelessPolicy):
    """Always chooses WAIT: trains the host as it is."""

    def act(
        self, obs: TrainingSignals, masks: ActionMasks, policy_state: None
    ) -> tuple[PolicyDecision, None]:
        """Return WAIT for every member."""
        return PolicyDecision.deterministic(ActionSpec.wait(len(masks.op_EO))), None


class RestartPolicy(StatelessPolicy):
    """Trains the host, and begins anew where it does badly: a quantile rule.

    A member whose validation accuracy is below `below` after `step` trained steps, counted from
    where it began, restarts, at most `times` times and where RESTART is legal.
    """

    def __init__(
        self, step: int, below: float, times: int = 1, reward: RewardProtocol | None = None
    ) -> None:
        super().__init__(reward)
        self.step, self.below, self.times = step, below, times

    def act(
        self, obs: TrainingSignals, masks: ActionMasks, policy_state: None
    ) -> tuple[PolicyDecision, None]:
        """Return RESTART for members below the threshold, else WAIT."""
        context = obs.context
        due_E = (obs.step + 1 - context.began_E == self.step) & (context.restarts_E < self.times)
        bad_E = ~(obs.val_accuracy_E >= self.below)  # NaN is bad
        anew_E = due_E & bad_E & masks.op_EO[:, LifecycleOp.RESTART] & (not obs.planning)
        op_E = np.where(anew_E, int(LifecycleOp.RESTART), int(LifecycleOp.WAIT))
        return PolicyDecision.deterministic(build_actions(op_E, np.zeros_like(op_E), {})), None


class StaticTopology(WaitPolicy):
    """Plants permanent seeds at the start of an episode, then always waits.

    `topology`: one blueprint name for all slots, a dict from slot id to blueprint name, or an array
    of blueprint indices, `[S]` or `[E, S]` (`NO_BLUEPRINT`: an empty slot).

    >>> policy = StaticTopology({"r0c1": "norm"})
    >>> policy.planted(2, ["r0c0", "r0c1"], ["conv", "norm"]).tolist()
    [[-1, 1], [-1, 1]]
    """

    def __init__(
        self, topology: str | Mapping[str, str] | Ints, reward: RewardProtocol | None = None
    ) -> None:
        super().__init__(reward)
        self.topology = topology

    def planted(self, members: int, slots: Sequence[str], blueprints: Sequence[str]) -> Ints:
        """Return the blueprint index of each member and slot, `[E, S]`."""
        shape = (members, len(slots))
        if isinstance(self.topology, np.ndarray):
            return _checked_indices(self.topology, shape, len(blueprints))
        blueprint_S = _named_indices(self.topology, slots, blueprints)
        return np.broadcast_to(blueprint_S, shape).copy()


def _named_indices(
    topology: str | Mapping[str, str], slots: Sequence[str], blueprints: Sequence[str]
) -> Ints:
    """Convert names to blueprint indices `[S]`."""
    if isinstance(topology, str):
        topology = dict.fromkeys(slots, topology)
    blueprint_S = np.full(len(slots), NO_BLUEPRINT, dtype=np.int64)
    for slot, blueprint in topology.items():
        place = index_of("slot", slot, slots, "of a static topology")
        blueprint_S[place] = index_of("blueprint", blueprint, blueprints, f"for slot {slot}")
    return blueprint_S


def _checked_indices(kind: Ints, shape: tuple[int, int], blueprints: int) -> Ints:
    """Validate blueprint indices and broadcast them to `[E, S]`."""
    if kind.shape not in (shape, shape[1:]) or not np.issubdtype(kind.dtype, np.integer):
        raise EsperError(
            f"static topology: {kind.dtype} of shape {kind.shape}, expected integers of "
            f"shape ({shape[1]},) or {shape}: slots, or members x slots"
        )
    kind_ES = np.broadcast_to(kind, shape).astype(np.int64)
    bad = np.argwhere((kind_ES < NO_BLUEPRINT) | (kind_ES >= blueprints))
    if bad.size:
        member, slot = bad[0]
        raise EsperError(
            f"static topology: blueprint {kind_ES[member, slot]} in slot {slot}, "
            f"valid are {NO_BLUEPRINT} (none) to {blueprints - 1}"
        )
    return kind_ES


class RandomPolicy(StatelessPolicy):
    """Samples each head uniformly among its legal choices, given the choices of earlier heads.

    Samples are a hash of (seed, round, decision, member, head), so they do not depend on E.
    """

    def __init__(self, seed: int, reward: RewardProtocol | None = None) -> None:
        super().__init__(reward)
        self.seed = seed

    def act(
        self, obs: TrainingSignals, masks: ActionMasks, policy_state: None
    ) -> tuple[PolicyDecision, None]:
        """Sample an action for each member; confidences are the sampling probabilities."""
        members = len(masks.op_EO)
        if cannot_grow(masks):
            return PolicyDecision.deterministic(ActionSpec.wait(members)), None
        uniform_EA = self._uniforms(obs.round_index, obs.decision_index, members)
        choice_EA = np.zeros((members, len(ActionHead)), dtype=np.int64)
        chance_EA = np.ones((members, len(ActionHead)), dtype=np.float64)
        for head in ActionHead:  # in sampling order: later masks depend on earlier choices
            legal_EC = _legal_choices(masks, head, choice_EA)
            choice_EA[:, head], chance_EA[:, head] = _sample_legal(legal_EC, uniform_EA[:, head])
        used_EA = HEAD_USED_OA[choice_EA[:, ActionHead.OP]]
        operations_E1 = masks.op_EO.sum(axis=1, keepdims=True)
        decision = PolicyDecision(
            actions=parse_sampled_action(choice_EA),
            op_probability_EO=(masks.op_EO / operations_E1).astype(np.float32),
            head_confidence_EA=np.where(used_EA, chance_EA, 1.0).astype(np.float32),
            value_E=np.full(members, np.nan, dtype=np.float32),
        )
        return decision, None

    def _uniforms(self, round_index: int, decision: int, members: int) -> Doubles:
        """Uniform numbers `[E, A]` in [0, 1)."""
        member_E1 = np.arange(members)[:, None]
        head_A = np.arange(len(ActionHead))
        path = ("random policy", "round", round_index, "step", decision)
        keys_EA = stream_keys(self.seed, *path, "member", member_E1, "head", head_A)
        return np.asarray((keys_EA >> np.uint64(11)) * 2.0**-53)


def _legal_choices(masks: ActionMasks, head: ActionHead, choice_EA: Ints) -> Bools:
    """`[E, C]`: mask of a head, given the choices of earlier heads."""
    members = len(choice_EA)
    if head is ActionHead.OP:
        return masks.op_EO
    if head is ActionHead.SLOT:
        return masks.slot_EOS[np.arange(members), choice_EA[:, ActionHead.OP]]
    if head is ActionHead.BLUEPRINT:
        return masks.blueprint_ESK[np.arange(members), choice_EA[:, ActionHead.SLOT]]
    mask_C = fixed_mask(masks, head)
    return np.broadcast_to(mask_C, (members, len(mask_C)))


def _sample_legal(legal_EC: Bools, uniform_E: Doubles) -> tuple[Ints, Doubles]:
    """Sample a legal choice per row; returns it and its probability (0 and 1 if none is legal).

    >>> _sample_legal(np.array([[False, True, True], [False, False, False]]), np.array([0.9, 0.9]))
    (array([2, 0]), array([0.5, 1. ]))
    """
    count_E = legal_EC.sum(axis=1)
    nth_E = (uniform_E * count_E).astype(np.int64) + 1
    choice_E = (legal_EC & (legal_EC.cumsum(axis=1) == nth_E[:, None])).argmax(axis=1)
    return choice_E, 1.0 / np.maximum(count_E, 1)
