"""`Policy`: base class of hand-written controllers, exported as `esper.Policy`.

    class Eager(esper.Policy):
        def act(self, signals, masks):
            empty = self.legal("GERMINATE")
            return self.first(self.advance(), self.germinate(empty, None, "conv_light"))

`act` decides for all members at once: it reads arrays whose first axis is the member and returns
one action each. The helpers build such actions. `esper train FILE.py:Eager` runs it, and so does
`esper compare` against other policies; an action that the masks forbid becomes WAIT.

Shape letters: E members, S slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from esper.leyline.actions import (
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    HEAD_CHOICES,
    TEMPOS,
    ActionHead,
    ActionSpec,
    LifecycleOp,
)
from esper.leyline.arrays import Bools, Ints, read_only_view
from esper.leyline.errors import EsperError, shown, unknown_name
from esper.leyline.masks import ActionMasks
from esper.leyline.protocols import RewardProtocol
from esper.leyline.records import PolicyDecision
from esper.leyline.signals import TrainingSignals
from esper.leyline.user_errors import user_code
from esper.tamiyo.frozen_heads import Frozen
from esper.tamiyo.scripted import (
    ScriptedPolicy,
    build_actions,
    index_of,
    legal_members,
    legal_slots,
    nearest_allowed,
)

Where = bool | npt.ArrayLike
"""Members to act on: True, `[E]`; or slots of members, `[E, S]`, of which the first is taken."""
Which = None | int | str | Sequence[int] | Ints
"""A slot or blueprint for all members, by name or index, or one index for each."""
EVERYWHERE: Final = True


class Policy:
    """Decides what grows; derive from it and write `act`.

    An object of the class decides for one population; it is made without arguments.
    """

    plans: bool = False
    """Whether episodes begin with a plan phase, whatever the task's contexts: `signals.planning` is
    then true in the first decisions, one for each slot."""
    reads_activation_gradients: bool = False
    """Whether `signals.activation_grad_ES` is measured; an extra pass per step."""
    blueprints: tuple[str, ...] = ()
    """Blueprints that it may grow; empty: all of the task's."""
    frozen_heads: Frozen | None = None
    """Heads with one choice, by name: `{"tempo": 3}`; `plain`: all but what, where and when."""
    counterfactual_stride: int = 1
    """Steps between measurements of what seeds contribute."""
    signals: TrainingSignals
    """What is observed now, read-only; set before `act`."""
    masks: ActionMasks
    """What is legal now, read-only; set before `act`."""

    def act(self, signals: TrainingSignals, masks: ActionMasks) -> ActionSpec:
        """Return one action for each member."""
        raise NotImplementedError(f"{type(self).__name__} has no act(self, signals, masks)")

    def begin(self, members: int) -> None:
        """Called at the start of every episode; reset what the policy remembers here."""

    def forget(self, reset_E: Bools) -> None:
        """Called when the governor restored earlier states of the members `reset_E`."""

    # ---- actions --------------------------------------------------------------------------

    def wait(self) -> ActionSpec:
        """WAIT for every member."""
        return ActionSpec.wait(self.members)

    def germinate(
        self,
        where: Where,
        slot: Which = None,
        blueprint: Which = 0,
        *,
        style: str = "ADD",
        tempo: int = TEMPOS[0],
        alpha_target: float = ALPHA_TARGETS[-1],
    ) -> ActionSpec:
        """Start a seed; it trains beside the host until it is advanced.

        `tempo`: steps of its blend; `alpha_target`: strength at which the blend ends.
        """
        heads: dict[ActionHead, int | Ints] = {
            ActionHead.BLUEPRINT: self._blueprint(blueprint),
            ActionHead.STYLE: self._choice(ActionHead.STYLE, style),
            ActionHead.TEMPO: self._choice(ActionHead.TEMPO, tempo),
            ActionHead.ALPHA_TARGET: self._choice(ActionHead.ALPHA_TARGET, alpha_target),
            ActionHead.ALPHA_CURVE: nearest_allowed(self.masks, ActionHead.ALPHA_CURVE, 0),
        }
        return self._on_slots(LifecycleOp.GERMINATE, where, slot, heads)

    def plant(self, where: Where, blueprint: Which = 0) -> ActionSpec:
        """Plan phase: put a seed into the slot at hand, as part of the network from step 0."""
        slot = max(self.signals.plan_slot, 0)
        heads = {ActionHead.BLUEPRINT: self._blueprint(blueprint)}
        return self._on_slots(LifecycleOp.PLANT, where, slot, heads)

    def advance(self, where: Where = EVERYWHERE, slot: Which = None) -> ActionSpec:
        """Move a seed to its next stage; by default the first one that may."""
        return self._on_slots(LifecycleOp.ADVANCE, where, slot, {})

    def fossilize(self, where: Where = EVERYWHERE, slot: Which = None) -> ActionSpec:
        """Make a seed permanent; by default the first one that may."""
        return self._on_slots(LifecycleOp.FOSSILIZE, where, slot, {})

    def prune(
        self, where: Where, slot: Which = None, *, steps: int = ALPHA_SPEEDS[0]
    ) -> ActionSpec:
        """Remove a seed; its alpha falls to 0 within `steps`."""
        heads = {
            ActionHead.ALPHA_SPEED: self._choice(ActionHead.ALPHA_SPEED, steps),
            ActionHead.ALPHA_CURVE: nearest_allowed(self.masks, ActionHead.ALPHA_CURVE, 0),
        }
        return self._on_slots(LifecycleOp.PRUNE, where, slot, heads)

    def set_alpha(
        self,
        where: Where,
        slot: Which = None,
        *,
        target: float = ALPHA_TARGETS[-1],
        steps: int = ALPHA_SPEEDS[0],
    ) -> ActionSpec:
        """Change the strength of a blended seed within `steps`."""
        heads = {
            ActionHead.ALPHA_TARGET: self._choice(ActionHead.ALPHA_TARGET, target),
            ActionHead.ALPHA_SPEED: self._choice(ActionHead.ALPHA_SPEED, steps),
            ActionHead.ALPHA_CURVE: nearest_allowed(self.masks, ActionHead.ALPHA_CURVE, 0),
        }
        return self._on_slots(LifecycleOp.SET_ALPHA_TARGET, where, slot, heads)

    def close(self, where: Where, slot: Which = None) -> ActionSpec:
        """Close an empty slot for the rest of the episode."""
        return self._on_slots(LifecycleOp.CLOSE, where, slot, {})

    def stop(self, where: Where) -> ActionSpec:
        """Stop training; the member and its score stay as they are."""
        op_E = np.where(self._members(where), int(LifecycleOp.STOP), int(LifecycleOp.WAIT))
        return build_actions(op_E, np.zeros_like(op_E), {})

    def restart(self, where: Where) -> ActionSpec:
        """Begin anew: a fresh host without seeds; the compute spent stays spent."""
        op_E = np.where(self._members(where), int(LifecycleOp.RESTART), int(LifecycleOp.WAIT))
        return build_actions(op_E, np.zeros_like(op_E), {})

    def first(self, *choices: ActionSpec) -> ActionSpec:
        """For each member, the first of these actions that is legal and not WAIT."""
        chosen = self.wait()
        for action in reversed(choices):
            self._require_actions(action)
            taken_E = legal_members(self.masks, action) & (action.op != LifecycleOp.WAIT)
            columns = (np.where(taken_E, action.of(head), chosen.of(head)) for head in ActionHead)
            chosen = ActionSpec(*columns)
        return chosen

    # ---- what is there --------------------------------------------------------------------

    @property
    def members(self) -> int:
        """E."""
        return len(self.masks.op_EO)

    def legal(self, op: str | LifecycleOp) -> Bools:
        """`[E, S]`: slots in which an operation is legal now."""
        names = {each.name: each for each in LifecycleOp}
        if isinstance(op, str) and op not in names:
            raise unknown_name("operation", op, names)
        return legal_slots(self.masks, names[op] if isinstance(op, str) else op)

    # ---- building actions -----------------------------------------------------------------

    def _on_slots(
        self, op: LifecycleOp, where: Where, slot: Which, heads: Mapping[ActionHead, int | Ints]
    ) -> ActionSpec:
        """`op` for the members in `where`, in the slot given or the first that `where` allows."""
        wanted_ES = self._slots(op, where, slot)
        op_E = np.where(wanted_ES.any(axis=1), int(op), int(LifecycleOp.WAIT))
        return build_actions(op_E, wanted_ES.argmax(axis=1), heads)

    def _slots(self, op: LifecycleOp, where: Where, slot: Which) -> Bools:
        """`[E, S]`: slots to act on; without a slot, those of `where` that are legal."""
        legal_ES = self.legal(op)
        given = np.asarray(where)
        if given.dtype == np.bool_ and given.ndim == 2 and given.shape == legal_ES.shape:
            found_ES = np.asarray(given & legal_ES)
        else:
            found_ES = np.asarray(self._members(where)[:, None] & np.ones_like(legal_ES))
            found_ES = found_ES if slot is not None else found_ES & legal_ES
        if slot is None:
            return found_ES
        slots = self.signals.slots.slot_ids
        slot_E = self._indices("slot", slot, slots)
        return np.asarray(found_ES & (np.arange(len(slots)) == slot_E[:, None]))

    def _members(self, where: Where) -> Bools:
        """`where` as a mask `[E]`."""
        given = np.asarray(where)
        if given.dtype != np.bool_ or given.shape not in ((), (self.members,)):
            raise EsperError(
                f"where: {given.dtype} of shape {given.shape}, give True, or booleans of shape "
                f"({self.members},) or {self.masks.slot_EOS[:, 0].shape}"
            )
        return np.broadcast_to(given, (self.members,))

    def _blueprint(self, blueprint: Which) -> Ints:
        return self._indices("blueprint", blueprint, self.signals.slots.blueprints)

    def _indices(self, kind: str, given: Which, names: Sequence[str]) -> Ints:
        """Indices `[E]` of slots or blueprints."""
        if isinstance(given, str):
            given = index_of(kind, given, names, f"of {type(self).__name__}")
        found = np.asarray(given)
        if found.dtype.kind not in "iu" or found.shape not in ((), (self.members,)):
            raise EsperError(
                f"{kind} {shown(given)}: give a name, an index, or an index for each member"
            )
        if found.size and not (found.min() >= 0 and found.max() < len(names)):
            raise EsperError(f"{kind} {shown(given)}: valid are 0 to {len(names) - 1}")
        return np.broadcast_to(found, (self.members,)).astype(np.int64)

    def _choice(self, head: ActionHead, value: str | float) -> int:
        """Index of a choice of a head; the nearest allowed one where the head is frozen."""
        choices = HEAD_CHOICES[head]
        text = str(float(value)) if head is ActionHead.ALPHA_TARGET else str(value)
        if text not in choices:
            raise unknown_name(head.name.lower(), text, choices, f"of {type(self).__name__}")
        return nearest_allowed(self.masks, head, choices.index(text))

    def _require_actions(self, action: object) -> None:
        if not isinstance(action, ActionSpec) or action.members != self.members:
            raise EsperError(
                f"{type(self).__name__}: {shown(action)} is not one action for each of "
                f"{self.members} members; use wait(), germinate(...) and the other helpers"
            )


class PolicyClient(ScriptedPolicy):
    """Runs a `Policy` in the engine: what is illegal becomes WAIT, and its errors are one line."""

    def __init__(self, policy: Policy, reward: RewardProtocol | None = None) -> None:
        super().__init__(reward)
        self.policy = policy
        self.reads_activation_gradients = policy.reads_activation_gradients

    def initial_state(self, members: int) -> None:
        """Called when an episode begins."""
        with user_code(f"{self._name}.begin fails"):
            self.policy.begin(members)

    def reset_state(self, policy_state: None, reset_E: Bools) -> None:
        """Called with the members that were rolled back."""
        if reset_E.any():
            with user_code(f"{self._name}.forget fails"):
                self.policy.forget(read_only_view(reset_E))

    def act(
        self, obs: TrainingSignals, masks: ActionMasks, policy_state: None
    ) -> tuple[PolicyDecision, None]:
        """Return what the policy chooses, WAIT where that is illegal."""
        policy = self.policy
        policy.signals, policy.masks = obs, masks
        with user_code(f"{self._name}.act fails"):
            chosen: Any = policy.act(obs, masks)
        policy._require_actions(chosen)
        return PolicyDecision.deterministic(policy.first(chosen)), None

    @property
    def _name(self) -> str:
        return type(self.policy).__name__
