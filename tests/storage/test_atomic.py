"""Files are written whole or not at all, and what is no file is not replaced by one."""

from __future__ import annotations

import os
import stat
import threading

from esper.storage.atomic import write_atomic


def test_a_pipe_or_device_is_written_to_and_stays_one(tmp_path):
    """A rename would replace it: as root even /dev/null."""
    pipe, read = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_atomic(pipe, b"content")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    reader.join(10)
    assert read == [b"content"]
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"a longer text than the next")
    write_atomic(path, b"next")
    assert path.read_bytes() == b"next"
