"""Slot ids: every id is read back as it was written, and nothing else is an id."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline import EsperError, InjectionSpec
from esper.leyline.slots import parse_slot_id, slot_id


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_slot_id_round_trip(row: int, col: int):
    assert parse_slot_id(slot_id(row, col)) == (row, col)


@given(st.text(max_size=8) | st.from_regex(r"\Ar\d+c\d+\Z"))
def test_only_what_slot_id_writes_is_read(text: str):
    try:
        read = parse_slot_id(text)
    except EsperError:
        return
    assert slot_id(*read) == text


@pytest.mark.parametrize("text", ["r00c1", "r0c01", "r-1c0", "R0c0", "r0c0 ", "r0c0\n", "r1c1٣"])
def test_near_misses_are_refused(text: str):
    with pytest.raises(EsperError, match="expected r<row>c<col>"):
        parse_slot_id(text)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"slot_id": "x"}, "'x'"),
        ({"channels": 0}, "channels 0"),
        ({"position": -1}, "position -1"),
    ],
)
def test_injection_spec_refuses_what_no_host_can_offer(fields: dict[str, object], named: str):
    valid = {"slot_id": "r0c0", "channels": 8, "position": 0, "surface": "pre_pool"}
    InjectionSpec(**valid)
    with pytest.raises(EsperError, match=named):
        InjectionSpec(**{**valid, **fields})
