"""Final report of `esper train ppo`: evaluation, paired differences, history."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import NamedTuple

from esper.compare.judging import EVALUATION_SEED, LEARNED, judgement_table
from esper.karn.display import say
from esper.karn.terminal import console_for_report
from esper.leyline.codec import Json, to_json
from esper.scripts.cli.report_files import json_file, write_before_printing
from esper.scripts.cli.run_report import RunReport, print_report, report_file, settings_json
from esper.scripts.train.learner import Learnt
from esper.scripts.train.learner_config import TrainPPO
from esper.simic.training.runs.resume_command import resume_command
from esper.storage.run_files import LEARNING


class _ReportPaths(NamedTuple):
    """Paths of the report files."""

    judged: Path
    history: Path


def report_paths(folder: Path) -> _ReportPaths:
    """Report paths in the report folder of a run."""
    return _ReportPaths(folder / "judged.json", folder / LEARNING)


def report_learner(config: TrainPPO, learnt: Learnt) -> None:
    """Write the files, then print the evaluation and the paths."""
    judged, places = learnt.judged, report_paths(learnt.folder.report)
    report = RunReport(
        policy=LEARNED,
        episodes=judged.members,
        numbers=places.judged,
        settings=settings_json(config),
    )
    history = json_file(places.history, _numbers(learnt))
    with write_before_printing(history, report_file(report, judged.result)):
        print_report(report, judged.result)
        console = console_for_report()
        console.print(judgement_table(judged))
        say(console, judged.verdict_line())
        for label, what in (
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


def _numbers(learnt: Learnt) -> dict[str, Json]:
    return {
        "training": to_json(learnt.training),
        "evaluation_seed": EVALUATION_SEED,
        "judged": learnt.judged.numbers(),
        "history": [to_json(record) for record in learnt.history],
    }
