"""Action masks of all heads, built from the operations the lifecycle allows.

Shape letters: E members, S slots, O operations, K blueprints, C choices of one head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from esper.leyline.actions import HEAD_CHOICES, ActionHead, LifecycleOp
from esper.leyline.arrays import Bools, read_only
from esper.leyline.masks import FIXED_MASK, ActionMasks
from esper.tamiyo.actions import HEAD_USED_OA
from esper.tamiyo.frozen_heads import check_frozen

_GROWS = [int(LifecycleOp.GERMINATE), int(LifecycleOp.PLANT)]


def build_masks(
    legal_ESO: Bools, fits_ESK: Bools, frozen: Mapping[ActionHead, int] | None = None
) -> ActionMasks:
    """Build the masks of all heads, read-only.

    `legal_ESO`: `Lifecycle.legal_ops()`. `fits_ESK`: `Lifecycle.fits_ESK()`. `frozen`: heads
    restricted to one index; a frozen blueprint can only grow in slots it fits.
    """
    frozen = frozen or {}
    check_frozen(frozen, fits_ESK.shape[2])
    blueprint_ESK = fits_ESK.copy()
    if ActionHead.BLUEPRINT in frozen:
        blueprint_ESK &= _one_hot(frozen[ActionHead.BLUEPRINT], fits_ESK.shape[2])
    slot_EOS = np.array(legal_ESO.transpose(0, 2, 1), order="C")
    slot_EOS[:, _GROWS] &= np.asarray(blueprint_ESK.any(axis=2))[:, None]
    op_EO = np.asarray(slot_EOS.any(axis=2))
    op_EO[:, LifecycleOp.WAIT] = True
    masks = ActionMasks(
        op_EO=op_EO,
        slot_EOS=slot_EOS,
        blueprint_ESK=blueprint_ESK,
        **{name: _fixed_head_mask(head, frozen) for head, name in FIXED_MASK.items()},
    )
    return read_only(masks)


def without_restart(masks: ActionMasks) -> ActionMasks:
    """The masks for a policy that does not know RESTART."""
    if not masks.op_EO[:, LifecycleOp.RESTART].any():
        return masks
    op_EO = masks.op_EO.copy()
    op_EO[:, LifecycleOp.RESTART] = False
    return read_only(replace(masks, op_EO=op_EO))


def forced_members(masks: ActionMasks) -> Bools:
    """`[E]`: members with exactly one legal action."""
    forced_E = np.asarray(masks.op_EO.sum(axis=1) == 1)
    if not forced_E.any():
        return forced_E
    member_E = np.arange(len(masks.op_EO))
    op_E = masks.op_EO.argmax(axis=1)
    slot_ES = masks.slot_EOS[member_E, op_E]
    choices = {
        ActionHead.SLOT: slot_ES.sum(axis=1),
        ActionHead.BLUEPRINT: (slot_ES * masks.blueprint_ESK.sum(axis=2)).sum(axis=1),
        **{head: getattr(masks, name).sum() for head, name in FIXED_MASK.items()},
    }
    for head, choices_E in choices.items():
        forced_E &= ~HEAD_USED_OA[op_E, head] | (choices_E == 1)
    return forced_E


def _fixed_head_mask(head: ActionHead, frozen: Mapping[ActionHead, int]) -> Bools:
    """Mask of a head whose choices are the same for all members."""
    count = len(HEAD_CHOICES[head])
    return _one_hot(frozen[head], count) if head in frozen else np.ones(count, dtype=np.bool_)


def _one_hot(index: int, count: int) -> Bools:
    """Boolean vector that is True only at `index`."""
    return np.asarray(np.arange(count) == index)
