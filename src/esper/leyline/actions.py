"""Actions of a controller: operations, action heads, veto reasons and outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from esper.leyline.arrays import ArrayStruct, Bools, Codes, Ints
from esper.leyline.errors import EsperError


class LifecycleOp(IntEnum):
    """Operation of a controller on a member at a step."""

    WAIT = 0
    GERMINATE = 1
    ADVANCE = 2
    SET_ALPHA_TARGET = 3
    PRUNE = 4
    FOSSILIZE = 5
    PLANT = 6
    """Plan phase only: put a seed into the network before the first step."""
    STOP = 7
    """Stop training for the rest of the episode; the member and its score stay as they are."""
    CLOSE = 8
    """Close an empty slot for the rest of the episode."""
    RESTART = 9
    """Begin anew: a fresh host, no seeds, no moments; the compute spent stays spent."""


class BlendStyle(IntEnum):
    """How a seed's delta d is blended into the host activation h with strength a; never changes."""

    ADD = 0
    """h + a * d"""
    MULTIPLY = 1
    """h * (1 + a * tanh(d))"""
    GATE = 2
    """h + a * g(h) * d"""


class AlphaMode(IntEnum):
    """State of a slot's alpha ramp."""

    HOLD = 0
    UP = 1
    DOWN = 2


class AlphaCurve(IntEnum):
    """Shape of a ramp; all are monotone and exact at both ends."""

    LINEAR = 0
    COSINE = 1
    SIGMOID_6 = 2
    SIGMOID_12 = 3
    SIGMOID_24 = 4


TEMPOS: Final = (3, 5, 8)
"""Steps of the first blend."""
ALPHA_TARGETS: Final = (0.5, 0.7, 1.0)
"""Target alphas."""
ALPHA_SPEEDS: Final = (0, 3, 5, 8)
"""Steps of a retarget or prune ramp; 0 is immediate."""


class ActionHead(IntEnum):
    """Heads of a factored action, in sampling order."""

    OP = 0
    SLOT = 1
    BLUEPRINT = 2
    STYLE = 3
    TEMPO = 4
    ALPHA_TARGET = 5
    ALPHA_SPEED = 6
    ALPHA_CURVE = 7


_H = ActionHead
HEADS_BY_OP: Final[Mapping[LifecycleOp, frozenset[ActionHead]]] = MappingProxyType(
    {
        LifecycleOp.WAIT: frozenset({_H.OP}),
        LifecycleOp.GERMINATE: frozenset(_H) - {_H.ALPHA_SPEED},
        LifecycleOp.ADVANCE: frozenset({_H.OP, _H.SLOT}),
        LifecycleOp.SET_ALPHA_TARGET: frozenset(
            {_H.OP, _H.SLOT, _H.ALPHA_TARGET, _H.ALPHA_SPEED, _H.ALPHA_CURVE}
        ),
        LifecycleOp.PRUNE: frozenset({_H.OP, _H.SLOT, _H.ALPHA_SPEED, _H.ALPHA_CURVE}),
        LifecycleOp.FOSSILIZE: frozenset({_H.OP, _H.SLOT}),
        LifecycleOp.PLANT: frozenset({_H.OP, _H.SLOT, _H.BLUEPRINT}),
        LifecycleOp.STOP: frozenset({_H.OP}),
        LifecycleOp.CLOSE: frozenset({_H.OP, _H.SLOT}),
        LifecycleOp.RESTART: frozenset({_H.OP}),
    }
)
"""Heads each operation uses; the others contribute no log-probability and no entropy."""

SLOT_OPS: Final = frozenset(op for op in LifecycleOp if _H.SLOT in HEADS_BY_OP[op])
"""Operations that act on a slot; WAIT, STOP and RESTART do not."""
ActionSpace = Literal["grow", "full", "grow+restart", "full+restart"]
CLASSIC_OPS: Final = tuple(LifecycleOp)[: LifecycleOp.PLANT]
"""Operations without a plan phase: the action space of `ContextSpec.actions == "grow"`."""
OFFERED_OPS: Final[Mapping[ActionSpace, tuple[LifecycleOp, ...]]] = MappingProxyType(
    {
        "grow": CLASSIC_OPS,
        "full": tuple(LifecycleOp)[: LifecycleOp.RESTART],
        "grow+restart": (*CLASSIC_OPS, LifecycleOp.RESTART),
        "full+restart": tuple(LifecycleOp),
    }
)
"""Operations that each action space has at some time of an episode."""


def op_choices(restarts: bool) -> int:
    """Choices of the OP head. Controllers that cannot restart have no output for RESTART, so that
    those of action spaces without it do not depend on it."""
    return len(LifecycleOp) if restarts else int(LifecycleOp.RESTART)


HEAD_CHOICES: Final[Mapping[ActionHead, tuple[str, ...]]] = MappingProxyType(
    {
        _H.OP: tuple(op.name for op in LifecycleOp),
        _H.STYLE: tuple(style.name for style in BlendStyle),
        _H.TEMPO: tuple(str(steps) for steps in TEMPOS),
        _H.ALPHA_TARGET: tuple(str(alpha) for alpha in ALPHA_TARGETS),
        _H.ALPHA_SPEED: tuple(str(steps) for steps in ALPHA_SPEEDS),
        _H.ALPHA_CURVE: tuple(curve.name for curve in AlphaCurve),
    }
)
"""Choices of the heads that do not depend on the host (slot and blueprint do)."""

_CHOICES: Final[Mapping[ActionHead, tuple[str, int | None]]] = MappingProxyType(
    {
        head: (head.name.lower(), len(HEAD_CHOICES[head]) if head in HEAD_CHOICES else None)
        for head in ActionHead
    }
)
"""Field of `ActionSpec` of each head, and its number of choices; None: it depends on the host."""

_LIMIT_A1: Final = np.array(
    [[np.iinfo(np.int64).max if n is None else n - 1] for _, n in _CHOICES.values()],
    dtype=np.uint64,
)
"""Largest index of each head."""

NO_SLOT: Final = -1
"""Slot index of an action without a slot (WAIT, STOP, RESTART)."""


class VetoReason(IntEnum):
    """Why an action was not executed; the first applicable reason in this order."""

    NONE = 0
    """It was executed (WAIT always is)."""
    GOVERNOR = 1
    """The member was rolled back at this step, so its observation is stale."""
    SLOT_NOT_DORMANT = 2
    """GERMINATE: the slot holds a seed or is cooling down."""
    BUDGET_SPENT = 3
    """GERMINATE: the member has no seed budget left."""
    BLUEPRINT_MISFIT = 4
    """GERMINATE: the blueprint does not fit the host's topology or the slot's width."""
    WRONG_STAGE = 5
    """ADVANCE, SET_ALPHA_TARGET, PRUNE, FOSSILIZE: not legal in the slot's stage."""
    RAMPING = 6
    """SET_ALPHA_TARGET, PRUNE, FOSSILIZE: alpha is still ramping (possibly for a prune)."""
    TOO_YOUNG = 7
    """PRUNE: the seed is younger than `min_prune_age`."""
    GATE_CLOSED = 8
    """ADVANCE, FOSSILIZE: the gate into the next stage does not pass."""
    EPISODE_OVER = 9
    """The last validation is done: a change would never be scored."""
    OVER_CAP = 10
    """GERMINATE, PLANT: the seed would exceed the member's parameter or MAC cap."""
    SLOT_CLOSED = 11
    """GERMINATE, PLANT, CLOSE: the slot was closed."""
    STOPPED = 12
    """The member has stopped training."""
    NOTHING_TRAINED = 13
    """STOP, RESTART: the member has not trained on a single batch since it began."""
    NOT_IN_PHASE = 14
    """PLANT outside the plan phase, another operation within it, or an operation that the context
    does not offer."""
    TOO_LITTLE_LEFT = 15
    """RESTART: less of the episode's compute is left than `ContextSpec.min_restart_left`."""


@dataclass(frozen=True, slots=True, eq=False)
class ActionSpec(ArrayStruct):
    """Action of every member: one index `[E]` per head, fields in `ActionHead` order.

    Heads that a member's operation does not use hold any valid index and are ignored.

    >>> ActionSpec.wait(2).describe(0, ["r0c0"], ["norm"])
    'WAIT'
    """

    op: Ints
    """`LifecycleOp`."""
    slot: Ints
    """Index into the enabled slots."""
    blueprint: Ints
    """Index into the host's blueprints."""
    style: Ints
    """`BlendStyle`."""
    tempo: Ints
    """Index into `TEMPOS`."""
    alpha_target: Ints
    """Index into `ALPHA_TARGETS`."""
    alpha_speed: Ints
    """Index into `ALPHA_SPEEDS`."""
    alpha_curve: Ints
    """`AlphaCurve`."""

    def __post_init__(self) -> None:
        _require_equal_lengths(self)
        if not self._within_limits():
            for name, choices in _CHOICES.values():  # raises at the first that is not
                _require_choice(name, getattr(self, name), choices, "action")

    def _within_limits(self) -> bool:
        """Whether all indices are int64 within the choices of their heads."""
        heads = [getattr(self, name) for name, _ in _CHOICES.values()]
        if any(head.dtype != np.int64 for head in heads):
            return False
        # As unsigned numbers, negative ones are above any limit.
        return bool((np.array(heads).view(np.uint64) <= _LIMIT_A1).all())

    def sizes(self) -> dict[str, int]:
        """Return E, the number of members."""
        return {"E": len(self.op)}

    @property
    def members(self) -> int:
        """E."""
        return len(self.op)

    def of(self, head: ActionHead) -> Ints:
        """Return the indices `[E]` of one head."""
        indices: Ints = getattr(self, _CHOICES[head][0])
        return indices

    @classmethod
    def wait(cls, members: int) -> ActionSpec:
        """WAIT for every member."""
        if members < 1:
            raise EsperError(f"actions for {members} members: at least 1 is needed")
        return cls(*(np.zeros(members, dtype=np.int64) for _ in ActionHead))

    def describe(self, member: int, slots: Sequence[str], blueprints: Sequence[str]) -> str:
        """Format one member's action with the heads it uses: `PRUNE r0c1 alpha_speed=3 ...`."""
        op = LifecycleOp(self.op[member])
        words = [op.name]
        for head in ActionHead:
            if head not in HEADS_BY_OP[op] or head is ActionHead.OP:
                continue
            choice = int(self.of(head)[member])
            if head is ActionHead.SLOT:
                words.append(_named("slot", choice, slots, member))
            elif head is ActionHead.BLUEPRINT:
                words.append(_named("blueprint", choice, blueprints, member))
            else:
                words.append(f"{head.name.lower()}={HEAD_CHOICES[head][choice]}")
        return " ".join(words)


def _named(kind: str, index: int, names: Sequence[str], member: int) -> str:
    if index >= len(names):
        raise EsperError(
            f"action of member {member}: {kind} {index}, but there are {len(names)} "
            f"({', '.join(names)})"
        )
    return names[index]


@dataclass(frozen=True, slots=True, eq=False)
class ActionOutcome(ArrayStruct):
    """Result of every member's action; all arrays `[E]`."""

    veto: Codes
    """`VetoReason`; NONE if the action was executed."""
    target_slot: Ints
    """Target slot, executed or not; `NO_SLOT` for WAIT."""
    stage_before: Codes
    """`SeedStage` of that slot before the action; -1 for WAIT."""
    stage_after: Codes
    """`SeedStage` of that slot after it; -1 for WAIT."""

    def sizes(self) -> dict[str, int]:
        """Return E, the number of members."""
        return {"E": len(self.veto)}

    @property
    def executed(self) -> Bools:
        """Whether the action was executed `[E]`."""
        return np.asarray(self.veto == VetoReason.NONE)

    @classmethod
    def waited(cls, members: int) -> ActionOutcome:
        """Outcome of WAIT for every member."""
        none = np.full(members, -1, dtype=np.int8)
        veto = np.full(members, VetoReason.NONE, dtype=np.int8)
        return cls(veto, np.full(members, NO_SLOT, dtype=np.int64), none, none.copy())


def _require_equal_lengths(struct: ArrayStruct) -> None:
    """Raise unless all fields are arrays `[E]` of one length, at least 1."""
    expected: tuple[int, ...] | None = None
    for name in struct.__dataclass_fields__:
        shape = np.shape(getattr(struct, name))
        expected = expected or shape
        if shape != expected or len(shape) != 1 or shape[0] < 1:
            raise EsperError(
                f"{type(struct).__name__}.{name}: shape {shape}, expected one value for each "
                f"of the {expected[0] if expected else 'E'} members"
            )


def _require_choice(
    name: str, values: npt.NDArray[np.generic], choices: int | None, where: str
) -> None:
    """Raise unless all values `[E]` are integers in 0..choices-1 (None: no upper limit)."""
    if values.dtype.kind not in "iu":
        raise EsperError(f"{where}: {name} has dtype {values.dtype}, expected integers")
    whole = values.astype(np.int64)
    # As unsigned numbers, negative ones are above any limit.
    limit = np.iinfo(np.int64).max if choices is None else choices - 1
    beyond = whole.view(np.uint64) > limit
    if beyond.any():
        member = int(np.flatnonzero(beyond)[0])
        valid = "0 or more" if choices is None else f"0 to {choices - 1}"
        raise EsperError(f"{where} of member {member}: {name} {whole[member]}, valid: {valid}")
