"""What happens to output that nobody takes? It is dropped, and the command does its work.

The reader of a pipe leaves (`| head`), a terminal closes, the disk behind `> log` is full, a
descriptor was closed from the start (`>&-`): while a command runs, writing to stdout or stderr
never raises. A character that the stream's encoding does not have is written as an escape.
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

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

INCOMPLETE: Final = 1
"""Exit status of a command that did its work, but could not print all of it."""

_GONE: Final = (errno.EPIPE, errno.ECONNRESET)


class _Descriptor(io.FileIO):
    """A descriptor whose writes do not fail; `lost` is the first error."""

    lost: OSError | None = None

    def __init__(self, number: int) -> None:
        super().__init__(number, "w", closefd=False)

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return self._write_some(data)
        except OSError as error:  # not for good: a full disk may have room for the next line
            self.lost = self.lost or error
            return memoryview(data).nbytes

    def _write_some(self, data: ReadableBuffer) -> int:
        count: int | None
        while (count := super().write(data)) is None:  # someone made the descriptor non-blocking
            select.select((), (self,), ())
        return count

    def reader_left(self) -> bool:
        """Whether what was lost had no reader any more: a closed pipe or terminal."""
        if self.lost is None:
            return False
        hung_up = self.lost.errno == errno.EIO and stat.S_ISCHR(os.fstat(self.fileno()).st_mode)
        return hung_up or self.lost.errno in _GONE


def with_steady_output(work: Callable[[], int]) -> int:
    """Do the work with a stdout and a stderr that never raise; its exit status.

    Work that was done, but whose output did not fit where it was sent, is `INCOMPLETE`. That
    nobody reads any more is no failure. Streams that a caller put in place stay as they are.
    """
    _plug_closed_descriptors()
    with _steady("stderr", redirect_stderr), _steady("stdout", redirect_stdout) as out:
        status = work()
        if out is None:
            return status
        sys.stdout.flush()
        if status or out.lost is None or out.reader_left():
            return status
        print(
            f"error: stdout: {out.lost.strerror}; what was printed is incomplete, files are whole",
            file=sys.stderr,
        )
        return INCOMPLETE


def _plug_closed_descriptors() -> None:
    """Open /dev/null on 0, 1 and 2 where they are closed.

    The next file that is opened would get the number, and messages would go into it.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    if sys.stdin is None:
        # Whoever asks a question finds the end of the input.
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))


@contextmanager
def _steady(
    name: str, redirect: Callable[[TextIO], AbstractContextManager[TextIO]]
) -> Iterator[_Descriptor | None]:
    """Put a steady stream in the place of the process's own; None where that is not in use."""
    used, own = getattr(sys, name), getattr(sys, f"__{name}__")
    if used is None:  # it was closed when Python started
        with open(os.devnull, "w") as nowhere, redirect(nowhere):
            yield None
    elif used is not own:
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
    assert isinstance(like, io.TextIOWrapper)  # Python's own
    return io.TextIOWrapper(
        io.BufferedWriter(descriptor),
        encoding=like.encoding,
        errors="backslashreplace",
        line_buffering=like.line_buffering,
        write_through=like.write_through,
    )
