"""What a growth run says at its end: the table, the summary, the picture, the numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from esper.karn.growth_picture import Curve, LifeLines, draw_growth
from esper.karn.stages import STAGE_WORDS
from esper.leyline.arrays import Doubles
from esper.leyline.codec import Json, to_json
from esper.leyline.files import write_whole
from esper.leyline.stages import SeedStage
from esper.leyline.statistics import t_interval
from esper.scripts.growth_config import ARM_LABELS, Arm, GrowDigits
from esper.scripts.growth_run import RunResult, SeedLives
from esper.scripts.machine import describe


def print_report(console: Console, config: GrowDigits, results: Sequence[RunResult]) -> None:
    """A table of members (of runs, where there are several) and the paired differences."""
    table = members_table(config, results[0]) if len(results) == 1 else runs_table(config, results)
    console.print(table)
    for line in summary_lines(config, results):
        console.print(line, highlight=False, soft_wrap=True)


def members_table(config: GrowDigits, result: RunResult) -> Table:
    """One line a member: what stands in its slots, what it costs, how well it does."""
    table = _table("Members after the last step")
    table.add_column("member", justify="right")
    for slot in result.lives.slots:
        table.add_column(slot)
    for name in ("params", "MACs"):
        table.add_column(name, justify="right")
    _add_accuracy_columns(table, config)
    grown = result.arms[Arm.GROWN]
    for member in range(config.members):
        table.add_row(
            str(member),
            *(slot_word(result.lives, member, slot) for slot in range(len(result.lives.slots))),
            f"{grown.parameters_E[member]:,}",
            f"{grown.macs_E[member]:,}",
            *_accuracy_cells({arm: float(result.arms[arm].test_E[member]) for arm in config.arms}),
        )
    return table


def runs_table(config: GrowDigits, results: Sequence[RunResult]) -> Table:
    """One line a run seed, means over its members."""
    table = _table(f"Runs, means over {config.members} members")
    for name in ("seed", "permanent", "pruned", "params", "MACs"):
        table.add_column(name, justify="right")
    _add_accuracy_columns(table, config)
    for result in results:
        grown, lives = result.arms[Arm.GROWN], result.lives
        table.add_row(
            str(result.seed),
            str(int((lives.final_ES == SeedStage.FOSSILIZED).sum())),
            str(int(lives.pruned_ES.sum())),
            f"{grown.parameters_E.mean():,.0f}",
            f"{grown.macs_E.mean():,.0f}",
            *_accuracy_cells({arm: float(result.arms[arm].test_E.mean()) for arm in config.arms}),
        )
    return table


def _table(title: str) -> Table:
    """Narrow enough for 80 columns."""
    return Table(
        title=title,
        title_justify="left",
        caption="right answers on the test images, %; gain: grown - alone",
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )


def _add_accuracy_columns(table: Table, config: GrowDigits) -> None:
    for name in (*config.arms, "gain"):
        table.add_column(name, justify="right")


def _accuracy_cells(accuracy: Mapping[Arm, float]) -> list[str]:
    difference = accuracy[Arm.GROWN] - accuracy[Arm.ALONE]
    return [*(f"{100 * value:.1f}" for value in accuracy.values()), f"{100 * difference:+.1f}"]


def slot_word(lives: SeedLives, member: int, slot: int) -> str:
    """What stands in a slot at the end; a slot emptied by a prune says so."""
    if lives.pruned_ES[member, slot]:
        return STAGE_WORDS[SeedStage.PRUNED]
    return STAGE_WORDS[SeedStage(lives.final_ES[member, slot])]


def summary_lines(config: GrowDigits, results: Sequence[RunResult]) -> list[str]:
    """What the populations cost and the paired difference of the grown one to each other one."""
    lines = []
    for arm in config.arms:
        ends = [result.arms[arm] for result in results]
        parameters = np.mean([end.parameters_E.mean() for end in ends])
        macs = np.mean([end.macs_E.mean() for end in ends])
        lines.append(
            f"{ARM_LABELS[arm]}: {100 * np.mean([end.test_E.mean() for end in ends]):.1f} %, "
            f"{parameters:,.0f} parameters and {macs:,.0f} MACs an image, "
            f"learning rate {config.rate(arm).lr:g} {config.rate(arm).schedule}"
        )
    lines.append(judgement_text(results))
    for other in config.arms[1:]:
        lines.append(f"[bold]grown against {ARM_LABELS[other]}: {difference_text(results, other)}")
    return lines


def judgement_text(results: Sequence[RunResult]) -> str:
    """How many seeds were kept, and what they were worth when they were judged."""
    pruned = np.concatenate([result.lives.pruned_ES.ravel() for result in results])
    worth = np.concatenate([result.lives.contribution_ES.ravel() for result in results])
    judged = ~np.isnan(worth)
    if not judged.any():
        return "seeds judged: none"
    points = 100 * worth[judged]
    return (
        f"seeds judged: {judged.sum() - pruned.sum()} kept, {pruned.sum()} pruned; "
        f"contribution (accuracy on val_control with it minus without): mean {points.mean():+.1f} "
        f"points, {points.min():+.1f} to {points.max():+.1f}"
    )


def paired_differences(results: Sequence[RunResult], other: Arm) -> Doubles:
    """Test accuracy grown minus other: a value per member of one run, or per run of several."""
    pairs = [
        result.arms[Arm.GROWN].test_E.astype(np.float64) - result.arms[other].test_E
        for result in results
    ]
    return pairs[0] if len(pairs) == 1 else np.array([pair.mean() for pair in pairs])


def difference_text(results: Sequence[RunResult], other: Arm) -> str:
    """`+61.2 points (95 % interval +58.0 to +64.4, n = 8 members)`"""
    differences = 100 * paired_differences(results, other)
    mean, low, high = t_interval(differences)
    what = "members" if len(results) == 1 else "run seeds"
    if np.isnan(low):
        return f"{mean:+.1f} points (n = 1 member: no interval)"
    return (
        f"{mean:+.1f} points on test (95 % interval {low:+.1f} to {high:+.1f}, "
        f"n = {len(differences)} {what})"
    )


def draw_picture(config: GrowDigits, results: Sequence[RunResult]) -> None:
    """Curves of members, or of runs where there are several; the seeds' lives of the first run."""
    several = len(results) > 1
    curves = [
        Curve(
            ARM_LABELS[arm],
            np.stack([result.arms[arm].val_score_TE.mean(axis=1) for result in results])
            if several
            else results[0].arms[arm].val_score_TE.T,
        )
        for arm in config.arms
    ]
    lives = results[0].lives
    draw_growth(
        config.out,
        curves,
        LifeLines(lives.slots, lives.stage_TES, lives.leaving_TES),
        title=f"Growing {config.blueprint} seeds in a small network that learns to read digits",
        each=f"run, mean of {config.members} members" if several else "member",
        lives_note=f" of the run with seed {results[0].seed}" if several else "",
    )


def write_numbers(config: GrowDigits, results: Sequence[RunResult], seconds: float) -> None:
    """Everything measured, and with what, as JSON beside the picture; one line for each part."""
    record: dict[str, Json] = {
        "config": _config_json(config),
        "machine": {**describe(torch.device(config.device))},
        "runs": [_run_json(result) for result in results],
        "paired_difference": {
            other.value: _difference_json(results, other) for other in config.arms[1:]
        },
        "seconds": round(seconds, 1),
    }
    lines = [f"{json.dumps(name)}: {json.dumps(record[name], allow_nan=False)}" for name in record]
    write_whole(config.numbers_path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def _config_json(config: GrowDigits) -> dict[str, Json]:
    values = {f.name: getattr(config, f.name) for f in fields(config)}
    return {n: str(v) if isinstance(v, Path) else to_json(v) for n, v in values.items()}


def _run_json(result: RunResult) -> dict[str, Json]:
    arms: dict[str, Json] = {arm.value: to_json(end) for arm, end in result.arms.items()}
    return {"seed": result.seed, "arms": arms, "lives": to_json(result.lives)}


def _difference_json(results: Sequence[RunResult], other: Arm) -> dict[str, Json]:
    differences = paired_differences(results, other)
    mean, low, high = t_interval(differences)
    return {
        "over": "members" if len(results) == 1 else "run seeds",
        "values": to_json(differences),
        "mean": to_json(float(mean)),
        "low": to_json(float(low)),
        "high": to_json(float(high)),
    }
