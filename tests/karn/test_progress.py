"""The progress display: about ten plain lines without a terminal, live with one."""

import io

from rich.console import Console

from esper.karn.progress import GrowthProgress, GrowthStatus
from esper.leyline.stages import SeedStage

STATUS = GrowthStatus({"grown": 0.5, "alone": 0.25}, {SeedStage.TRAINING: 4, SeedStage.HOLDING: 0})


def shown(total: int, terminal: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100)
    with GrowthProgress(total, member_steps=16, console=console) as progress:
        for done in range(1, total + 1):
            progress.step(done, STATUS)
    return out.getvalue()


def test_plain_lines_where_there_is_no_terminal():
    lines = shown(total=40, terminal=False).splitlines()
    assert len(lines) == 10
    assert "\x1b" not in "".join(lines)
    assert lines[-1].startswith("step 40/40 (")
    for part in ("member-steps/s", "0:00 left", "grown 50.0 %, alone 25.0 %", "4 incubating"):
        assert part in lines[-1]
    assert "probation" not in lines[-1]


def test_short_runs_show_every_step():
    assert len(shown(total=3, terminal=False).splitlines()) == 3


def test_a_terminal_gets_a_live_display():
    text = shown(total=5, terminal=True)
    assert "\x1b[" in text
    assert "5/5" in text
    assert "grown 50.0 %" in text
