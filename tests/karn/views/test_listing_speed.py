"""A folder of a hundred runs with a million events is listed in a second."""

from __future__ import annotations

import os
import resource
import shutil
import time

from esper.karn.views import list_runs

RUNS, EVENTS = 100, 10_000


def test_a_hundred_runs_are_listed_within_a_second(ppo, tmp_path):
    lines = (ppo / "events.jsonl").read_bytes().splitlines(keepends=True)
    block = b"".join(lines * (EVENTS // len(lines) + 1))
    for number in range(RUNS):
        place = tmp_path / f"run-{number:03d}"
        shutil.copytree(ppo, place, copy_function=os.link)
        (place / "events.jsonl").unlink()
        if number == 0:
            (place / "events.jsonl").write_bytes(block)
        else:
            os.link(tmp_path / "run-000" / "events.jsonl", place / "events.jsonl")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    found = list_runs(tmp_path)
    seconds = time.perf_counter() - began
    assert len(found) == RUNS
    assert {run.done for run in found} == {3}
    assert seconds < 1.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB
