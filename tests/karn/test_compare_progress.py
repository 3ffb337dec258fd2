"""How far a comparison is: over all policies, those of earlier sessions included."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from esper.karn.compare_progress import CompareProgress


def test_steps_of_all_policies_make_the_share_and_those_that_were_done_count():
    quiet = Console(file=io.StringIO())
    progress = CompareProgress({"wait": 4, "heuristic": 8}, hosts=2, console=quiet, before=2)
    for _ in range(4):
        progress.note("wait", 0.3)
    progress.note("heuristic", 0.4)
    found = progress.record
    assert (found.policy, found.step, found.steps, found.score) == ("heuristic", 1, 8, 0.4)
    assert (found.done, found.total) == (3, 4)
    assert found.share == pytest.approx((2 + 2 * 5 / 12) / 4)
    assert found.seconds_left >= 0.0
    assert quiet.file.getvalue() == "", "noting draws nothing"
