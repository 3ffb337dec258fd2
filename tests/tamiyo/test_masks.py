"""Masks say exactly what the lifecycle allows, for every member, and what was frozen."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from esper.leyline import ActionHead, ActionMasks, LifecycleOp, SeedStage
from esper.leyline.actions import HEAD_CHOICES, HEADS_BY_OP
from esper.tamiyo import build_masks
from esper.tamiyo.masks import forced_members
from support import bring_to, make_population, refused

OPS = len(LifecycleOp)
FIXED_HEADS = {
    ActionHead.STYLE: "style_Y",
    ActionHead.TEMPO: "tempo_M",
    ActionHead.ALPHA_TARGET: "alpha_target_T",
    ActionHead.ALPHA_SPEED: "alpha_speed_V",
    ActionHead.ALPHA_CURVE: "alpha_curve_U",
}


@st.composite
def legal_and_fits(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int | None]:
    """Any legality whatever, any fits, and a blueprint to freeze or None."""
    members, slots, kinds = (draw(st.integers(1, 4)) for _ in range(3))
    legal = draw(npst.arrays(np.bool_, (members, slots, OPS)))
    fits = draw(npst.arrays(np.bool_, (members, slots, kinds)))
    return legal, fits, draw(st.none() | st.integers(0, kinds - 1))


@given(legal_and_fits())
@settings(max_examples=60)
def test_masks_agree_with_loops_over_members(case):
    legal, fits, only = case
    given_legal, given_fits = legal.copy(), fits.copy()
    masks = build_masks(legal, fits, None if only is None else {ActionHead.BLUEPRINT: only})
    members, slots = legal.shape[:2]
    for e, s, k in np.ndindex(*fits.shape):
        assert masks.blueprint_ESK[e, s, k] == (fits[e, s, k] and only in (None, k))
    for e in range(members):
        for op in LifecycleOp:
            allowed = [bool(legal[e, s, op]) for s in range(slots)]
            if op in (LifecycleOp.GERMINATE, LifecycleOp.PLANT):
                allowed = [a and any(masks.blueprint_ESK[e, s]) for s, a in enumerate(allowed)]
            if op is not LifecycleOp.WAIT:
                assert masks.slot_EOS[e, op].tolist() == allowed
            assert masks.op_EO[e, op] == (op is LifecycleOp.WAIT or any(allowed))
    assert (legal == given_legal).all()
    assert (fits == given_fits).all()


@given(st.dictionaries(st.sampled_from(sorted(FIXED_HEADS)), st.integers(0, 2)))
def test_frozen_head_has_one_choice(frozen):
    masks = build_masks(np.ones((2, 2, OPS), np.bool_), np.ones((2, 2, 3), np.bool_), frozen)
    for head, field in FIXED_HEADS.items():
        choices = range(len(HEAD_CHOICES[head]))
        expected = [head not in frozen or choice == frozen[head] for choice in choices]
        assert getattr(masks, field).tolist() == expected


def test_masks_follow_a_real_lifecycle():
    """Members in different stages: every entry is the lifecycle's own."""
    population = make_population(4)
    bring_to(population, SeedStage.HOLDING, [1], "r0c1")
    bring_to(population, SeedStage.TRAINING, [2], "r0c0")
    bring_to(population, SeedStage.FOSSILIZED, [3], "r0c2")
    life = population.lifecycle
    masks = build_masks(life.legal_ops(), life.fits_ESK())
    legal = life.legal_ops()
    assert (masks.blueprint_ESK == life.fits_SK).all()
    assert masks.op_EO[1].tolist() == [True, True, False, True, True, True] + [False] * 4
    assert np.flatnonzero(masks.slot_EOS[1, LifecycleOp.FOSSILIZE]).tolist() == [1]
    assert not masks.op_EO[0, LifecycleOp.PRUNE]
    for e, op, s in np.ndindex(*masks.slot_EOS.shape):
        assert masks.slot_EOS[e, op, s] == legal[e, s, op]


def joint_actions(masks: ActionMasks, member: int) -> int:
    """Legal actions of a member, counted one by one."""
    total = 0
    for op in np.flatnonzero(masks.op_EO[member]):
        heads = HEADS_BY_OP[LifecycleOp(op)]
        fixed = [getattr(masks, name).sum() for head, name in FIXED_HEADS.items() if head in heads]
        slots = np.flatnonzero(masks.slot_EOS[member, op]) if ActionHead.SLOT in heads else [None]
        for slot in slots:
            kinds = masks.blueprint_ESK[member, slot].sum() if ActionHead.BLUEPRINT in heads else 1
            total += int(kinds * np.prod(fixed))
    return total


@given(legal_and_fits(), st.integers(0, len(FIXED_HEADS)), st.booleans())
@settings(max_examples=80)
def test_forced_are_members_with_one_legal_action(case, free, may_wait):
    """`free` of the heads that say how are left open; a host need not offer WAIT."""
    legal, fits, only = case
    frozen = dict.fromkeys(sorted(FIXED_HEADS)[free:], 0)
    frozen |= {} if only is None else {ActionHead.BLUEPRINT: only}
    masks = build_masks(legal, fits, frozen)
    op_EO = masks.op_EO.copy()
    op_EO[:, LifecycleOp.WAIT] = may_wait | ~op_EO[:, 1:].any(axis=1)
    masks = replace(masks, op_EO=op_EO)
    counted = [joint_actions(masks, member) for member in range(len(legal))]
    assert forced_members(masks).tolist() == [count == 1 for count in counted]


def test_a_lone_way_to_grow_is_forced_and_a_second_one_is_not():
    """The one legal operation is GERMINATE, in one slot; every other head is frozen."""
    legal = np.zeros((1, 2, OPS), np.bool_)
    legal[0, 1, LifecycleOp.GERMINATE] = True
    frozen = dict.fromkeys(FIXED_HEADS, 0)

    def forced(fits: list[bool], frozen: dict[ActionHead, int]) -> bool:
        masks = build_masks(legal, np.array([[[True, True], fits]]), frozen)
        op_EO = masks.op_EO.copy()
        op_EO[:, LifecycleOp.WAIT] = False
        return bool(forced_members(replace(masks, op_EO=op_EO))[0])

    assert forced([True, False], frozen)
    assert not forced([True, True], frozen), "two blueprints fit"
    speed = {ActionHead.ALPHA_SPEED}
    assert forced([True, False], {h: 0 for h in frozen if h not in speed}), "does not count"
    tempo = {ActionHead.TEMPO}
    assert not forced([True, False], {h: 0 for h in frozen if h not in tempo}), "counts"


def test_frozen_blueprint_closes_slots_it_does_not_fit():
    """Other operations there stay as they were."""
    legal = np.ones((2, 3, OPS), dtype=np.bool_)
    fits = np.array([[[True, True], [True, False], [False, True]]] * 2)
    masks = build_masks(legal, fits, {ActionHead.BLUEPRINT: 1})
    for op in (LifecycleOp.GERMINATE, LifecycleOp.PLANT):
        assert masks.slot_EOS[:, op].tolist() == [[True, False, True]] * 2
    assert masks.slot_EOS[:, LifecycleOp.PRUNE].all()
    none = build_masks(legal, np.array([[[True, False]] * 3] * 2), {ActionHead.BLUEPRINT: 1})
    assert not none.op_EO[:, LifecycleOp.GERMINATE].any()


def test_host_without_slots_can_wait():
    masks = build_masks(np.ones((2, 0, OPS), np.bool_), np.ones((2, 0, 3), np.bool_))
    assert masks.op_EO.tolist() == [[True] + [False] * (OPS - 1)] * 2
    assert forced_members(masks).all()


@pytest.mark.parametrize(
    ("frozen", "named"),
    [
        ({ActionHead.OP: 0}, "OP"),
        ({ActionHead.SLOT: 0}, "SLOT"),
        ({ActionHead.TEMPO: 3}, "TEMPO: index 3, valid are 0 to 2"),
        ({ActionHead.BLUEPRINT: -1}, "BLUEPRINT: index -1, valid are 0 to 1"),
        ({ActionHead.BLUEPRINT: 0.5}, "index 0.5"),
    ],
)
def test_wrong_frozen_heads_are_refused_in_one_line(frozen, named: str):
    legal, fits = np.ones((1, 2, OPS), np.bool_), np.ones((1, 2, 2), np.bool_)
    assert named in refused(lambda: build_masks(legal, fits, frozen))
