"""What a learned controller is compared with: waiting, chance, and topologies that never change.

The fixed schedule stands in `schedule.py`, the heuristic in `heuristic.py`. All are
`PolicyProtocol`s and run in the same loop.

Shape letters: E members, S slots, O operations, A action heads, C choices of one head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from esper.leyline.actions import ActionHead, ActionSpec
from esper.leyline.arrays import Bools, Doubles, Ints
from esper.leyline.errors import EsperError
from esper.leyline.masks import ActionMasks
from esper.leyline.protocols import RewardProtocol
from esper.leyline.records import PolicyDecision
from esper.leyline.signals import NO_BLUEPRINT, TrainingSignals
from esper.leyline.streams import stream_keys
from esper.tamiyo.actions import COUNTS_OA, parse_sampled_action
from esper.tamiyo.unlearned import UnlearnedPolicy, barren, fixed_mask, index_of


class StatelessPolicy(UnlearnedPolicy):
    """A policy that remembers nothing from one step to the next."""

    def initial_state(self, members: int) -> None:
        """Nothing to remember."""

    def reset_state(self, policy_state: None, reset_E: Bools) -> None:
        """Nothing to forget."""


class WaitPolicy(StatelessPolicy):
    """Never does anything: the static host."""

    def act(
        self, obs: TrainingSignals, masks: ActionMasks, policy_state: None
    ) -> tuple[PolicyDecision, None]:
        """WAIT for every member."""
        return PolicyDecision.deterministic(ActionSpec.wait(len(masks.op_EO))), None


class StaticTopology(WaitPolicy):
    """Members are born with permanent seeds, and nothing changes after that.

    `topology` is a blueprint for every slot, blueprints by slot id, or blueprint indices: `[S]` for
    all members alike, `[E, S]` for each its own (`NO_BLUEPRINT`: an empty slot).

    >>> policy = StaticTopology.final({"r0c1": "norm"})
    >>> policy.planted(2, ["r0c0", "r0c1"], ["conv", "norm"]).tolist()
    [[-1, 1], [-1, 1]]
    """

    def __init__(
        self, topology: str | Mapping[str, str] | Ints, reward: RewardProtocol | None = None
    ) -> None:
        super().__init__(reward)
        self.topology = topology

    @classmethod
    def full(
        cls,
        blueprint: str,
        slots: Sequence[str] | None = None,
        reward: RewardProtocol | None = None,
    ) -> StaticTopology:
        """static-full: one blueprint in these slots; None: in every slot of the host."""
        return cls(blueprint if slots is None else dict.fromkeys(slots, blueprint), reward)

    @classmethod
    def final(
        cls, topology: Mapping[str, str] | Ints, reward: RewardProtocol | None = None
    ) -> StaticTopology:
        """static-final: a topology that was found, to be trained from step 0 with fresh weights."""
        return cls(topology, reward)

    def planted(self, members: int, slots: Sequence[str], blueprints: Sequence[str]) -> Ints:
        """`[E, S]`: blueprint per member and slot."""
        shape = (members, len(slots))
        if isinstance(self.topology, np.ndarray):
            return _checked_indices(self.topology, shape, len(blueprints))
        kind_S = _named_indices(self.topology, slots, blueprints)
        return np.broadcast_to(kind_S, shape).copy()


def _named_indices(
    topology: str | Mapping[str, str], slots: Sequence[str], blueprints: Sequence[str]
) -> Ints:
    """Blueprint indices `[S]` of a topology given by names."""
    if isinstance(topology, str):
        topology = dict.fromkeys(slots, topology)
    kind_S = np.full(len(slots), NO_BLUEPRINT, dtype=np.int64)
    for slot, blueprint in topology.items():
        place = index_of("slot", slot, slots, "of a static topology")
        kind_S[place] = index_of("blueprint", blueprint, blueprints, f"for slot {slot}")
    return kind_S


def _checked_indices(kind: Ints, shape: tuple[int, int], blueprints: int) -> Ints:
    """Blueprint indices `[S]` or `[E, S]` as `[E, S]`, checked against the population."""
    if kind.shape not in (shape, shape[1:]) or not np.issubdtype(kind.dtype, np.integer):
        raise EsperError(
            f"static topology: {kind.dtype} of shape {kind.shape}, expected a blueprint index for "
            f"each of the {shape[1]} slots, or one for each of {shape[0]} members and slots"
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
    """Masked uniform: over the operations, then over each later head given the ones before.

    Draws are a hash of seed, round, step, member and head, so member i's do not depend on E.
    """

    def __init__(self, seed: int, reward: RewardProtocol | None = None) -> None:
        super().__init__(reward)
        self.seed = seed

    def act(
        self, obs: TrainingSignals, masks: ActionMasks, policy_state: None
    ) -> tuple[PolicyDecision, None]:
        """Draw an action for each member; confidences are the probabilities it was drawn with."""
        members = len(masks.op_EO)
        if barren(masks):
            return PolicyDecision.deterministic(ActionSpec.wait(members)), None
        uniform_EA = self._uniforms(obs.round_index, obs.step, members)
        choice_EA = np.zeros((members, len(ActionHead)), dtype=np.int64)
        chance_EA = np.ones((members, len(ActionHead)), dtype=np.float64)
        for head in ActionHead:  # in sampling order: later masks depend on earlier choices
            allowed_EC = _allowed(masks, head, choice_EA)
            choice_EA[:, head], chance_EA[:, head] = draw(allowed_EC, uniform_EA[:, head])
        counts_EA = COUNTS_OA[choice_EA[:, ActionHead.OP]]
        operations_E1 = masks.op_EO.sum(axis=1, keepdims=True)
        decision = PolicyDecision(
            actions=parse_sampled_action(choice_EA),
            op_probability_EO=(masks.op_EO / operations_E1).astype(np.float32),
            head_confidence_EA=np.where(counts_EA, chance_EA, 1.0).astype(np.float32),
            value_E=np.full(members, np.nan, dtype=np.float32),
        )
        return decision, None

    def _uniforms(self, round_index: int, step: int, members: int) -> Doubles:
        """`[E, A]`: one number in [0, 1) for each member and head."""
        member_E1 = np.arange(members)[:, None]
        head_A = np.arange(len(ActionHead))
        path = ("random policy", "round", round_index, "step", step)
        keys_EA = stream_keys(self.seed, *path, "member", member_E1, "head", head_A)
        return np.asarray((keys_EA >> np.uint64(11)) * 2.0**-53)


def _allowed(masks: ActionMasks, head: ActionHead, choice_EA: Ints) -> Bools:
    """`[E, C]`: what a head may choose, given the choices of the heads before it."""
    members = len(choice_EA)
    if head is ActionHead.OP:
        return masks.op_EO
    if head is ActionHead.SLOT:
        return masks.slot_EOS[np.arange(members), choice_EA[:, ActionHead.OP]]
    if head is ActionHead.BLUEPRINT:
        return masks.blueprint_SK[choice_EA[:, ActionHead.SLOT]]
    mask_C = fixed_mask(masks, head)
    return np.broadcast_to(mask_C, (members, len(mask_C)))


def draw(allowed_EC: Bools, uniform_E: Doubles) -> tuple[Ints, Doubles]:
    """A uniform choice among the allowed of each row, and its probability; 0 and 1 where none is.

    >>> draw(np.array([[False, True, True], [False, False, False]]), np.array([0.9, 0.9]))
    (array([2, 0]), array([0.5, 1. ]))
    """
    count_E = allowed_EC.sum(axis=1)
    nth_E = (uniform_E * count_E).astype(np.int64) + 1
    choice_E = (allowed_EC & (allowed_EC.cumsum(axis=1) == nth_E[:, None])).argmax(axis=1)
    return choice_E, 1.0 / np.maximum(count_E, 1)
