"""Pickles of CIFAR-10's kind are read exactly; whatever else is in one, nothing runs."""

import io
import os
import pickle
import pickletools
import struct
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_support import (
    array,
    cifar_pickle,
    made_up_batch,
    picture_names,
    text,
    unless_refused,
)
from esper.tasks.pickles import read_plain_pickle
from support import refused

PIXELS, LABELS = made_up_batch("data_batch_1", 3)
GOOD = cifar_pickle(PIXELS, LABELS)


def same(found: dict, wanted: dict) -> bool:
    return found.keys() == wanted.keys() and all(
        np.array_equal(found[key], wanted[key]) for key in wanted
    )


def test_a_batch_is_read_exactly():
    batch = read_plain_pickle(GOOD)
    assert (batch[b"data"] == PIXELS).all()
    assert batch[b"labels"] == LABELS.tolist()
    assert batch[b"batch_label"] == b"training batch 1 of 5"
    assert len(batch[b"filenames"]) == 3


def test_the_made_up_format_is_what_pythons_own_pickle_reads_the_same_way():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = pickle.loads(GOOD, encoding="bytes")
    assert same(read_plain_pickle(GOOD), wanted)


class Python2Pickler(pickle._Pickler):
    """Python's own pickler, with strings, arrays and names as Python 2 and its numpy had them."""

    dispatch = pickle._Pickler.dispatch.copy()

    def save_string(self, value: bytes) -> None:
        short = len(value) < 256
        self.write(b"U" + bytes([len(value)]) if short else b"T" + struct.pack("<i", len(value)))
        self.write(value)
        self.memoize(value)

    dispatch[bytes] = save_string

    def save_global(self, value: object, name: str | None = None) -> None:
        if value is not RECONSTRUCT:
            return super().save_global(value, name)
        self.write(b"cnumpy.core.multiarray\n_reconstruct\n")

    def reducer_override(self, value: object) -> object:
        if isinstance(value, np.ndarray):
            state = (1, value.shape, value.dtype, False, value.tobytes())
            return RECONSTRUCT, (np.ndarray, (0,), b"b"), state
        if isinstance(value, np.dtype):
            return np.dtype, (b"u1", 0, 1), (3, b"|", None, None, None, -1, -1, 0)
        return NotImplemented


RECONSTRUCT = np.zeros(0).__reduce__()[0]


def without_memo(content: bytes) -> bytes:
    """Nothing is recalled, so nothing need be stored: Python 3 stores more than Python 2 did."""
    assert not any("GET" in code.name for code, _, _ in pickletools.genops(content))
    return pickletools.optimize(content)


@pytest.mark.parametrize("count", [1, 2, 300, 1000, 1001, 2500])
def test_the_made_up_file_is_byte_for_byte_what_a_pickler_writes(count):
    """Groups of a thousand, one left over by itself, short and long memo places, all of it."""
    pixels, labels = made_up_batch("data_batch_2", count)
    batch = {
        b"batch_label": b"testing batch 1 of 1", b"labels": labels.tolist(), b"data": pixels,
        b"filenames": picture_names(count),
    }  # fmt: skip
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(batch)
    made_up = cifar_pickle(pixels, labels, b"testing batch 1 of 1")
    assert without_memo(made_up) == without_memo(file.getvalue())
    assert same(read_plain_pickle(made_up), batch)


def test_the_memo_is_numbered_from_one_without_a_gap():
    """As cPickle did; 300 names need places of both sizes."""
    file = cifar_pickle(*made_up_batch("data_batch_2", 300))
    places = [place for code, place, _ in pickletools.genops(file) if "PUT" in code.name]
    assert places == list(range(1, 0x0E + 300))


def test_values_may_come_from_the_memo():
    again = b"\x80\x02}q\x01(" + text(b"a") + b"q\x02]q\x03K\x07a" + text(b"b") + b"h\x03u."
    assert read_plain_pickle(again) == {b"a": [7], b"b": [7]}


# ---- hostile files ---------------------------------------------------------------------------


class Calls:
    """Pickles into a call of any function."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def inside(value: bytes) -> bytes:
    """A dict whose only value is made by these opcodes."""
    return b"\x80\x02}" + text(b"data") + value + b"s."


def hostile(sentinel: str) -> dict[str, bytes]:
    """Files that touch `sentinel` when they are unpickled, or break what unpickles them."""
    command = f"touch {sentinel}".encode()
    code = f"open({sentinel!r}, 'w').close()".encode()
    attribute = text(b"system")
    numpy_array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    by_protocol = {
        f"system, protocol {number}": pickle.dumps(
            {b"data": Calls(os.system, command.decode())}, number
        )
        for number in range(6)
    }
    return by_protocol | {
        "os.system": inside(b"cos\nsystem\n" + text(command) + b"\x85R"),
        "posix.system": inside(b"cposix\nsystem\n" + text(command) + b"\x85R"),
        "builtins.eval": inside(b"c__builtin__\neval\n" + text(code) + b"\x85R"),
        "builtins.exec": inside(b"cbuiltins\nexec\n" + text(code) + b"\x85R"),
        "getattr chain": inside(
            b"c__builtin__\ngetattr\nc__builtin__\n__import__\n" + text(b"os") + b"\x85R"
            + attribute + b"\x86R" + text(command) + b"\x85R"
        ),
        "dotted name": inside(b"cnumpy\nos.system\n" + text(command) + b"\x85R"),
        "numpy, but not an array": inside(b"cnumpy\nload\n" + text(sentinel.encode()) + b"\x85R"),
        "numpy's runstring": inside(b"cnumpy.testing\nrundocs\n" + text(code) + b"\x85R"),
        "stack global": b"\x80\x04}\x8c\x04data\x8c\x02os\x8c\x06system\x93\x8c\x01a\x85Rs.",
        "inst": inside(b"(" + text(command) + b"ios\nsystem\n"),
        "obj": inside(b"(cos\nsystem\n" + text(command) + b"o"),
        "newobj": inside(b"cos\nsystem\n" + text(command) + b"\x85\x81"),
        "extension": inside(b"\x82\x01"),
        "persistent id": inside(text(command) + b"Q"),
        "build on a dict": inside(b"}}" + text(b"__class__") + b"K\x02sb"),
        "build on a name": inside(b"cnumpy\ndtype\n}" + text(b"__setstate__") + b"cos\nsystem\nsb"),
        "build on an array with attributes": inside(numpy_array + b"}" + text(b"x") + b"K\x01sb"),
        "array called": inside(numpy_array + text(command) + b"\x85R"),
        "dtype called with a name": inside(b"cnumpy\ndtype\ncnumpy\nndarray\nK\x00K\x01\x87R"),
        "dtype of objects": inside(b"cnumpy\ndtype\n" + text(b"O8") + b"K\x00K\x01\x87R"),
        "reconstruct of another class": inside(
            b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\ndtype\nK\x00\x85U\x01b\x87R"
        ),
        "array without content": inside(numpy_array),
        "array filled twice": inside(array(PIXELS) + b"(K\x01K\x01K\x01\x86NU\x01atb"),
        "memo never stored": inside(b"h\x63"),
        "memo holds a mark": inside(b"(q\x01h\x01"),
        "name from the memo, called": inside(
            b"cnumpy\nndarray\nq\x01h\x01" + text(command) + b"\x85R"
        ),
        "dict that holds itself as key": b"\x80\x02}q\x01h\x01K\x01s.",
        "tuple of names as key": b"\x80\x02}cnumpy\nndarray\n\x85K\x01s.",
        "huge string": inside(b"T\xff\xff\xff\x7fabc"),
        "negative string": inside(b"T\xff\xff\xff\xffabc"),
        "huge string of 8 bytes": inside(b"\x8e" + struct.pack("<Q", 1 << 62)),
        "huge shape": inside(
            array(PIXELS).replace(struct.pack("<BH", 0x4D, 3072), b"J\xff\xff\xff\x7f")
        ),
        "huge memo place": inside(b"K\x01r\xff\xff\xff\xff") + b"x",
        "huge frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"}.",
        "huge whole number": inside(b"\x8b\xff\xff\xff\x7f" + b"\x01" * 9),
        "number in words": inside(b"I" + b"9" * 9000 + b"\n"),
        "endless name": inside(b"c" + b"a" * 100_000),
        "deep": b"\x80\x02}" + text(b"data") + b"K\x01" + b"\x85" * 100_000 + b"b.",
        "not a dict": b"\x80\x02]q\x01K\x01a.",
        "two values": b"\x80\x02}}.",
        "more behind the end": GOOD + GOOD,
        "no end": GOOD[:-1],
        "empty": b"",
        "stop at once": b".",
        "protocol 2 twice": b"\x80\x02" + GOOD,
        "text": b"hello, world",
    }  # fmt: skip


@pytest.mark.parametrize("kind", sorted(hostile("x")))
def test_a_hostile_file_runs_nothing_and_is_refused(kind, tmp_path):
    sentinel = tmp_path / "touched"
    line = refused(lambda: read_plain_pickle(hostile(str(sentinel))[kind]))
    assert len(line) < 400
    assert not sentinel.exists()


@pytest.mark.parametrize("kind", ["os.system", "builtins.eval", "builtins.exec", "inst", "obj"])
def test_the_hostile_files_would_run_under_pythons_own_pickle(kind, tmp_path):
    """So the sentinel above proves something."""
    sentinel = tmp_path / "touched"
    pickle.loads(hostile(str(sentinel))[kind])
    assert sentinel.exists()


def test_deep_values_that_are_not_looked_at_do_no_harm():
    deep = b"\x80\x02}" + text(b"a") + b"K\x01" + b"\x85" * 200_000 + b"s."
    assert read_plain_pickle(deep).keys() == {b"a"}


def test_memory_stays_in_proportion_to_the_file():
    """References are stored again and again, their content once."""
    import tracemalloc

    part = text(b"x" * 60_000) + b"q\x01"
    many = b"\x80\x02}(" + text(b"a") + b"](" + part + b"h\x01" * 50_000 + b"eu."
    tracemalloc.start()
    found = read_plain_pickle(many)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found[b"a"]) == 50_001
    assert peak < 20 * len(many)


# ---- damage ----------------------------------------------------------------------------------


def read_or_none(content: bytes) -> dict | None:
    return unless_refused(lambda: read_plain_pickle(content))


@given(st.binary(max_size=300))
def test_random_bytes_are_refused_or_a_dict(content):
    assert isinstance(read_or_none(content), dict | None)


OPCODES = b"".join(code.code.encode("latin-1") for code in pickletools.opcodes)


@given(
    st.lists(st.sampled_from([bytes([code]) for code in OPCODES] + [b"\x01", b"q"]), max_size=80)
)
@settings(max_examples=300)
def test_random_opcodes_are_refused_or_a_dict(codes):
    assert isinstance(read_or_none(b"\x80\x02}" + b"".join(codes) + b"."), dict | None)


@given(st.integers(0, len(GOOD) - 1))
def test_every_truncation_is_refused(length):
    assert read_or_none(GOOD[:length]) is None


@given(st.integers(0, len(GOOD) * 8 - 1))
@settings(max_examples=300)
def test_a_flipped_bit_is_refused_or_leaves_a_plain_dict(bit):
    changed = bytearray(GOOD)
    changed[bit // 8] ^= 1 << bit % 8
    found = read_or_none(bytes(changed))
    for value in (found or {}).values():
        assert isinstance(value, np.ndarray | list | bytes | int | tuple | dict | None)


HEAD = GOOD.index(PIXELS.tobytes())


@given(st.integers(0, HEAD * 8 - 1))
@settings(max_examples=300)
def test_a_flipped_bit_before_the_pixels_is_refused_or_leaves_a_plain_dict(bit):
    changed = bytearray(GOOD)
    changed[bit // 8] ^= 1 << bit % 8
    read_or_none(bytes(changed))
