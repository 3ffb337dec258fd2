"""Observation and action spaces, and the masks that come with an observation.

Shape letters: E members, S slots, K blueprints, O operations, G global features, F features of a
slot, D features of a candidate.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from esper.leyline.actions import HEAD_CHOICES, ActionHead, LifecycleOp, op_choices
from esper.leyline.arrays import Bools
from esper.leyline.masks import FIXED_MASK, ActionMasks
from esper.leyline.signals import TrainingSignals
from esper.tamiyo.actions import HEAD_USED_OA
from esper.tamiyo.features import batch_signals_to_features, feature_names
from esper.tamiyo.scripted import fixed_mask

FEATURE_BOUND: Final = 28.0
"""Every feature lies within plus and minus this: log(1e12), and a difference of two symlogs."""

Flags = npt.NDArray[np.int8]


def head_sizes(slots: int, blueprints: int, restarts: bool = False) -> list[int]:
    """Choices of each action head, in the order of `ActionHead`; `restarts`: RESTART exists."""
    sizes = {head: len(choices) for head, choices in HEAD_CHOICES.items()}
    sizes |= {ActionHead.OP: op_choices(restarts)}
    sizes |= {ActionHead.SLOT: slots, ActionHead.BLUEPRINT: blueprints}
    return [sizes[head] for head in ActionHead]


def action_space(slots: int, blueprints: int, restarts: bool = False) -> spaces.MultiDiscrete:
    """One choice per action head; heads that an operation does not use are ignored."""
    return spaces.MultiDiscrete(np.array(head_sizes(slots, blueprints, restarts), dtype=np.int64))


def observation_space(slots: int, blueprints: int, restarts: bool = False) -> spaces.Dict:
    """Features of the member, its slots and its candidates, and what the slots hold."""
    names = feature_names(restarts)
    return spaces.Dict(
        {
            "global": _box(len(names.whole)),
            "slots": _box(slots, len(names.slot)),
            "candidates": _box(slots, blueprints, len(names.candidate)),
            "blueprints": spaces.MultiDiscrete(np.full(slots, blueprints + 1, dtype=np.int64)),
        }
    )


def _box(*shape: int) -> spaces.Box:
    return spaces.Box(-FEATURE_BOUND, FEATURE_BOUND, shape, np.float32)


def observations(signals: TrainingSignals) -> dict[str, npt.NDArray[Any]]:
    """Observations of all members; the first axis is the member.

    `blueprints`: 0 for an empty slot, else 1 plus the index of its blueprint.
    """
    features = batch_signals_to_features(signals, signals.context.restarts)
    return {
        "global": features.global_EG,
        "slots": features.slot_ESF,
        "candidates": features.candidate_ESKD,
        "blueprints": features.blueprint_ES + 1,
    }


def mask_arrays(masks: ActionMasks, restarts: bool = False) -> dict[str, Flags]:
    """Masks of all members as 0 and 1: per head, and which combinations are legal.

    A choice of a head is 1 if some legal action contains it. `op_slot` `[E, O, S]` and
    `slot_blueprint` `[E, S, K]` say which pairs are legal; all other heads are independent. Heads
    that no legal operation uses allow everything, because they are ignored.
    """
    members, ops = len(masks.op_EO), op_choices(restarts)
    slot_EOS = masks.slot_EOS & masks.op_EO[:, :, None] & HEAD_USED_OA[:, ActionHead.SLOT, None]
    blueprint_ESK = masks.blueprint_ESK & _growing_slots(masks)[:, :, None]
    found = {
        "op": masks.op_EO[:, :ops],
        "slot": _or_all(slot_EOS),
        "blueprint": _or_all(blueprint_ESK),
    }
    for head in FIXED_MASK:
        found[head.name.lower()] = np.tile(fixed_mask(masks, head), (members, 1))
    found |= {"op_slot": masks.slot_EOS[:, :ops], "slot_blueprint": masks.blueprint_ESK}
    return {name: values.astype(np.int8) for name, values in found.items()}


def _growing_slots(masks: ActionMasks) -> Bools:
    """`[E, S]`: slots in which a seed may be grown or planted now."""
    grows = [LifecycleOp.GERMINATE, LifecycleOp.PLANT]
    return np.asarray((masks.slot_EOS[:, grows] & masks.op_EO[:, grows, None]).any(axis=1))


def _or_all(allowed: Bools) -> Bools:
    """`[E, choices]`: allowed somewhere on the middle axis; everything where nothing is."""
    some = np.asarray(allowed.any(axis=1))
    return np.asarray(some | ~some.any(axis=1, keepdims=True))
