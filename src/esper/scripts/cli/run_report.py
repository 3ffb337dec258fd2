"""Final report of a run, for `train` and `eval`: table, numbers, how a controller was judged.

Shape letters: N members of all rounds, E members, S slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from esper.karn.display import say
from esper.karn.terminal import console_for_report
from esper.leyline.arrays import Doubles
from esper.leyline.codec import Json, to_json
from esper.leyline.signals import NO_BLUEPRINT
from esper.scripts.cli.report_files import ReportFile, json_file, write_before_printing
from esper.tolaria.round_results import RunResult

if TYPE_CHECKING:
    from esper.compare.judging import Judged


@dataclass(frozen=True, slots=True)
class RunReport:
    """Subject and path of a report."""

    policy: str
    episodes: int
    """Number of episodes in the result."""
    numbers: Path
    settings: Json
    """Settings of the run."""


def report_file(report: RunReport, result: RunResult) -> ReportFile:
    """The file with all numbers."""
    return json_file(report.numbers, _numbers(report, result))


def print_report(report: RunReport, result: RunResult) -> None:
    """Print the table and the path of the numbers."""
    console = console_for_report()
    console.print(_outcome_table(report, result))
    for line in _lines(report, result):
        say(console, line)
    say(console, f"numbers: {report.numbers}")


def report_judged(
    judged: Judged,
    numbers: Path,
    settings: Json,
    judgement: ReportFile,
    lines: Sequence[tuple[str, object]],
) -> None:
    """Write the files of a judged controller, then print its tables; `lines`: (label, what)."""
    from esper.compare.judging import LEARNED, judgement_table

    report = RunReport(LEARNED, judged.members, numbers, settings)
    with write_before_printing(judgement, report_file(report, judged.result)):
        print_report(report, judged.result)
        console = console_for_report()
        console.print(judgement_table(judged))
        say(console, judged.verdict_line())
        for label, what in lines:
            say(console, f"{label}: {what}")


def _outcome_table(report: RunReport, result: RunResult) -> Table:
    """Mean, standard deviation and range over all members and rounds."""
    title = f"{report.policy} on {result.task}: {report.episodes} episodes"
    table = Table(title=escape(title), box=SIMPLE_HEAD)
    for name in ("", "mean", "std", "min", "max"):
        table.add_column(name, justify="right" if name else "left")
    for name, values_N, form in _figures(result):
        figures = (values_N.mean(), values_N.std(), values_N.min(), values_N.max())
        table.add_row(name, *(form.format(value) for value in figures))
    return table


def _figures(result: RunResult) -> list[tuple[str, Doubles, str]]:
    """(name, values of all episodes, format) of each row."""

    def all_rounds(name: str) -> Doubles:
        values = [getattr(done.outcome, name) for done in result.rounds]
        return np.concatenate(values).astype(np.float64)

    test_N = np.concatenate([done.test_E for done in result.rounds])
    params_N = 1 + all_rounds("added_params_E") / result.host_params
    macs_N = 1 + all_rounds("added_macs_E") / result.host_macs
    restarts_N = all_rounds("restarts_E")
    return [
        ("score", all_rounds("score_E"), "{:.4f}"),
        ("accuracy, val_score", all_rounds("accuracy_E"), "{:.1%}"),
        ("accuracy, test", test_N, "{:.1%}"),
        ("return", all_rounds("episode_return_E"), "{:.4f}"),
        ("parameters / host's", params_N, "{:.2f}"),
        ("MACs / host's", macs_N, "{:.2f}"),
        ("training FLOPs / host's", all_rounds("flops_ratio_E"), "{:.2f}"),
        ("seeds germinated", all_rounds("germinated_E"), "{:.1f}"),
        ("seeds made permanent", all_rounds("fossilized_E"), "{:.1f}"),
        ("seeds pruned", all_rounds("pruned_E"), "{:.1f}"),
        ("rollbacks", all_rounds("rollbacks_E"), "{:.1f}"),
        *([("restarts", restarts_N, "{:.1f}")] if restarts_N.any() else []),
    ]


def _lines(report: RunReport, result: RunResult) -> list[str]:
    common = _topologies(result).most_common(1)[0]
    lines = [
        f"most frequent topology at the end ({common[1]} of {report.episodes}): {common[0]}",
        f"{result.member_steps_per_second:.1f} member-steps/s on {result.machine['device']}, "
        f"executor {result.executor} ({result.executor_reason}), profile {result.profile}",
    ]
    return [*lines, result.telemetry] if result.telemetry else lines


def _topologies(result: RunResult) -> Counter[str]:
    """Count the topologies that would be exported."""
    found: Counter[str] = Counter()
    for done in result.rounds:
        for kind_S in done.outcome.blueprint_ES:
            seeds = [
                f"{slot} {result.blueprints[kind]}"
                for slot, kind in zip(result.slots, kind_S, strict=True)
                if kind != NO_BLUEPRINT
            ]
            found[", ".join(seeds) or "the host"] += 1
    return found


def _numbers(report: RunReport, result: RunResult) -> dict[str, Json]:
    """All measurements and settings, for JSON."""
    return {
        "settings": report.settings,
        "machine": dict(result.machine),
        "executor": result.executor,
        "executor_reason": result.executor_reason,
        "member_steps_per_second": result.member_steps_per_second,
        "host_params": result.host_params,
        "host_macs": result.host_macs,
        "slots": list(result.slots),
        "blueprints": list(result.blueprints),
        "rounds": [
            {
                "seconds": done.seconds,
                "outcome": to_json(done.outcome),
                "test_E": done.test_E.tolist(),
                "accuracy_TE": done.accuracy_TE.tolist(),
                "score_TE": done.score_TE.tolist(),
            }
            for done in result.rounds
        ],
    }


def settings_json(value: object) -> Json:
    """As `to_json`, with paths as strings."""
    if isinstance(value, Path):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: settings_json(getattr(value, f.name)) for f in fields(value)}
    return to_json(value)
