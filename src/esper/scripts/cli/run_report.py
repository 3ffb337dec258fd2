"""What a run says at its end: the table, the picture, the numbers. `train` and `eval` show it.

Shape letters: N members of all rounds, T steps, E members, S slots.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from esper.karn.display import say
from esper.karn.growth_picture import Curve, LifeLines, draw_growth
from esper.leyline.arrays import Doubles
from esper.leyline.codec import Json, to_json
from esper.leyline.payloads import EpisodeOutcome
from esper.leyline.signals import NO_BLUEPRINT
from esper.scripts.cli.console import console_for_report
from esper.scripts.cli.report_files import ReportFile, json_file
from esper.tolaria.round_results import RunResult


@dataclass(frozen=True, slots=True)
class Shown:
    """What a report is about, and where it goes."""

    policy: str
    episodes: int
    """That the result is made of."""
    picture: Path
    numbers: Path
    settings: Json
    """What the run was set to."""


def files_of(shown: Shown, result: RunResult) -> tuple[ReportFile, ReportFile]:
    """All that was measured, and a picture of the last round."""
    numbers = json_file(shown.numbers, _numbers(shown, result))
    return numbers, (shown.picture, lambda path: _draw(path, shown, result))


def show(shown: Shown, result: RunResult) -> None:
    """Print the table, and where the files are."""
    console = console_for_report()
    console.print(outcome_table(shown, result))
    for line in _lines(shown, result):
        say(console, line)
    for word, path in (("picture", shown.picture), ("numbers", shown.numbers)):
        say(console, f"{word}: {path}")


def outcome_table(shown: Shown, result: RunResult) -> Table:
    """Mean, deviation and range over all members of all rounds."""
    title = f"{shown.policy} on {result.task}: {shown.episodes} episodes"
    table = Table(title=escape(title), box=SIMPLE_HEAD)
    for name in ("", "mean", "deviation", "lowest", "highest"):
        table.add_column(name, justify="right" if name else "left")
    for name, values_N, form in _figures(result):
        figures = (values_N.mean(), values_N.std(), values_N.min(), values_N.max())
        table.add_row(name, *(form.format(value) for value in figures))
    return table


def _figures(result: RunResult) -> list[tuple[str, Doubles, str]]:
    """(what, values over all episodes, how a value is written)."""

    def all_rounds(name: str) -> Doubles:
        values = [getattr(done.outcome, name) for done in result.rounds]
        return np.concatenate(values).astype(np.float64)

    test_N = np.concatenate([done.test_E for done in result.rounds])
    params_N = 1 + all_rounds("added_params_E") / result.host_params
    macs_N = 1 + all_rounds("added_macs_E") / result.host_macs
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
    ]


def _lines(shown: Shown, result: RunResult) -> list[str]:
    common = _topologies(result).most_common(1)[0]
    lines = [
        f"most frequent topology at the end ({common[1]} of {shown.episodes}): {common[0]}",
        f"{result.member_steps_per_second:.1f} member-steps/s on {result.machine['device']}, "
        f"executor {result.executor} ({result.executor_reason}), profile {result.profile}",
    ]
    return [*lines, result.telemetry] if result.telemetry else lines


def _topologies(result: RunResult) -> Counter[str]:
    """What would be exported, in words, and how often."""
    found: Counter[str] = Counter()
    for done in result.rounds:
        for kind_S in done.outcome.blueprint_ES:
            seeds = [
                f"{slot} {result.blueprints[kind]}"
                for slot, kind in zip(result.slots, kind_S, strict=True)
                if kind != NO_BLUEPRINT
            ]
            found[", ".join(seeds) or "the host alone"] += 1
    return found


def _draw(path: Path, shown: Shown, result: RunResult) -> None:
    last = result.rounds[-1]
    curves = [
        Curve("accuracy on val_score", last.accuracy_TE[1:].T.astype(np.float32)),
        Curve("score", last.score_TE[1:].T.astype(np.float32)),
    ]
    lives = LifeLines(result.slots, last.stage_TES, last.leaving_TES)
    title = f"{shown.policy} on {result.task}, round {len(result.rounds)}"
    draw_growth(path, curves, lives, title)


def _numbers(shown: Shown, result: RunResult) -> dict[str, Json]:
    """Everything that was measured, with what it depends on."""
    return {
        "settings": shown.settings,
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
                "outcome": _outcome(done.outcome),
                "test_E": done.test_E.tolist(),
                "accuracy_TE": done.accuracy_TE.tolist(),
                "score_TE": done.score_TE.tolist(),
            }
            for done in result.rounds
        ],
    }


def _outcome(outcome: EpisodeOutcome) -> dict[str, Json]:
    return {f.name: getattr(outcome, f.name).tolist() for f in fields(outcome)}


def settings_of(value: object) -> Json:
    """Settings as JSON; as `to_json`, and paths as text."""
    if isinstance(value, Path):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: settings_of(getattr(value, f.name)) for f in fields(value)}
    return to_json(value)
