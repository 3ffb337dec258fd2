"""Standard streams that never raise: output that cannot be written is dropped.

Covers a pipe whose reader exits (`| head`), a closed terminal and a full disk behind `> log`.
Characters missing from the stream's encoding are written as escapes.
"""

from __future__ import annotations

import errno
import io
import os
import select
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Final, TextIO

from esper.karn.heartbeat import LOOKED_AT, SILENCE, TICK, Heartbeat

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

INCOMPLETE: Final = 1
"""Exit status of a command that succeeded but could not print all of its output."""

_GONE: Final = (errno.EPIPE, errno.ECONNRESET)


class _Descriptor(io.FileIO):
    """A descriptor whose writes never raise; `lost` is the first error."""

    lost: OSError | None = None
    heartbeat: Heartbeat | None = None
    """Notified of everything that is written."""

    def __init__(self, number: int) -> None:
        super().__init__(number, "w", closefd=False)

    def write(self, data: ReadableBuffer, /) -> int:
        if self.heartbeat is not None:
            self.heartbeat.before_write(bytes(memoryview(data)[-LOOKED_AT:]))
        return self.write_silently(data)

    def write_silently(self, data: ReadableBuffer, /) -> int:
        """As `write`, behind the back of the heartbeat."""
        try:
            return self._write_some(data)
        except OSError as error:  # keep trying: a full disk may have room for the next line
            self.lost = self.lost or error
            return memoryview(data).nbytes

    def _write_some(self, data: ReadableBuffer) -> int:
        count: int | None
        while (count := super().write(data)) is None:  # the descriptor is non-blocking
            select.select((), (self,), ())
        return count

    def columns(self) -> int:
        """Width of the terminal."""
        try:
            return os.get_terminal_size(self.fileno()).columns
        except OSError:  # it was closed
            return 1

    def reader_left(self) -> bool:
        """Whether output was lost because the pipe or terminal was closed."""
        if self.lost is None:
            return False
        hung_up = self.lost.errno == errno.EIO and stat.S_ISCHR(os.fstat(self.fileno()).st_mode)
        return hung_up or self.lost.errno in _GONE


def with_robust_output(work: Callable[[], int]) -> int:
    """Run `work` with a stdout and stderr that never raise; returns its exit status.

    Returns `INCOMPLETE` if it succeeded but output was lost, unless the reader has closed the
    stream. Streams that a caller redirected are left alone.
    """
    with (
        _robust_stream("stderr", redirect_stderr),
        _robust_stream("stdout", redirect_stdout) as out,
    ):
        status = work()
        if out is None:
            return status
        sys.stdout.flush()
        if status or out.lost is None or out.reader_left():
            return status
        print(
            f"error: stdout: {out.lost.strerror}; printed output is incomplete, files are complete",
            file=sys.stderr,
        )
        return INCOMPLETE


@contextmanager
def shows_life(label: str, silence: float = SILENCE, tick: float = TICK) -> Iterator[None]:
    """Show a line with a clock on the terminal whenever the block is silent for a while."""
    terminals = [found for stream in (sys.stderr, sys.stdout) if (found := _terminal(stream))]
    if not terminals or os.environ.get("TERM", "dumb") == "dumb":
        yield
        return
    last = terminals[-1]
    with Heartbeat(label, last.write_silently, last.columns, silence, tick) as beat:
        for one in terminals:
            one.heartbeat = beat
        try:
            yield
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            for one in terminals:
                one.heartbeat = None


def _terminal(stream: TextIO) -> _Descriptor | None:
    """The descriptor of a robust stream, if it is a terminal."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw if isinstance(raw, _Descriptor) and raw.isatty() else None


@contextmanager
def _robust_stream(
    name: str, redirect: Callable[[TextIO], AbstractContextManager[TextIO]]
) -> Iterator[_Descriptor | None]:
    """Replace the process's stream by a robust one; yields None if it was redirected."""
    used, own = getattr(sys, name), getattr(sys, f"__{name}__")
    if used is None or used is not own:
        yield None
    else:
        used.flush()
        descriptor = _Descriptor(used.fileno())
        stream = _text(descriptor, used)
        with redirect(stream):
            try:
                yield descriptor
            finally:
                stream.flush()


def _text(descriptor: _Descriptor, like: TextIO) -> io.TextIOWrapper:
    assert isinstance(like, io.TextIOWrapper)  # Python's own stream
    return io.TextIOWrapper(
        io.BufferedWriter(descriptor),
        encoding=like.encoding,
        errors="backslashreplace",
        line_buffering=like.line_buffering,
        write_through=like.write_through,
    )
