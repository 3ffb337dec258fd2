"""What `train ppo` says at its end: the judgement, its paired differences, the learning curve.

Shape letters: E members, U updates.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from esper.karn.learning_picture import LearningCurves, Level, draw_learning
from esper.leyline.codec import Json, to_json
from esper.leyline.files import write_whole
from esper.scripts.judging import EVALUATION_SEED, LEARNED, judgement_table
from esper.scripts.records import json_bytes
from esper.scripts.train_learner import Learnt
from esper.scripts.train_learner_config import TrainPPO
from esper.scripts.train_report import Shown, console_for_report, report, settings_of
from esper.simic.training.history import RoundRecord


def report_learner(config: TrainPPO, learnt: Learnt) -> None:
    """The table, picture and numbers of the judgement as for any policy; then what was learnt."""
    judged, folder = learnt.judged, learnt.folder.report
    folder.mkdir(exist_ok=True)
    shown = Shown(
        policy=LEARNED,
        episodes=judged.members,
        picture=folder / "judged.png",
        numbers=folder / "judged.json",
        settings=settings_of(config),
    )
    report(shown, judged.result)
    console = console_for_report()
    console.print(judgement_table(judged))
    console.print(judged.growing_line(), highlight=False, soft_wrap=True)
    picture, numbers = folder / "learning.png", folder / "learning.json"
    _draw(picture, learnt)
    write_whole(numbers, json_bytes(_numbers(learnt)))
    told = (
        ("learning curve", picture),
        ("history", numbers),
        ("run folder", learnt.folder.path),
        ("judge it again", f"esper eval {learnt.folder.path}"),
    )
    for word, what in told:
        console.print(f"{word}: {what}", highlight=False, soft_wrap=True)


def curves_of(history: list[RoundRecord]) -> LearningCurves:
    """The history in the picture's words."""
    return LearningCurves(
        score_UE=np.stack([record.score_E for record in history]),
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
