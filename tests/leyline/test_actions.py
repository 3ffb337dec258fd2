"""Actions: the heads of the design count, bad values are refused in one line, good ones read."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline import (
    ActionHead,
    ActionOutcome,
    ActionSpec,
    AlphaCurve,
    BlendStyle,
    EsperError,
    LifecycleOp,
    VetoReason,
)
from esper.leyline.actions import (
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    HEAD_CHOICES,
    HEADS_BY_OP,
    NO_SLOT,
    TEMPOS,
)

SLOTS = ["r0c0", "r0c1", "r0c2"]
BLUEPRINTS = ["norm", "conv_light"]

TABLE = """
    WAIT             | op
    GERMINATE        | op slot blueprint style tempo alpha_target alpha_curve
    ADVANCE          | op slot
    FOSSILIZE        | op slot
    SET_ALPHA_TARGET | op slot alpha_target alpha_speed alpha_curve
    PRUNE            | op slot alpha_speed alpha_curve
    PLANT            | op slot blueprint
    STOP             | op
    CLOSE            | op slot
    RESTART          | op
"""


def test_heads_that_count_are_those_of_the_design():
    rows = (line.split("|") for line in TABLE.strip().splitlines())
    design = {op.strip(): set(heads.split()) for op, heads in rows}
    ours = {op.name: {h.name.lower() for h in heads} for op, heads in HEADS_BY_OP.items()}
    assert ours == design


def test_heads_are_sampled_in_the_order_of_the_design():
    order = "op slot blueprint style tempo alpha_target alpha_speed alpha_curve"
    assert " ".join(head.name.lower() for head in ActionHead) == order
    assert " ".join(field.name for field in fields(ActionSpec)) == order


def test_choices_are_those_of_the_design():
    assert TEMPOS == (3, 5, 8)
    assert ALPHA_TARGETS == (0.5, 0.7, 1.0)
    assert ALPHA_SPEEDS == (0, 3, 5, 8)
    assert HEAD_CHOICES[ActionHead.STYLE] == ("ADD", "MULTIPLY", "GATE")
    assert set(HEAD_CHOICES) == set(ActionHead) - {ActionHead.SLOT, ActionHead.BLUEPRINT}


@pytest.mark.parametrize("enum", [LifecycleOp, BlendStyle, AlphaCurve, ActionHead, VetoReason])
def test_codes_are_indices(enum: type):
    """Arrays of codes index tables, so they count from 0 without gaps."""
    assert [member.value for member in enum] == list(range(len(enum)))


def test_wait_is_legal_for_everyone():
    waiting = ActionSpec.wait(5)
    assert waiting.members == 5
    assert (waiting.op == LifecycleOp.WAIT).all()
    assert ActionOutcome.waited(5).executed.all()
    assert (ActionOutcome.waited(5).target_slot == NO_SLOT).all()


@given(
    head=st.sampled_from(list(ActionHead)),
    member=st.integers(0, 3),
    beyond=st.integers(0, 100),
    below=st.booleans(),
)
def test_value_out_of_range_is_refused_in_one_line(
    head: ActionHead, member: int, beyond: int, below: bool
):
    unbounded = head not in HEAD_CHOICES
    bad = -1 - beyond if below or unbounded else len(HEAD_CHOICES[head]) + beyond
    values = np.zeros(4, dtype=np.int64)
    values[member] = bad
    with pytest.raises(EsperError) as caught:
        replace(ActionSpec.wait(4), **{head.name.lower(): values})
    line = str(caught.value)
    assert "\n" not in line
    for named in (f"member {member}", head.name.lower(), str(bad)):
        assert named in line


@given(st.data())
def test_every_value_in_range_is_taken(data: st.DataObject):
    sizes = {head: len(HEAD_CHOICES.get(head, SLOTS)) for head in ActionHead}
    drawn = [
        data.draw(st.lists(st.integers(0, size - 1), min_size=3, max_size=3))
        for size in sizes.values()
    ]
    spec = ActionSpec(*(np.array(values) for values in drawn))
    for head, values in zip(ActionHead, drawn, strict=True):
        assert spec.of(head).tolist() == values


def test_unequal_lengths_are_refused():
    with pytest.raises(EsperError, match=r"ActionSpec\.tempo: shape \(2,\).*3 members"):
        replace(ActionSpec.wait(3), tempo=np.zeros(2, dtype=np.int64))


def test_fractions_are_refused():
    with pytest.raises(EsperError, match="slot has dtype float64"):
        replace(ActionSpec.wait(3), slot=np.zeros(3))


@pytest.mark.parametrize("members", [0, -1])
def test_no_members_is_refused(members: int):
    with pytest.raises(EsperError, match=f"{members} members"):
        ActionSpec.wait(members)


def test_describe_names_the_heads_that_count():
    every_op = np.arange(len(LifecycleOp))
    ones = np.ones(len(LifecycleOp), dtype=np.int64)
    spec = ActionSpec(every_op, ones, ones, ones, ones, ones, ones, ones)
    assert [spec.describe(i, SLOTS, BLUEPRINTS) for i in every_op] == [
        "WAIT",
        "GERMINATE r0c1 conv_light style=MULTIPLY tempo=5 alpha_target=0.7 alpha_curve=COSINE",
        "ADVANCE r0c1",
        "SET_ALPHA_TARGET r0c1 alpha_target=0.7 alpha_speed=3 alpha_curve=COSINE",
        "PRUNE r0c1 alpha_speed=3 alpha_curve=COSINE",
        "FOSSILIZE r0c1",
        "PLANT r0c1 conv_light",
        "STOP",
        "CLOSE r0c1",
        "RESTART",
    ]


def test_describe_refuses_a_slot_the_host_does_not_have():
    one = np.array([LifecycleOp.ADVANCE])
    spec = replace(ActionSpec.wait(1), op=one, slot=np.array([3]))
    with pytest.raises(EsperError, match="member 0: slot 3, but there are 3"):
        spec.describe(0, SLOTS, BLUEPRINTS)


def test_outcome_is_executed_exactly_where_nothing_was_against_it():
    codes = np.array(list(VetoReason), dtype=np.int8)
    nothing = np.zeros_like(codes)
    outcome = ActionOutcome(codes, nothing.astype(np.int64), nothing, nothing)
    assert outcome.executed.tolist() == [reason is VetoReason.NONE for reason in VetoReason]
