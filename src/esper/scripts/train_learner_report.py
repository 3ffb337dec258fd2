"""What `train ppo` says at its end: the judgement, its paired differences, the learning curve.

Shape letters: E members, U updates.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from esper.karn.learning_picture import LearningCurves, Level, draw_learning
from esper.leyline.arrays import Doubles
from esper.leyline.codec import Json, to_json
from esper.leyline.files import write_whole
from esper.leyline.statistics import t_interval
from esper.scripts.records import json_bytes
from esper.scripts.train_config import EVALUATION_SEED, Train
from esper.scripts.train_learner import LEARNED, Judged, Learnt
from esper.scripts.train_report import console_for_report, report
from esper.simic.training.history import RoundRecord


def report_learner(config: Train, learnt: Learnt) -> None:
    """The table, picture and numbers of the judgement as for any policy; then what was learnt."""
    report(config, learnt.judged.result, episodes=config.evaluation_envs)
    console = console_for_report()
    console.print(comparison_table(config, learnt.judged))
    name = f"train_ppo_{config.task_name}_learning"
    picture, numbers = config.out / f"{name}.png", config.out / f"{name}.json"
    _draw(picture, config, learnt)
    write_whole(numbers, json_bytes(_numbers(learnt)))
    agent = config.out / f"train_ppo_{config.task_name}_agent"
    for word, path in (("learning curve", picture), ("history", numbers), ("agent", agent)):
        console.print(f"{word}: {path}", highlight=False, soft_wrap=True)


def comparison_table(config: Train, judged: Judged) -> Table:
    """Every policy on the same members, and how far the learned one is ahead of it, in pairs."""
    title = f"{config.evaluation_envs} fresh members (seed {EVALUATION_SEED}), same for all"
    table = Table(title=title, box=SIMPLE_HEAD)
    columns = ("policy", "score", "accuracy, test", "parameters / host's", "ppo ahead by", "95 %")
    for column in columns:
        table.add_column(column, justify="left" if column == "policy" else "right")
    host = judged.result.host_params
    for name, done in judged.by_policy.items():
        outcome = done.outcome
        row = [
            name,
            f"{outcome.score_E.mean():.4f}",
            f"{done.test_E.mean():.1%}",
            f"{1 + outcome.added_params_E.mean() / host:.2f}",
        ]
        if name != LEARNED:
            mean, low, high = (float(x) for x in t_interval(ahead(judged, name)))
            row += [f"{mean:+.4f}", f"{low:+.4f} to {high:+.4f}"]
        table.add_row(*row)
    return table


def ahead(judged: Judged, other: str) -> Doubles:
    """Score of the learned policy minus another's, member by member `[E]`."""
    found = judged.by_policy
    return np.asarray(found[LEARNED].outcome.score_E - found[other].outcome.score_E)


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


def _draw(path: Path, config: Train, learnt: Learnt) -> None:
    levels = [
        Level(f"{name}, judged", float(done.outcome.score_E.mean()))
        for name, done in learnt.judged.by_policy.items()
    ]
    title = f"PPO on {config.task_name}: {len(learnt.history)} updates, {config.envs} members"
    draw_learning(path, curves_of(learnt.history), levels, title)


def _numbers(learnt: Learnt) -> dict[str, Json]:
    return {
        "training": to_json(learnt.training),
        "evaluation_seed": EVALUATION_SEED,
        "judged": {
            name: {"outcome": to_json(done.outcome), "test_E": done.test_E.tolist()}
            for name, done in learnt.judged.by_policy.items()
        },
        "history": [to_json(record) for record in learnt.history],
    }
