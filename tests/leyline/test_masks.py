"""Masks: whatever can be reached leaves a choice; an empty mask is an error that names itself."""

from dataclasses import replace

import numpy as np
import pytest

from esper.leyline import ActionMasks, EsperError, LifecycleOp


@pytest.fixture(name="masks")
def all_legal(build) -> ActionMasks:
    """Everything is legal: 3 members, 2 slots, 2 blueprints."""
    return build(ActionMasks)


def cleared(array: np.ndarray, *at: object) -> np.ndarray:
    copy = array.copy()
    copy[at] = False
    return copy


def test_member_without_any_operation_is_refused(masks: ActionMasks):
    with pytest.raises(EsperError, match="member 1 has no legal operation"):
        replace(masks, op_EO=cleared(masks.op_EO, 1))


def test_operation_without_a_slot_is_refused(masks: ActionMasks):
    with pytest.raises(EsperError, match="member 2, PRUNE in no slot"):
        replace(masks, slot_EOS=cleared(masks.slot_EOS, 2, LifecycleOp.PRUNE))


def test_wait_needs_no_slot(masks: ActionMasks):
    replace(masks, slot_EOS=cleared(masks.slot_EOS, slice(None), LifecycleOp.WAIT))


def test_illegal_operation_needs_no_slot(masks: ActionMasks):
    at = (slice(None), LifecycleOp.PRUNE)
    replace(masks, op_EO=cleared(masks.op_EO, *at), slot_EOS=cleared(masks.slot_EOS, *at))


def test_stop_needs_no_slot(masks: ActionMasks):
    replace(masks, slot_EOS=cleared(masks.slot_EOS, slice(None), LifecycleOp.STOP))


@pytest.mark.parametrize("op", [LifecycleOp.GERMINATE, LifecycleOp.PLANT])
def test_slot_to_grow_in_needs_a_blueprint(masks: ActionMasks, op: LifecycleOp):
    """Of this member: another one's caps may leave it some."""
    (other,) = {LifecycleOp.GERMINATE, LifecycleOp.PLANT} - {op}
    masks = replace(masks, slot_EOS=cleared(masks.slot_EOS, slice(None), other, 1))
    barren = cleared(masks.blueprint_ESK, 2, 1)
    with pytest.raises(EsperError, match="no blueprint for slot 1 of member 2"):
        replace(masks, blueprint_ESK=barren)
    elsewhere = cleared(masks.slot_EOS, slice(None), op, 1)
    replace(masks, blueprint_ESK=barren, slot_EOS=elsewhere)


def test_head_without_a_choice_is_refused(masks: ActionMasks):
    with pytest.raises(EsperError, match="tempo_M allows nothing"):
        replace(masks, tempo_M=cleared(masks.tempo_M, slice(None)))
    frozen = cleared(masks.tempo_M, slice(1, None))
    assert replace(masks, tempo_M=frozen).tempo_M.sum() == 1


def test_wrong_number_of_choices_is_refused(build):
    with pytest.raises(EsperError, match=r"2 choices for TEMPO, there are 3 \(3, 5, 8\)"):
        build(ActionMasks, M=2)
