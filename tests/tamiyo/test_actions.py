"""Sampled indices become the action they spell."""

import numpy as np
import pytest

from esper.leyline import ActionHead, LifecycleOp
from esper.leyline.actions import HEAD_CHOICES, HEADS_BY_OP
from esper.tamiyo import parse_sampled_action
from esper.tamiyo.actions import HEAD_USED_OA
from support import refused


def test_columns_are_in_head_order():
    """Every head gets values no other head holds in that place."""
    rng = np.random.default_rng(0)
    sizes = [len(HEAD_CHOICES.get(head, range(40))) for head in ActionHead]
    heads_EA = rng.integers(0, sizes, size=(64, len(ActionHead)))
    spec = parse_sampled_action(heads_EA)
    for column, head in enumerate(ActionHead):
        assert spec.of(head).tolist() == heads_EA[:, column].tolist()


def test_result_does_not_alias_the_sample():
    heads_EA = np.zeros((2, len(ActionHead)), dtype=np.int64)
    spec = parse_sampled_action(heads_EA)
    heads_EA[:] = 1
    assert spec.op.tolist() == [0, 0]


def test_counting_heads_are_those_of_the_table():
    for op in LifecycleOp:
        assert set(np.flatnonzero(HEAD_USED_OA[op])) == {int(head) for head in HEADS_BY_OP[op]}


@pytest.mark.parametrize(
    ("heads_EA", "named"),
    [
        (np.zeros((2, 8)), "float64"),
        (np.full((1, 8), 10), "op 10"),
        (np.array([[1, -1, 0, 0, 0, 0, 0, 0]]), "slot -1"),
    ],
)
def test_wrong_samples_are_refused_in_one_line(heads_EA: np.ndarray, named: str):
    assert named in refused(lambda: parse_sampled_action(heads_EA))
