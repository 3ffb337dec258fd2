"""Parse CIFAR-10's pickles without executing them.

The files of `cifar-10-batches-py` were written by Python 2 (protocol 2). They hold a dict of byte
strings, lists of small integers and one array of bytes, and the stack machine below builds only
that. The three globals such a file names become enum members: nothing is imported or called. Any
other opcode raises. Claimed sizes are checked against the rest of the file before anything is
allocated, so memory use stays proportional to the file.
"""

from __future__ import annotations

import enum
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from esper.leyline.errors import EsperError

MAX_PROTOCOL: Final = 2


class Name(enum.Enum):
    """A global that a file may name; a constant that cannot be called."""

    RECONSTRUCT = "numpy.core.multiarray _reconstruct"
    NDARRAY = "numpy ndarray"
    DTYPE = "numpy dtype"


class _Mark(enum.Enum):
    MARK = enum.auto()


@dataclass(slots=True, eq=False)
class _ByteType:
    """numpy's dtype `u1`, the only one supported."""


@dataclass(slots=True, eq=False)
class _Array:
    """An array of bytes, possibly not filled yet."""

    shape: tuple[int, ...] | None = None
    content: bytes = b""


_EMPTY_ARRAY: Final = (Name.NDARRAY, (0,), b"b")
_BYTE_TYPE: Final = (b"u1", 0, 1)
_BYTE_TYPE_STATE: Final = (3, b"|", None, None, None, -1, -1, 0)


class PickleReader:
    """Stack machine for the bytes of one file."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def read(self) -> dict[bytes, Any]:
        """Return the content of the file, with numpy arrays."""
        while (code := self._take(1)) != pickle.STOP:
            step = _STEPS.get(code)
            if step is None:
                raise EsperError(f"pickle opcode {code!r} at byte {self._at - 1} is not allowed")
            step(self)
        result = self._pop()
        if not isinstance(result, dict) or self._stack or self._at != len(self._content):
            raise EsperError(f"the pickle ends at byte {self._at} without one complete dict")
        return {key: _to_numpy(value) for key, value in result.items()}

    # ---- bytes ----------------------------------------------------------------------------

    def _take(self, count: int) -> bytes:
        if not 0 <= count <= len(self._content) - self._at:
            raise EsperError(
                f"the pickle asks for {count:,} bytes at byte {self._at}, "
                f"{len(self._content) - self._at:,} are left"
            )
        self._at += count
        return self._content[self._at - count : self._at]

    def _number(self, size: int, signed: bool = False) -> int:
        return int.from_bytes(self._take(size), "little", signed=signed)

    def _line(self) -> bytes:
        end = self._content.find(b"\n", self._at, self._at + 200)
        line = self._take(max(end, self._at) - self._at)
        self._take(1)
        return line

    # ---- the stack ------------------------------------------------------------------------

    def _pop(self) -> Any:
        if not self._stack or self._stack[-1] is _Mark.MARK:
            raise EsperError(f"the pickle pops from an empty stack at byte {self._at - 1}")
        return self._stack.pop()

    def _pop_to_mark(self) -> list[Any]:
        for place in range(len(self._stack) - 1, -1, -1):
            if self._stack[place] is _Mark.MARK:
                items = self._stack[place + 1 :]
                del self._stack[place:]
                return items
        raise EsperError(f"the pickle closes a group at byte {self._at - 1} that was never opened")

    def _pop_tuple(self, count: int) -> None:
        self._stack.append(tuple(reversed([self._pop() for _ in range(count)])))

    def _top(self, kind: type[Any]) -> Any:
        if not self._stack or not isinstance(self._stack[-1], kind):
            raise EsperError(f"the pickle fills an object that is not a {kind.__name__}")
        return self._stack[-1]

    # ---- opcodes --------------------------------------------------------------------------

    def _protocol(self) -> None:
        version = self._number(1)
        if version > MAX_PROTOCOL or self._at != 2:
            raise EsperError(f"pickle protocol {version} at byte {self._at - 2}, expected 2 at 0")

    def _remember(self, place: int) -> None:
        value = self._pop()
        self._stack.append(value)
        self._memo[place] = value

    def _recall(self, place: int) -> None:
        if place not in self._memo:
            raise EsperError(f"the pickle recalls value {place}, which it never stored")
        self._stack.append(self._memo[place])

    def _text(self) -> None:
        self._stack.append(self._take(self._number(4)))

    def _items(self, pairs: list[Any]) -> None:
        target = self._top(dict)
        if len(pairs) % 2:
            raise EsperError("the pickle gives a key without its value")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if not isinstance(key, bytes):
                raise EsperError(f"the pickle has a key of type {type(key).__name__}, not a string")
            target[key] = value

    def _item(self) -> None:
        value, key = self._pop(), self._pop()
        self._items([key, value])

    def _append(self) -> None:
        value = self._pop()
        self._top(list).append(value)

    def _appends(self) -> None:
        values = self._pop_to_mark()
        self._top(list).extend(values)

    def _name(self) -> None:
        wanted = (self._line() + b" " + self._line()).decode("latin-1")
        try:
            self._stack.append(Name(wanted))
        except ValueError:
            raise EsperError(f"the pickle asks for {wanted!r}, which is not allowed") from None

    def _reduce(self) -> None:
        arguments, name = self._pop(), self._pop()
        if name is Name.RECONSTRUCT and _same(arguments, _EMPTY_ARRAY):
            self._stack.append(_Array())
        elif name is Name.DTYPE and _same(arguments, _BYTE_TYPE):
            self._stack.append(_ByteType())
        else:
            raise EsperError("the pickle makes something other than an array of bytes")

    def _build(self) -> None:
        state = self._pop()
        target = self._stack[-1] if self._stack else None
        if isinstance(target, _ByteType) and _same(state, _BYTE_TYPE_STATE):
            return
        if not isinstance(target, _Array) or target.shape is not None:
            raise EsperError("the pickle sets the state of something other than a new array")
        target.shape, target.content = _array_state(state)


def _same(value: object, wanted: tuple[object, ...]) -> bool:
    return isinstance(value, tuple) and value == wanted


def _array_state(state: object) -> tuple[tuple[int, ...], bytes]:
    """Return shape and bytes from (version, shape, dtype, fortran order, bytes)."""
    if isinstance(state, tuple) and len(state) == 5:
        version, shape, dtype, fortran, content = state
        if (
            version == 1
            and isinstance(dtype, _ByteType)
            and fortran is False
            and isinstance(content, bytes)
            and isinstance(shape, tuple)
            and len(shape) <= 4
            and all(type(side) is int and 0 < side <= len(content) for side in shape)
            and _product(shape) == len(content)
        ):
            return shape, content
    raise EsperError("the pickle's array is not a byte array whose shape fits its content")


def _product(shape: tuple[int, ...]) -> int:
    out = 1
    for side in shape:
        out *= side
    return out


def _to_numpy(value: Any) -> Any:
    if not isinstance(value, _Array):
        return value
    if value.shape is None:
        raise EsperError("the pickle's array has no content")
    array: npt.NDArray[np.uint8] = np.frombuffer(value.content, dtype=np.uint8)
    return array.reshape(value.shape)


_STEPS: Final[dict[bytes, Callable[[PickleReader], None]]] = {
    pickle.PROTO: PickleReader._protocol,
    pickle.MARK: lambda r: r._stack.append(_Mark.MARK),
    pickle.EMPTY_DICT: lambda r: r._stack.append({}),
    pickle.EMPTY_LIST: lambda r: r._stack.append([]),
    pickle.NONE: lambda r: r._stack.append(None),
    pickle.NEWFALSE: lambda r: r._stack.append(False),
    pickle.BININT: lambda r: r._stack.append(r._number(4, signed=True)),
    pickle.BININT1: lambda r: r._stack.append(r._number(1)),
    pickle.BININT2: lambda r: r._stack.append(r._number(2)),
    pickle.SHORT_BINSTRING: lambda r: r._stack.append(r._take(r._number(1))),
    pickle.BINSTRING: PickleReader._text,
    pickle.TUPLE: lambda r: r._stack.append(tuple(r._pop_to_mark())),
    pickle.TUPLE1: lambda r: r._pop_tuple(1),
    pickle.TUPLE2: lambda r: r._pop_tuple(2),
    pickle.TUPLE3: lambda r: r._pop_tuple(3),
    pickle.BINPUT: lambda r: r._remember(r._number(1)),
    pickle.LONG_BINPUT: lambda r: r._remember(r._number(4)),
    pickle.BINGET: lambda r: r._recall(r._number(1)),
    pickle.LONG_BINGET: lambda r: r._recall(r._number(4)),
    pickle.SETITEM: PickleReader._item,
    pickle.SETITEMS: lambda r: r._items(r._pop_to_mark()),
    pickle.APPEND: PickleReader._append,
    pickle.APPENDS: PickleReader._appends,
    pickle.GLOBAL: PickleReader._name,
    pickle.REDUCE: PickleReader._reduce,
    pickle.BUILD: PickleReader._build,
}
"""Supported opcodes. None of them imports, calls or looks up an attribute chosen by the file."""


def read_plain_pickle(content: bytes) -> dict[bytes, Any]:
    """Parse a pickle of CIFAR-10's kind; nothing in it is executed."""
    return PickleReader(content).read()
