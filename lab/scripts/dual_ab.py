"""A/B comparison of two rewards: trains a controller with each and compares their scores.

    python lab/scripts/dual_ab.py --task digits_impaired --a score --b shaped --rounds 20
    python lab/scripts/dual_ab.py --a score --b basic --family-b loss --repeats 3

Both use the same hosts, batches and initial weights. Prints a table of scores with the paired
difference and its 95 % interval, and writes a plot of both curves and all numbers.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from esper.compare.judging import EVALUATION_SEED
from esper.leyline.errors import EsperError
from esper.scripts.cli.command import run_command
from esper.simic.rewards.config import RewardConfig, RewardFamily, RewardMode

if TYPE_CHECKING:
    from rich.table import Table

    from esper.simic.training.config import TrainingConfig
    from esper.simic.training.dual_ab import Difference, DualAB


@dataclass(frozen=True)
class DualAb:
    """Train with two rewards in lockstep and compare the scores."""

    a: RewardMode = "score"
    """Reward mode of the first controller."""
    b: RewardMode = "shaped"
    """Reward mode of the second."""
    family_a: RewardFamily = "contribution"
    """Reward family of the first."""
    family_b: RewardFamily = "contribution"
    """Reward family of the second."""
    task: str = "digits_impaired"
    """The task."""
    preset: str = ""
    """Preset; default: the one named like the task, else plain."""
    rounds: int = 20
    """Training rounds of each controller."""
    envs: int = 16
    """E: members trained in parallel."""
    repeats: int = 1
    """Number of training seeds; with several, the interval is over them."""
    evaluation_envs: int = 16
    """Fresh members for the final evaluation."""
    seed: int = 0
    """First training seed; keys all random draws."""
    episode_length: int | None = None
    """Steps per episode; default: the task's."""
    batches_per_step: int | None = None
    """Training batches per step; default: the task's."""
    device: str = "auto"
    """cpu, cuda, cuda:<number>; auto takes a GPU if there is one."""
    data_dir: Path | None = None
    """Folder of the data sets; default $ESPER_DATA_DIR, then ./data."""
    out: Path = field(default_factory=lambda: Path("out"))
    """Output folder for plot and numbers."""
    quiet: bool = False
    """Print no progress."""

    def check(self) -> None:
        """Check the settings before anything is loaded."""
        for name in ("rounds", "envs", "repeats", "evaluation_envs"):
            if getattr(self, name) < 1:
                flag = name.replace("_", "-")
                raise EsperError(f"--{flag} {getattr(self, name)}: must be 1 or more")

    def training_config(self) -> TrainingConfig:
        """Training settings: the preset with the flags applied."""
        from esper.simic.training.config import PRESETS, TaskConfig, preset

        base = preset(self.preset or (self.task if self.task in PRESETS else "plain"), self.rounds)
        task = base.task if base.task.name == self.task else TaskConfig(self.task)
        if self.episode_length is not None:
            task = replace(task, episode_length=self.episode_length)
        if self.batches_per_step is not None:
            task = replace(task, batches_per_step=self.batches_per_step)
        population = replace(base.population, envs=self.envs, device=self.device)
        return replace(base, task=task, population=population, seed=self.seed)

    @property
    def names(self) -> tuple[str, str]:
        """Names of the two in table and plot."""
        pairs = ((self.a, self.family_a), (self.b, self.family_b))
        a, b = (
            mode if family == "contribution" else f"{mode} ({family})" for mode, family in pairs
        )
        return (f"{a}, a", f"{b}, b") if a == b else (a, b)


def main() -> int:
    """Entry point of the command."""
    return run_command(DualAb, compare)


def compare(config: DualAb) -> None:
    """Check, train both, report. Imports are local, so that --help is fast."""
    config.check()
    training = config.training_config()
    spec = training.task.spec()
    from esper.scripts.cli.report_files import json_file, write_before_printing
    from esper.storage.atomic import require_not_folders, require_writable

    name = f"dual_ab_{spec.name}_{config.a}_{config.b}"
    picture, numbers = config.out / f"{name}.png", config.out / f"{name}.json"
    require_not_folders((picture, numbers))
    require_writable(picture, "--out")
    from esper.simic.training.dual_ab import dual_ab
    from esper.tolaria.runtime import set_deterministic_cublas

    set_deterministic_cublas()
    found = dual_ab(
        training,
        RewardConfig(mode=config.a, family=config.family_a),
        RewardConfig(mode=config.b, family=config.family_b),
        repeats=config.repeats,
        evaluation_seed=EVALUATION_SEED,
        evaluation_envs=config.evaluation_envs,
        spec=spec,
        data=spec.load(config.data_dir),
        on_round=None if config.quiet else _print_round,
    )
    record = json_file(numbers, _numbers(training, found))
    with write_before_printing(
        record, (picture, lambda path: _draw(path, config, found, spec.name))
    ):
        _print(config, found, picture, numbers)


def _print(config: DualAb, found: DualAB, picture: Path, numbers: Path) -> None:
    from rich.console import Console

    from esper.karn.display import say

    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print(table_of(config, found))
    for word, path in (("picture", picture), ("numbers", numbers)):
        say(console, f"{word}: {path}")


def _print_round(repeat: int, round_index: int, scores: tuple[float, float]) -> None:
    a, b = scores
    print(f"training {repeat + 1}, round {round_index + 1}: a {a:.4f}, b {b:.4f}", flush=True)


def table_of(config: DualAb, found: DualAB) -> Table:
    """Table of both scores and their difference."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    a, b = config.names
    title = f"score on {config.task}: {config.rounds} rounds, {config.repeats} training seeds"
    table = Table(title=escape(title), box=SIMPLE_HEAD)
    for column in ("when", a, b, f"{b} minus {a}", "95 %", "over"):
        table.add_column(column, justify="left" if column in ("when", "over") else "right")
    rows = {
        "while learning": (found.learning_scores, found.learning()),
        "fresh members, once trained": (found.judged_scores, found.judged()),
    }
    for when, (means, ahead) in rows.items():
        table.add_row(when, *(f"{mean:.4f}" for mean in means), *_in_words(ahead))
    return table


def _in_words(ahead: Difference) -> tuple[str, str, str]:
    known = ahead.count > 1  # a single difference has no interval
    interval = f"{ahead.low:+.4f} to {ahead.high:+.4f}" if known else "-"
    return f"{ahead.mean:+.4f}", interval, f"{ahead.count} {ahead.over}"


def _draw(path: Path, config: DualAb, found: DualAB, task: str) -> None:
    import numpy as np

    from esper_lab.dual_picture import DualCurves, draw_dual

    a, b = config.names
    score_a_UN = np.concatenate([pair.score_a_UE for pair in found.pairs], axis=1)
    score_b_UN = np.concatenate([pair.score_b_UE for pair in found.pairs], axis=1)
    title = f"{a} and {b} on {task}: {config.envs} members, {config.repeats} training seeds"
    draw_dual(path, DualCurves(a, b, score_a_UN, score_b_UN), title)


def _numbers(training: TrainingConfig, found: DualAB) -> dict[str, object]:
    from esper.leyline.codec import to_json

    return {
        "training": to_json(training),
        "found": to_json(found),
        "learning": to_json(found.learning()),
        "judged": to_json(found.judged()),
    }


if __name__ == "__main__":
    sys.exit(main())
