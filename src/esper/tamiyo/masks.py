"""What each head may choose, made from what the lifecycle says is legal.

Shape letters: E members, S slots, O operations, K blueprints, C choices of one head.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from esper.leyline.actions import HEAD_CHOICES, ActionHead, LifecycleOp
from esper.leyline.arrays import Bools
from esper.leyline.errors import EsperError
from esper.leyline.masks import ActionMasks
from esper.tamiyo.actions import COUNTS_OA

NEVER_FROZEN = (ActionHead.OP, ActionHead.SLOT)
"""What they may choose depends on the member and the step."""


def build_masks(
    legal_ESO: Bools, fits_SK: Bools, frozen: Mapping[ActionHead, int] | None = None
) -> ActionMasks:
    """The masks of all heads.

    `legal_ESO` is the lifecycle's `legal_ops()`, `fits_SK[s, k]` says that blueprint k fits
    slot s. A head in `frozen` may choose that one index alone; a frozen blueprint is grown only
    where it fits.
    """
    frozen = frozen or {}
    _check_shapes(legal_ESO, fits_SK)
    check_frozen(frozen, fits_SK.shape[1])
    blueprint_SK = fits_SK.copy()
    if ActionHead.BLUEPRINT in frozen:
        blueprint_SK &= _only(frozen[ActionHead.BLUEPRINT], fits_SK.shape[1])
    slot_EOS = np.array(legal_ESO.transpose(0, 2, 1), order="C")
    slot_EOS[:, LifecycleOp.GERMINATE] &= blueprint_SK.any(axis=1)
    op_EO = np.asarray(slot_EOS.any(axis=2))
    op_EO[:, LifecycleOp.WAIT] = True
    return ActionMasks(
        op_EO=op_EO,
        slot_EOS=slot_EOS,
        blueprint_SK=blueprint_SK,
        style_Y=_choices(ActionHead.STYLE, frozen),
        tempo_M=_choices(ActionHead.TEMPO, frozen),
        alpha_target_T=_choices(ActionHead.ALPHA_TARGET, frozen),
        alpha_speed_V=_choices(ActionHead.ALPHA_SPEED, frozen),
        alpha_curve_U=_choices(ActionHead.ALPHA_CURVE, frozen),
    )


def forced_members(masks: ActionMasks) -> Bools:
    """`[E]`: members with one legal action, who have nothing to decide."""
    everyone = np.arange(len(masks.op_EO))
    op_E = masks.op_EO.argmax(axis=1)
    slot_ES = masks.slot_EOS[everyone, op_E]
    choices = {
        ActionHead.SLOT: slot_ES.sum(axis=1),
        ActionHead.BLUEPRINT: (slot_ES * masks.blueprint_SK.sum(axis=1)).sum(axis=1),
        ActionHead.STYLE: masks.style_Y.sum(),
        ActionHead.TEMPO: masks.tempo_M.sum(),
        ActionHead.ALPHA_TARGET: masks.alpha_target_T.sum(),
        ActionHead.ALPHA_SPEED: masks.alpha_speed_V.sum(),
        ActionHead.ALPHA_CURVE: masks.alpha_curve_U.sum(),
    }
    forced_E = np.asarray(masks.op_EO.sum(axis=1) == 1)
    for head, choices_E in choices.items():
        forced_E &= ~COUNTS_OA[op_E, head] | (choices_E == 1)
    return forced_E


def _choices(head: ActionHead, frozen: Mapping[ActionHead, int]) -> Bools:
    """The mask of a head whose choices are the same for all members."""
    count = len(HEAD_CHOICES[head])
    return _only(frozen[head], count) if head in frozen else np.ones(count, dtype=np.bool_)


def _only(index: int, count: int) -> Bools:
    """True at `index` alone."""
    return np.asarray(np.arange(count) == index)


def _check_shapes(legal_ESO: Bools, fits_SK: Bools) -> None:
    for name, array, axes in (("legal_ESO", legal_ESO, 3), ("fits_SK", fits_SK, 2)):
        if array.ndim != axes or array.dtype != np.bool_:
            raise EsperError(
                f"masks: {name} is {array.dtype} of shape {array.shape}, "
                f"expected bool with {axes} axes"
            )
    slots, ops = legal_ESO.shape[1:]
    if ops != len(LifecycleOp) or slots != len(fits_SK):
        raise EsperError(
            f"masks: legal_ESO of shape {legal_ESO.shape}, expected "
            f"[E, {len(fits_SK)}, {len(LifecycleOp)}] with fits_SK of shape {fits_SK.shape}"
        )


def check_frozen(frozen: Mapping[ActionHead, int], blueprints: int) -> None:
    """Refuse a head that cannot be frozen, and an index that it does not have."""
    for head, index in frozen.items():
        name = ActionHead(head).name
        if head in NEVER_FROZEN:
            raise EsperError(f"frozen head {name}: only the heads after SLOT can be frozen")
        count = blueprints if head == ActionHead.BLUEPRINT else len(HEAD_CHOICES[head])
        if index not in range(count):
            raise EsperError(f"frozen head {name}: index {index}, valid are 0 to {count - 1}")
