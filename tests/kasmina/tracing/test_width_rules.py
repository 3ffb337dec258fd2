"""Tables of widths: in closed form, divisible where they must be, nearest to the factor."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from esper.kasmina.tracing.resizing import sizes_for
from esper.kasmina.tracing.width_rules import rules
from esper.kasmina.tracing.widths import scaled_model


def tables(widths, factor, divided=frozenset(), heads=frozenset()):
    return [rule.table for rule in rules(widths, factor, set(divided), set(heads))]


def test_a_common_unit_is_scaled_first_where_that_is_close_to_the_factor():
    assert tables([10, 20], 1.25)[0] == {10: 12, 20: 24}
    assert tables([10, 20], 1.25)[1] == {10: 12, 20: 25}


def test_each_width_is_rounded_for_itself_where_the_unit_is_too_coarse():
    assert tables([4, 6], 1.3) == [{4: 5, 6: 8}, {4: 5, 6: 8}, {4: 6, 6: 9}]


def test_multiples_follow_the_smallest_width_that_divides_them():
    assert tables([4, 8, 24], 1.3)[2] == {4: 5, 8: 10, 24: 30}


def test_no_width_becomes_nothing():
    assert all(min(table.values()) >= 1 for table in tables([4, 6, 9], 0.01))


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.integers(1, 6),
    st.floats(0.2, 4.0),
)
def test_what_must_divide_a_width_divides_the_new_one(parts, number, factor):
    widths = [part * number for part in parts]
    divided = {(width, number) for width in widths}
    for table in tables(widths, factor, divided):
        assert all(new % number == 0 for new in table.values())


def test_heads_of_one_size_grow_in_number():
    *_, last = rules([16], 1.5, {(16, 4)}, {4})
    assert (last.table, last.heads) == ({16: 24}, {4: 6})
    *_, last = rules([16], 1.2, {(16, 4)}, {4})
    assert (last.table, last.heads) == ({16: 20}, {4: 5})


def test_groups_divide_their_channels():
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.GroupNorm(3, 6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 4, 2)
    )
    scaled = scaled_model(model, torch.zeros(2, 1, 4, 4), 1.34, slots=1)
    assert scaled.size.params == 9 * 9 + 9 + 2 * 9 + 9 * 4 * 2 + 2


@pytest.mark.parametrize("multiplier", [1, 2])
def test_a_depthwise_convolution_keeps_its_multiplier(multiplier):
    layer = nn.Conv2d(4, 4 * multiplier, 3, groups=4)
    found = sizes_for(layer, [torch.zeros(1, 6, 5, 5)], lambda n: 99, lambda n: n)
    assert found == {"in_channels": 6, "out_channels": 6 * multiplier, "groups": 6}
