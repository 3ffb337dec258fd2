"""Final report of `esper train ppo`: evaluation, paired differences, history."""

from __future__ import annotations

import shlex
from pathlib import Path

from esper.compare.judging import EVALUATION_SEED
from esper.leyline.codec import to_json
from esper.scripts.cli.report_files import json_file
from esper.scripts.cli.run_report import report_judged, settings_json
from esper.scripts.train.learner import Learnt
from esper.scripts.train.learner_config import TrainPPO
from esper.simic.training.runs.folder import report_dir
from esper.simic.training.runs.policy_file import LEARNER
from esper.storage.run_files import LEARNING
from esper.storage.sessions import resume_training


def report_paths(folder: Path) -> tuple[Path, Path]:
    """Paths of the numbers in the report folder of a run, and of the history."""
    return folder / "judged.json", folder / LEARNING


def report_learner(config: TrainPPO, learnt: Learnt) -> None:
    """Write the files, then print the evaluation and the paths."""
    training, folder = config.training, learnt.folder.path
    numbers, place = report_paths(report_dir(folder))
    record = {
        "training": to_json(training),
        "evaluation_seed": EVALUATION_SEED,
        "judged": learnt.judged.numbers(),
        "history": [to_json(record) for record in learnt.history],
    }
    longer = resume_training(folder, LEARNER, 2 * training.rounds, bool(training.user_files))
    lines = (
        ("history", place),
        ("run folder", folder),
        ("evaluate again with", shlex.join(["esper", "eval", str(folder)])),
        ("train on with", longer),
    )
    report_judged(learnt.judged, numbers, settings_json(config), json_file(place, record), lines)
