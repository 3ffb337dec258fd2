"""Budget and speed of a run, where its time goes, and what it was set up with."""

from __future__ import annotations

import textwrap

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from esper.karn.tui.formats import known, middle, sparkline
from esper.karn.tui.panel import Panel, plain_table
from esper.karn.tui.reader import RunShot
from esper.plotting.durations import duration
from esper.plotting.numbers import UNKNOWN, fixed, number

_BAR = 20
_LABEL = 15


class RunFacts(Panel):
    """What a run spent of what, how fast it is, and its setup."""

    TITLE = "Budget and speed"
    SHORT = "Budget"

    def content(self, shot: RunShot, width: int, height: int) -> RenderableType:
        """Budget, speed, phases, setup."""
        table = plain_table("", "")
        table.show_header = False
        names = (len(fact.name) for fact in shot.summary.result.facts)
        label = min(max((_LABEL, *names)), width // 2)
        table.columns[0].min_width, room = label, width - label - 1
        for name, value in (*_budget(shot, room), *_speed(shot, width), *_setup(shot)):
            table.add_row(Text(name, style="dim"), _shortened(name, value, room))
        phases = _phases(shot)
        return table if phases is None else Group(table, Text(""), phases)


def _shortened(name: str, value: str, width: int) -> Text:
    """The end of a long path says more than its beginning."""
    if name != "folder":
        return Text(middle(value, width))
    return Text(value if len(value) <= width else f"…{value[1 - max(width, 2) :]}")


def _budget(shot: RunShot, room: int) -> list[tuple[str, str]]:
    run = shot.summary
    rows = [("done", run.amount), ("time", duration(run.seconds))]
    if run.seconds_left is not None:
        rows.append(("time left", duration(run.seconds_left)))
    for fact in run.result.facts:
        lines = textwrap.wrap(fact.beside, max(room, 10))
        rows += [(fact.name, fact.value), *(("", line) for line in lines)]
    if run.best_score is not None:
        rows.append(("best training", fixed(run.best_score, 4)))
    return rows


def _speed(shot: RunShot, width: int) -> list[tuple[str, str]]:
    if not shot.speeds:
        return []
    last = shot.speeds[-1]
    line = sparkline([one.member_steps_per_second for one in shot.speeds], max(4, width - 16))
    rows = [
        ("member-steps/s", fixed(last.member_steps_per_second, 1)),
        ("over rounds", line),
        ("samples/s", number(last.samples_per_second)),
        ("step, p50 / p95", f"{fixed(last.step_seconds_p50)} / {fixed(last.step_seconds_p95)} s"),
        ("device busy", _percent(last.device_share)),
    ]
    if known(last.gpu_utilization):
        rows.append(("GPU utilisation", _percent(last.gpu_utilization)))
    if known(last.gpu_memory):
        rows.append(("GPU memory", f"{last.gpu_memory / 1e9:.2f} GB"))
    return rows


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if known(share) else UNKNOWN


def _setup(shot: RunShot) -> list[tuple[str, str]]:
    run, setup = shot.summary, shot.setup
    rows = [("task", run.task)] if run.task else []
    if run.seed is not None:
        rows.append(("seed", str(run.seed)))
    if setup is not None:
        rows += [
            ("members", f"{setup.members}, {setup.episode_length} steps an episode"),
            ("host parameters", number(setup.host_params)),
            ("host MACs", number(setup.host_macs)),
            ("device", setup.device),
            ("executor", setup.executor),
        ]
    rows += [("created (UTC)", run.created)] if run.created else []
    return [*rows, ("folder", str(run.path))]


def _phases(shot: RunShot) -> Table | None:
    """Where the time of the newest round went."""
    if not shot.speeds or not shot.speeds[-1].phases:
        return None
    phases = sorted(shot.speeds[-1].phases, key=lambda one: -one[1])
    total = sum(seconds for _, seconds in phases) or 1.0
    table = plain_table("phase", "seconds", "share", right=(1,))
    for name, seconds in phases:
        share = seconds / total
        bar = "█" * round(share * _BAR)
        table.add_row(
            name.lower().replace("_", " "), fixed(seconds, 2), f"{bar} {100 * share:.0f} %"
        )
    return table
