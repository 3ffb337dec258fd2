"""Exit status of commands: success, one-line errors, and unexpected exceptions."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from esper.scripts.cli.command import REFUSED, exit_status_of
from esper.storage.atomic import write_atomic


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """No file of this process may grow larger: as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_report_that_finds_no_room_is_one_line_that_names_it(tmp_path, capsys):
    """Reports are written after hours of training: a trace would hide what to do."""
    path = tmp_path / "numbers.json"
    path.write_bytes(b"old")
    with no_file_beyond(1000):
        status = exit_status_of(lambda: write_atomic(path, bytes(5000)))
    assert status == REFUSED
    assert capsys.readouterr().err == f"error: {path}: File too large; free some space\n"
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_in_the_place_of_a_file_is_one_line(tmp_path, capsys):
    path = tmp_path / "numbers.json"
    path.mkdir()
    assert exit_status_of(lambda: write_atomic(path, b"{}")) == REFUSED
    said = capsys.readouterr().err
    assert said == f"error: {path}: Is a directory; move away what is there\n"
    assert list(tmp_path.iterdir()) == [path]


def test_other_errors_of_the_system_are_not_hidden(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        exit_status_of(lambda: write_atomic(tmp_path / "nowhere" / "x", b""))
