"""Documents that carry their checksum, and what is not taken for JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.storage.sealed_json import (
    MAX_DEPTH,
    is_sealed,
    parse_json,
    require_shallow,
    seal,
    unseal,
)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)  # fmt: skip
documents = st.dictionaries(st.text(max_size=5).filter(lambda key: key != "checksum"), values)


@given(documents)
def test_what_was_sealed_comes_back_with_its_seal_right(document):
    read = parse_json(json.dumps(seal(document)).encode())
    assert is_sealed(read)
    assert unseal(read) == document
    assert unseal(document) == document, "documents of an older Esper carry no checksum"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": 1e309}', "1e309 is too large a number"),
        (b'{"a": -1e400}', "-1e400 is too large a number"),
        (b'{"a": {"b": 1, "c": 2, "b": 3}}', "'b' appears twice"),
        (b"[" * 100_000, "nested"),
        (b"[" * 200 + b"]" * 200, f"nested more than {MAX_DEPTH} levels"),
        (b'{"a":' * 80 + b"1" + b"}" * 80, f"nested more than {MAX_DEPTH} levels"),
        (b'{"a": "\xff"}', "utf-8"),
        (b'{"a": ' + b"9" * 5000 + b"}", "digits"),
        (b"", "Expecting value"),
    ],
    ids=lambda it: it[:20].decode("latin-1") if isinstance(it, bytes) else it[:12],
)
def test_what_is_no_json_of_ours_is_a_value_error(text, why):
    with pytest.raises(ValueError, match=why):
        parse_json(text)


def test_wide_documents_are_not_deep():
    wide = [[n] for n in range(1000)]
    assert parse_json(json.dumps(wide).encode()) == wide
    deep: object = 1
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    require_shallow(deep)
    with pytest.raises(ValueError, match="levels"):
        require_shallow([[deep]])
