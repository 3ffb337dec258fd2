"""Final report of `esper train ppo`: evaluation, paired differences, history."""

from __future__ import annotations

import shlex
from pathlib import Path

from esper.compare.judging import EVALUATION_SEED
from esper.leyline.codec import Json, to_json
from esper.scripts.cli.report_files import json_file
from esper.scripts.cli.run_report import report_judged, settings_json
from esper.scripts.train.learner import Learnt
from esper.scripts.train.learner_config import TrainPPO
from esper.simic.training.runs.resume_command import resume_command
from esper.storage.run_files import LEARNING


def report_paths(folder: Path) -> tuple[Path, Path]:
    """Paths of the numbers in the report folder of a run, and of the history."""
    return folder / "judged.json", folder / LEARNING


def report_learner(config: TrainPPO, learnt: Learnt) -> None:
    """Write the files, then print the evaluation and the paths."""
    numbers, place = report_paths(learnt.folder.report)
    history = json_file(place, _numbers(learnt))
    lines = (
        ("history", place),
        ("run folder", learnt.folder.path),
        ("evaluate again with", shlex.join(["esper", "eval", str(learnt.folder.path)])),
        ("train on with", _more_rounds(learnt)),
    )
    report_judged(learnt.judged, numbers, settings_json(config), history, lines)


def _more_rounds(learnt: Learnt) -> str:
    """The command for as many rounds again."""
    training = learnt.training
    return resume_command(learnt.folder.path, training.task.name, rounds=2 * training.rounds)


def _numbers(learnt: Learnt) -> dict[str, Json]:
    return {
        "training": to_json(learnt.training),
        "evaluation_seed": EVALUATION_SEED,
        "judged": learnt.judged.numbers(),
        "history": [to_json(record) for record in learnt.history],
    }
