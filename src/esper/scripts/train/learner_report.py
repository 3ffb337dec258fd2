"""Final report of `esper train ppo`: evaluation, paired differences, learning curves.

Shape letters: E members, U updates.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import NamedTuple

import numpy as np

from esper.compare.judging import EVALUATION_SEED, LEARNED, judgement_table
from esper.karn.console import console_for_report
from esper.karn.display import say
from esper.karn.learning_picture import LearningCurves, Level, draw_learning
from esper.leyline.codec import Json, to_json
from esper.scripts.cli.report_files import json_file, write_before_printing
from esper.scripts.cli.run_report import RunReport, print_report, report_files, settings_json
from esper.scripts.train.learner import Learnt
from esper.scripts.train.learner_config import TrainPPO
from esper.simic.training.history import RoundRecord
from esper.simic.training.runs.resume_command import resume_command
from esper.storage.run_files import LEARNING


class ReportPaths(NamedTuple):
    """Paths of the report files."""

    judged_picture: Path
    judged_numbers: Path
    curve: Path
    history: Path


def report_paths(folder: Path) -> ReportPaths:
    """Report paths in the report folder of a run."""
    names = ("judged.png", "judged.json", "learning.png", LEARNING)
    return ReportPaths(*(folder / name for name in names))


def report_learner(config: TrainPPO, learnt: Learnt) -> None:
    """Write the files, then print the evaluation and the paths."""
    judged, places = learnt.judged, report_paths(learnt.folder.report)
    report = RunReport(
        policy=LEARNED,
        episodes=judged.members,
        picture=places.judged_picture,
        numbers=places.judged_numbers,
        settings=settings_json(config),
    )
    history = json_file(places.history, _numbers(learnt))
    curve = (places.curve, lambda path: _draw(path, learnt))
    with write_before_printing(history, *report_files(report, judged.result), curve):
        print_report(report, judged.result)
        console = console_for_report()
        console.print(judgement_table(judged))
        say(console, judged.verdict_line())
        for label, what in (
            ("learning curve", places.curve),
            ("history", places.history),
            ("run folder", learnt.folder.path),
            ("evaluate again with", shlex.join(["esper", "eval", str(learnt.folder.path)])),
            ("train on with", _more_rounds(learnt)),
        ):
            say(console, f"{label}: {what}")


def _more_rounds(learnt: Learnt) -> str:
    """The command for as many rounds again."""
    training = learnt.training
    return resume_command(learnt.folder.path, training.task.name, rounds=2 * training.rounds)


def curves_of(history: list[RoundRecord]) -> LearningCurves:
    """Convert the history to plot data."""
    return LearningCurves(
        score_UE=np.stack([record.score_E for record in history]),
        whole_UE=np.stack([record.whole_E for record in history]),
        waited_U=np.array([record.waited for record in history]),
        chosen_UOZ=np.stack([record.chosen_OZ for record in history]),
        head_entropy_UA=np.array([record.metrics.head_entropy for record in history]),
        explained_variance_U=np.array([r.metrics.explained_variance for r in history]),
        approx_kl_U=np.array([record.metrics.approx_kl for record in history]),
    )


def _draw(path: Path, learnt: Learnt) -> None:
    levels = [
        Level(f"{name}, judged", float(done.outcome.score_E.mean()))
        for name, done in learnt.judged.by_policy.items()
    ]
    envs = learnt.training.population.envs
    task = learnt.judged.result.task
    title = f"PPO on {task}: {len(learnt.history)} updates, {envs} members"
    draw_learning(path, curves_of(learnt.history), levels, title)


def _numbers(learnt: Learnt) -> dict[str, Json]:
    return {
        "training": to_json(learnt.training),
        "evaluation_seed": EVALUATION_SEED,
        "judged": learnt.judged.numbers(),
        "history": [to_json(record) for record in learnt.history],
    }
