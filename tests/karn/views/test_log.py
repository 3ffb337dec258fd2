"""A search, a comparison and an audit tell what happened, in its order, from what is on disk."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from esper.karn.views import LogLine, read_log
from esper.storage.folder_lock import FolderLock
from search_folder import ROWS, row, search_folder, write
from web_support import comparison


def texts(run: Path) -> list[str]:
    return [line.text for line in read_log(run)]


def one(lines: list[str], *words: str) -> str:
    """The only line with all these words."""
    (found,) = (line for line in lines if all(word in line for word in words))
    return found


def sessions(run: Path, *every: tuple[str, float, str]) -> Path:
    """`every`: (start, seconds, end) of a session."""
    write(run / "sessions.json", {"sessions": [
        {"command": "", "started": start, "seconds": seconds, "before": at, "done": at + 1,
         "total": 2, "end": end or None, "failure": "ValueError: no" if end == "FAILED" else ""}
        for at, (start, seconds, end) in enumerate(every)]})  # fmt: skip
    return run


# ---- searches ----------------------------------------------------------------------------------


def test_a_search_tells_of_its_runs_its_best_so_far_and_its_verdict_in_order(tmp_path):
    said = texts(search_folder(tmp_path / "run"))
    assert said[0] == "search of Net (100 parameters) started 2026-01-02 03:04:05 UTC"
    assert said[1:7] == [line for line in said if " planned: " in line]
    assert said[4] == "#3 planned: a first look at width x2, depth x0.5 at rate 0.01"
    wide = one(said, "#2, width x2, depth x0.5, norm: finished")
    for words in ("validation accuracy 0.9", "300 parameters", "rate 0.01", "shift"):
        assert words in wide, words
    assert said[said.index(wide) + 1] == "best so far: 0.9, #2 (before: 0.8, #1)"
    assert not [line for line in said if "best so far" in line and "#3" in line], "over the budget"
    assert one(said, "#4, mlp:").startswith("#4, mlp: interrupted after 10 of 30 batches")
    assert not [line for line in said if line.startswith("#5,")], "not trained yet"
    assert said[-2].startswith("judged on test, the pick is #2: test accuracy 0.85")
    assert said[-1] == "verdict: width x2 is better"


def test_runs_stand_in_their_rungs_in_the_order_in_which_they_ended(tmp_path):
    rows = (ROWS[0] | {"at": 4.0}, ROWS[1] | {"at": 2.0}, row(2, 300, 0.9, rung=1, at=9.0))
    lines = read_log(search_folder(tmp_path / "run", rows, has_result=False))[1:]
    assert [line.round for line in lines] == [0] * 5 + [1] * 3
    ends = [line.elapsed for line in lines if "finished" in line.text]
    assert ends == [2.0, 4.0, 9.0]
    assert [line.elapsed for line in lines if "planned" in line.text] == [0.0, 0.0, 4.0]
    assert [line.text[:2] for line in lines if "finished" in line.text] == ["#1", "#0", "#2"]


def test_a_run_that_diverged_stands_out(tmp_path):
    rows = (ROWS[0], row(1, 100, 0.0, diverged=True) | {"score": "NaN"})
    lines = read_log(search_folder(tmp_path / "run", rows, has_result=False))
    (bad,) = [line for line in lines if line.unusual]
    assert bad.text.startswith("#1, your model: diverged within 30 batches; 100 parameters")


def test_a_search_under_way_says_what_is_trained_and_not_that_it_was_killed(tmp_path):
    run = search_folder(tmp_path / "run", has_result=False)
    sessions(run, ("2026-01-02 03:04:05", 9.0, "INTERRUPTED"), ("2026-01-03 00:00:00", 1.0, ""))
    assert texts(run)[-1] == "the process was killed"
    lock = FolderLock(run)
    try:
        said = texts(run)
    finally:
        lock.release()
    assert said[0].endswith("; resumed 2026-01-03 00:00:00 UTC")
    assert one(said, "#4, mlp:").startswith("#4, mlp: under way: 10 of 30 batches")
    assert "killed" not in " ".join(said)


def test_a_real_search_has_a_line_for_every_run(grown):
    said = texts(grown)
    table = json.loads((grown / "search.json").read_text())
    for found in table["rows"]:
        assert one(said, f"#{found['number']} planned: ")
        assert one(said, f"#{found['number']}, ", "finished; ", f"{found['params']:,} parameters")
    assert one(said, "the search ended: ")
    assert said[-1].startswith("verdict: ")


# ---- comparisons -------------------------------------------------------------------------------


def timed(run: Path, label: str, ended: str) -> None:
    path = run / "policies" / f"{label}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"ended": ended}))


def test_policies_stand_between_the_sessions_that_ran_them(tmp_path):
    run = sessions(comparison(tmp_path / "run"),
                   ("2026-01-01 10:00:00", 60.0, "FAILED"),
                   ("2026-01-01 11:00:00", 90.0, "FINISHED"))  # fmt: skip
    timed(run, "random", "2026-01-01 10:00:30")
    timed(run, "wait", "2026-01-01 11:01:00")
    lines = read_log(run)
    assert [line.text.split(":")[0] for line in lines] == [
        "comparison on synthetic started", "random done", "failed", "resumed", "wait done",
    ]  # fmt: skip
    assert [line.unusual for line in lines] == [False, False, True, False, False]
    assert "score 0.55" in lines[-1].text
    assert lines[-1].time - lines[0].time == 3660.0


def test_a_session_ends_after_its_last_result_although_starts_are_rounded_down(tmp_path):
    run = sessions(comparison(tmp_path / "run"), ("2026-01-01 10:00:00", 30.2, "FAILED"))
    timed(run, "random", "2026-01-01 10:00:31")
    timed(run, "wait", "2026-01-01 10:00:00")
    said = [line.text.split()[0] for line in read_log(run)]
    assert said == ["comparison", "wait", "random", "failed:"]


def test_a_comparison_under_way_was_not_killed(tmp_path):
    run = sessions(comparison(tmp_path / "run"), ("2026-01-01 10:00:00", 60.0, ""))
    assert "the process was killed" in texts(run)
    lock = FolderLock(run)
    try:
        assert "the process was killed" not in texts(run)
    finally:
        lock.release()


def test_a_comparison_without_times_tells_the_same_in_the_order_of_its_policies(tmp_path):
    run = comparison(tmp_path / "run")
    assert [line.split()[0] for line in texts(run)] == ["comparison", "random", "wait"]
    (run / "policies" / "wait.json").write_text("{")
    damaged = read_log(run)[-1]
    assert (damaged.text, damaged.unusual) == ("wait.json: cannot be read", True)


def test_a_real_comparison_records_when_each_policy_was_complete(compared):
    first, *policies, last = read_log(compared)
    assert sorted(line.text.split()[0] for line in policies) == ["random", "wait"]
    assert last.text.startswith("all compared: best score")
    times = [line.time for line in (first, *policies, last)]
    assert all(map(math.isfinite, times))
    assert times == sorted(times)


@pytest.mark.parametrize("fixture", ["ppo", "policy"])
def test_training_has_events_instead(fixture, request):
    assert read_log(request.getfixturevalue(fixture)) == ()
    assert LogLine("x").round is None
