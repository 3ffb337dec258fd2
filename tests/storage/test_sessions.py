"""Sessions: how a run ended, and when, is in its folder; a killed one has no end."""

from __future__ import annotations

import pytest

from esper.leyline.errors import EsperError
from esper.storage.sessions import SessionEnd, SessionLog, read_sessions, recorded_session
from support import refused


@pytest.mark.parametrize(
    ("error", "end", "failure"),
    [
        (None, SessionEnd.FINISHED, ""),
        (KeyboardInterrupt(), SessionEnd.INTERRUPTED, ""),
        (EsperError("no room"), SessionEnd.FAILED, "no room"),
        (RuntimeError("two\nlines"), SessionEnd.FAILED, "RuntimeError: two lines"),
    ],
)
def test_the_end_of_a_session_is_recorded(tmp_path, error, end, failure):
    def work() -> None:
        with recorded_session(tmp_path, "esper compare wait") as log:
            log.plan(1, 3)
            log.saved(2)
            if error is not None:
                raise error

    if error is None:
        work()
    else:
        with pytest.raises(type(error)):
            work()
    (found,) = read_sessions(tmp_path)
    assert (found.end, found.failure, found.command) == (end, failure, "esper compare wait")
    assert (found.before, found.done, found.total) == (1, 2, 3)


def test_a_killed_session_has_no_end_and_the_next_one_follows_it(tmp_path):
    assert read_sessions(tmp_path) == ()
    SessionLog(tmp_path, "first").saved(1)
    with recorded_session(tmp_path, "second"):
        ends = [one.end for one in read_sessions(tmp_path)]
        assert ends == [None, None]
    first, second = read_sessions(tmp_path)
    assert (first.command, first.end, first.done) == ("first", None, 1)
    assert (second.command, second.end) == ("second", SessionEnd.FINISHED)
    assert 0 <= second.seconds < 60


def test_a_damaged_file_is_one_line_that_says_what_to_do(tmp_path):
    with recorded_session(tmp_path):
        pass
    path = tmp_path / "sessions.json"
    path.write_text(path.read_text().replace("FINISHED", "FAILED"))
    line = refused(lambda: read_sessions(tmp_path))
    assert str(path) in line
    assert "delete it" in line
