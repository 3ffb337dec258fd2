"""Format a member as text: one line for the host, one per slot."""

from __future__ import annotations

import math
from collections.abc import Sequence

from esper.leyline.slots import SlotReport

_HEADER = (
    "slot",
    "stage",
    "blueprint",
    "style",
    "alpha",
    "age",
    "in stage",
    "parameters",
    "MACs",
    "contribution",
)
_NUMBERS = frozenset({"age", "in stage", "parameters", "MACs"})
_NOTHING = "-"
_UNKNOWN = "?"


def describe(
    host: str, parameters: int, host_macs: int | None, reports: Sequence[SlotReport]
) -> str:
    """Return a heading and an aligned table; `host_macs` is None before the first input."""
    rows = [_HEADER, *(_row(report, host_macs is not None) for report in reports)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_line(row, widths) for row in rows] if reports else []
    return "\n".join((_heading(host, parameters, host_macs, reports), *lines))


def _heading(
    host: str, parameters: int, host_macs: int | None, reports: Sequence[SlotReport]
) -> str:
    """Describe the host alone, then the host with blended seeds, as exported."""
    blended = [report for report in reports if report.alpha > 0]
    text = f"{host}, {_cost(parameters, host_macs)}"
    if not blended:
        return text
    macs = None if host_macs is None else host_macs + sum(report.macs for report in blended)
    parameters += sum(report.params for report in blended)
    return f"{text}; with blended seeds {_cost(parameters, macs)}"


def _cost(parameters: int, macs: int | None) -> str:
    return f"{parameters:,} parameters, {_UNKNOWN if macs is None else f'{macs:,}'} MACs"


def _row(report: SlotReport, macs_known: bool) -> tuple[str, ...]:
    seeded = report.blueprint is not None
    cells = (
        report.blueprint,
        report.style,
        _alpha(report),
        str(report.age),
        str(report.steps_in_stage),
        f"{report.params:,}",
        f"{report.macs:,}" if macs_known else _UNKNOWN,
        _contribution(report),
    )
    stage = report.stage.name
    if report.cooldown_left:
        stage += f" ({report.cooldown_left} left)"
    shown = [cell or _NOTHING if seeded else _NOTHING for cell in cells]
    return (report.slot_id, stage, *shown)


def _alpha(report: SlotReport) -> str:
    """Format alpha, its target and the remaining ramp steps."""
    text = f"{report.alpha:.2f}"
    if report.ramp_steps_left:
        text += f" -> {report.alpha_target:.2f} in {report.ramp_steps_left}"
    return f"{text}, pruning" if report.pruning else text


def _contribution(report: SlotReport) -> str:
    if math.isnan(report.contribution):
        return _NOTHING
    return f"{report.contribution:+.4f} ± {report.contribution_se:.4f}"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    """Align numbers right and text left."""
    cells = [
        cell.rjust(width) if name in _NUMBERS else cell.ljust(width)
        for name, cell, width in zip(_HEADER, row, widths, strict=True)
    ]
    return "  ".join(cells).rstrip()
