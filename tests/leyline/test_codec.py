"""Records come back as they were written; what lacks a field or has an unknown one is refused."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import pytest

from esper.leyline import EsperError
from esper.leyline.codec import read_record, to_json


@dataclass(frozen=True)
class Inner:
    old: int
    new: float = 0.5


@dataclass(frozen=True)
class Outer:
    name: str
    seed: int = 0
    inner: Inner = field(default_factory=lambda: Inner(7))
    parts: tuple[Inner, ...] = ()
    limit: int | None = 3


WRITTEN = Outer("a", 4, Inner(1, 2.0), (Inner(5, 6.0),), None)


def without(*names: str) -> dict:
    return {name: value for name, value in to_json(WRITTEN).items() if name not in names}


def test_a_record_comes_back_as_it_was_written():
    assert read_record(Outer, to_json(WRITTEN), "x.json") == WRITTEN


@pytest.mark.parametrize("name", [it.name for it in fields(Outer)])
def test_no_default_takes_the_place_of_a_field_that_is_missing(name):
    with pytest.raises(EsperError) as caught:
        read_record(Outer, without(name), "x.json")
    assert str(caught.value) == f"x.json: field {name!r} is missing"


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (without() | {"inner": {"new": 1.0}}, "x.json.inner: field 'old' is missing"),
        (without() | {"parts": [{"old": 1}]}, "x.json.parts[0]: field 'new' is missing"),
        (
            without("limit") | {"limt": 3},
            "unknown field 'limt' in x.json: did you mean 'limit'? "
            "valid: name, seed, inner, parts, limit",
        ),
        (without() | {"limit": "3"}, "x.json.limit: '3', expected int"),
        (without() | {"inner": None}, "x.json.inner: None, expected dict"),
    ],
)
def test_what_esper_did_not_write_is_refused_in_one_line(data, line):
    with pytest.raises(EsperError) as caught:
        read_record(Outer, data, "x.json")
    assert str(caught.value) == line
