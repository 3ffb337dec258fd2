"""Records come back as they were written; older ones with the defaults of what came since."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline import EsperError
from esper.leyline.codec import ALWAYS_WRITTEN, default_of, read_record, to_json


@dataclass(frozen=True)
class Inner:
    old: int
    new: float = 0.5


@dataclass(frozen=True)
class Outer:
    name: str
    """There is no record without it."""
    seed: int = field(default=0, metadata=ALWAYS_WRITTEN)
    """Nor without this."""
    inner: Inner = field(default_factory=lambda: Inner(7))
    parts: tuple[Inner, ...] = ()
    limit: int | None = 3


WRITTEN = Outer("a", 4, Inner(1, 2.0), (Inner(5, 6.0),), None)
LATER = ("inner", "parts", "limit")
"""Fields that came later."""


def without(*names: str) -> dict:
    return {name: value for name, value in to_json(WRITTEN).items() if name not in names}


@given(missing=st.sets(st.sampled_from(LATER)))
def test_what_an_older_record_lacks_takes_its_default_and_nothing_else_does(missing):
    read = read_record(Outer, without(*missing), "x.json")
    fresh = Outer("fresh")
    for name in ("name", "seed", *LATER):
        assert getattr(read, name) == getattr(fresh if name in missing else WRITTEN, name)


def test_records_in_records_take_theirs():
    data = without() | {"inner": {"old": 1}, "parts": [{"old": 2}, {"old": 3, "new": 4.0}]}
    read = read_record(Outer, data, "x.json")
    assert read.inner == Inner(1, 0.5)
    assert read.parts == (Inner(2, 0.5), Inner(3, 4.0))


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (without("name"), "x.json: field 'name' is missing"),
        (without("seed"), "x.json: field 'seed' is missing"),
        (without() | {"inner": {"new": 1.0}}, "x.json.inner: field 'old' is missing"),
        (without() | {"parts": [{}]}, "x.json.parts[0]: field 'old' is missing"),
        (
            without("limit") | {"limt": 3},
            "unknown field 'limt' in x.json: did you mean 'limit'? "
            "valid: name, seed, inner, parts, limit",
        ),
        (without("inner") | {"limit": "3"}, "x.json.limit: '3', expected int"),
        (without() | {"inner": None}, "x.json.inner: None, expected dict"),
    ],
)
def test_what_no_older_esper_wrote_is_refused_in_one_line(data, line):
    with pytest.raises(EsperError) as caught:
        read_record(Outer, data, "x.json")
    assert str(caught.value) == line


def test_a_default_is_for_older_records_unless_the_field_is_always_written():
    found = {it.name: default_of(it) for it in fields(Outer)}
    assert found == {"name": MISSING, "seed": MISSING, "inner": Inner(7), "parts": (), "limit": 3}
    assert Outer("b").seed == 0, "those who make a record need not name it"
