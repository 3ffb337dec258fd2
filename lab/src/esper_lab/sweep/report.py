"""Report of a sweep: table, picture, numbers, and the best settings as a file and a command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import optuna
from optuna.trial import FrozenTrial
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from esper.karn.display import say
from esper.karn.terminal import console_for_report
from esper.leyline.codec import to_json
from esper.leyline.statistics import t_interval
from esper.scripts.cli.report_files import ReportFile, json_file, write_before_printing
from esper_lab.figures.style import COLOURS, FAINT, new_figure, style_axes, write_png
from esper_lab.sweep.config import TUNING_SEED, Sweep
from esper_lab.sweep.space import Range, Space
from esper_lab.sweep.study import SCORES, SECONDS, finished

SHOWN: Final = 20
"""Most trials in the table on the console."""
COLUMNS: Final = 3
"""Panels side by side in the picture."""


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A finished trial."""

    number: int
    values: dict[str, Any]
    rounds: tuple[float, ...]
    """Mean score of every round in training."""
    scores: tuple[float, ...]
    """Scores on the tuning hosts; empty if it was pruned."""
    seconds: float

    @property
    def pruned(self) -> bool:
        """Whether it ended early."""
        return not self.scores

    @property
    def mean(self) -> float:
        """Mean score."""
        return float(np.mean(self.scores)) if self.scores else -np.inf

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the mean over hosts (Student)."""
        _, low, high = (float(x) for x in t_interval(np.array(self.scores)))
        return low, high


def rows_of(study: optuna.Study) -> list[TrialRow]:
    """Finished trials, the best first, pruned ones last."""
    rows = [_row(trial) for trial in finished(study)]
    return sorted(rows, key=lambda row: (-row.mean, row.number))


def _row(trial: FrozenTrial) -> TrialRow:
    rounds = tuple(score for _, score in sorted(trial.intermediate_values.items()))
    scores = tuple(trial.user_attrs.get(SCORES, ()))
    seconds = float(trial.user_attrs.get(SECONDS, 0.0))
    return TrialRow(trial.number, dict(trial.params), rounds, scores, seconds)


def report(config: Sweep, space: Space, study: optuna.Study, folder: Path) -> None:
    """Write picture, numbers and the best settings, then print the table."""
    rows = rows_of(study)
    best = rows[0] if rows and not rows[0].pruned else None
    files: list[ReportFile] = [
        json_file(folder / "sweep.json", numbers(config, rows)),
        (folder / "sweep.png", lambda path: draw(path, config, space, rows)),
    ]
    settings = folder / "best.json"
    if best is not None:
        files.append(json_file(settings, to_json(config.trial_training(best.values))))
    with write_before_printing(*files):
        console = console_for_report()
        console.print(trial_table(config, space, rows))
        if best is None:
            say(console, "no trial was completed: raise --trials, or use --pruner none")
        else:
            say(console, f"best: esper train ppo --config {shlex.quote(str(settings))}")
            say(console, "its score is the best of many: esper train judges it on other hosts")
        say(console, f"picture: {folder / 'sweep.png'}")
        say(console, f"numbers: {folder / 'sweep.json'}")


def numbers(config: Sweep, rows: Sequence[TrialRow]) -> dict[str, object]:
    """All trials, for JSON."""
    return {
        "task": config.training.task.name,
        "tuning_seed": TUNING_SEED,
        "repeats": config.repeats,
        "hosts": config.evaluation_envs,
        "trials": [asdict(row) for row in rows],
    }


def trial_table(config: Sweep, space: Space, rows: Sequence[TrialRow]) -> Table:
    """The best trials with n and spread."""
    title = (
        f"{len(rows)} trials on {escape(config.training.task.name)}, scored on "
        f"{config.evaluation_envs} hosts x {config.repeats} controllers"
    )
    table = Table(title=title, box=SIMPLE_HEAD)
    for name in ("trial", *space, "score", "95 %", "s.d.", "n", "rounds"):
        table.add_column(escape(name), justify="right")
    for row in rows[:SHOWN]:
        values = [_value_text(row.values[name]) for name in space]
        table.add_row(str(row.number), *map(escape, values), *_score_cells(row))
    return table


def _score_cells(row: TrialRow) -> tuple[str, ...]:
    rounds = str(len(row.rounds))
    if row.pruned:
        return "pruned", "", "", "", rounds
    n = len(row.scores)
    low, high = row.interval
    spread = (
        (f"{low:.4f} to {high:.4f}", f"{np.std(row.scores, ddof=1):.4f}") if n > 1 else ("",) * 2
    )
    return f"{row.mean:.4f}", *spread, str(n), rounds


def _value_text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# ---- picture -----------------------------------------------------------------------------------


def draw(path: Path, config: Sweep, space: Space, rows: Sequence[TrialRow]) -> None:
    """Scores in the order of trials, and against each setting."""
    panels = 1 + len(space)
    columns = min(COLUMNS, panels)
    lines = -(-panels // columns)
    title = f"Sweep of {config.training.task.name}: {len(rows)} trials"
    figure = new_figure((4.2 * columns, 3.2 * lines + 0.5), title)
    grid = figure.subplots(lines, columns, squeeze=False).ravel()
    complete = [row for row in rows if not row.pruned]
    for axes in grid[panels:]:
        axes.set_visible(False)
    _draw_history(grid[0], rows)
    for axes, (name, axis) in zip(grid[1:], space.items(), strict=False):
        _draw_points(axes, [row.values[name] for row in complete], complete)
        if isinstance(axis, Range):
            _scale(axes, axis)
        axes.set_xlabel(name)
        axes.set_ylabel("score")
        style_axes(axes, name)
    write_png(path, figure)


def _scale(axes: Any, axis: Range) -> None:
    """The whole range, also where no trial is."""
    from matplotlib.ticker import MaxNLocator, NullFormatter

    if axis.log:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
        room = (axis.high / axis.low) ** 0.03
        axes.set_xlim(axis.low / room, axis.high * room)
        return
    room = 0.03 * (axis.high - axis.low)
    axes.set_xlim(axis.low - room, axis.high + room)
    if axis.whole:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _draw_history(axes: Any, rows: Sequence[TrialRow]) -> None:
    in_order = sorted(rows, key=lambda row: row.number)
    complete = [row for row in in_order if not row.pruned]
    _draw_points(axes, [row.number for row in complete], complete)
    best = np.maximum.accumulate(np.array([row.mean for row in complete]))
    axes.plot([row.number for row in complete], best, color=COLOURS[1], label="best so far")
    pruned = [row for row in in_order if row.pruned and row.rounds]
    if pruned:
        axes.plot([row.number for row in pruned], [row.rounds[-1] for row in pruned], "x",
                  color=FAINT, label="pruned: last round, in training")  # fmt: skip
    axes.legend(frameon=False, fontsize=8)
    axes.set_xlabel("trial")
    axes.set_ylabel("score on the tuning hosts")
    style_axes(axes, "By trial; bars: 95 % over hosts")


def _draw_points(axes: Any, places: Sequence[Any], rows: Sequence[TrialRow]) -> None:
    for place, row in zip(places, rows, strict=True):
        low, high = row.interval if len(row.scores) > 1 else (row.mean, row.mean)
        axes.errorbar([place], [row.mean], yerr=[[row.mean - low], [high - row.mean]], fmt="o",
                      color=COLOURS[0], markersize=5, elinewidth=1.0)  # fmt: skip
