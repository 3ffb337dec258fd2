"""The study of a sweep: Optuna proposes trials, sees their rounds, and keeps them in a database.

    OUT/study.db         Optuna's storage (SQLite); optuna-dashboard shows it
    OUT/settings.json    what is searched, and how; a mismatch raises
    OUT/lock             held by the command that writes

A proposal depends on the seed, on how many trials there were, and on their results: one that was
interrupted continues as if it had not been. Trials that were running then are run again.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, Trial, TrialState

import esper
from esper.leyline.codec import Json, to_json
from esper.leyline.errors import EsperError
from esper.leyline.streams import stream_seed
from esper.storage.atomic import require_not_folders, require_writable, write_atomic
from esper.storage.sealed_json import differences, json_bytes, read_document
from esper_lab.progress.sweep import SweepProgress
from esper_lab.sweep.config import Sweep
from esper_lab.sweep.database import damage_is_one_line, require_sound
from esper_lab.sweep.space import Axis, Choices, Space
from esper_lab.sweep.trials import RoundScore, TrialJob, TrialResult

STUDY: Final = "study.db"
SETTINGS: Final = "settings.json"
NAME: Final = "sweep"
SCORES: Final = "scores"
SECONDS: Final = "seconds"
DONE: Final = (TrialState.COMPLETE, TrialState.PRUNED)


def open_study(config: Sweep, space: Space, folder: Path) -> optuna.Study:
    """Create the study, or open the one in the folder; raises if that has other settings."""
    require_not_folders((folder / SETTINGS, folder / STUDY))
    require_writable(folder / SETTINGS, "--out")
    path, wanted = folder / SETTINGS, _settings(config, space)
    if path.exists():
        different = next(differences(read_document(path), wanted), None)
        if different is not None:
            raise EsperError(
                f"{folder} holds a sweep with other settings: {different.refusal}; set it back or "
                f"choose another --out"
            )
    else:
        write_atomic(path, json_bytes(wanted))
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    require_sound(folder / STUDY)
    with damage_is_one_line(folder / STUDY):
        study = optuna.create_study(
            storage=f"sqlite:///{(folder / STUDY).absolute()}",
            study_name=NAME,
            direction="maximize",
            pruner=_pruner(config),
            load_if_exists=True,
        )
        for trial in study.get_trials(states=(TrialState.RUNNING,)):  # of a command that was killed
            study.enqueue_trial(trial.params)
            study.tell(trial.number, state=TrialState.FAIL)
        return study


def _settings(config: Sweep, space: Space) -> Json:
    return {
        "training": to_json(config.training),
        "space": {name: to_json(axis) for name, axis in space.items()},
        "repeats": config.repeats,
        "evaluation_envs": config.evaluation_envs,
        "sampler": config.sampler,
        "pruner": config.pruner,
        "esper": esper.__version__,
        "torch": version("torch"),
        "optuna": version("optuna"),
    }


def finished(study: optuna.Study) -> list[FrozenTrial]:
    """Complete and pruned trials, in their order."""
    return list(study.get_trials(deepcopy=False, states=DONE))


class StudyJobs:
    """Source of trials."""

    def __init__(
        self, config: Sweep, space: Space, study: optuna.Study, shown: SweepProgress | None
    ) -> None:
        self._config, self._study, self._shown = config, study, shown
        self._axes = {name: _distribution(axis) for name, axis in space.items()}
        self._asked = len(finished(study))
        self._running: dict[int, Trial] = {}
        self._reported: dict[int, set[int]] = {}
        self.most = max(0, config.trials - self._asked)

    def next(self) -> TrialJob | None:
        """The next proposal."""
        if self._asked >= self._config.trials:
            return None
        self._study.sampler = _sampler(self._config, self._asked)
        self._asked += 1
        trial = self._study.ask(self._axes)
        self._running[trial.number], self._reported[trial.number] = trial, set()
        return TrialJob(trial.number, self._config.trial_training(trial.params))

    def label(self, job: TrialJob) -> str:
        """The trial's number."""
        return f"trial {job.number}"

    def answer(self, job: TrialJob, question: RoundScore) -> bool:
        """Pass a round on to the pruner; returns whether the trial ends."""
        trial, reported = self._running[job.number], self._reported[job.number]
        if question.step not in reported:  # a trial that started again repeats its rounds
            reported.add(question.step)
            trial.report(question.score, question.step)
        if self._shown is not None:
            self._shown.round_done(self.label(job), question.score)
        return bool(trial.should_prune())

    def keep(self, job: TrialJob, result: TrialResult) -> None:
        """Tell the study."""
        trial = self._running.pop(job.number)
        trial.set_user_attr(SECONDS, round(result.seconds, 1))
        if result.pruned:
            self._study.tell(trial, state=TrialState.PRUNED)
            line = f"pruned after {len(self._reported[job.number])} rounds"
        else:
            trial.set_user_attr(SCORES, result.score_N.tolist())
            score = float(result.score_N.mean())
            self._study.tell(trial, score)
            line = f"score {score:.4f} on {len(result.score_N)} hosts"
        if self._shown is not None:
            self._shown.say(f"{self.label(job)}: {line} ({values_text(trial.params)})")


def values_text(values: Mapping[str, Any]) -> str:
    """`gamma 0.95, epochs 4`"""
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    )


def _distribution(axis: Axis) -> BaseDistribution:
    if isinstance(axis, Choices):
        return CategoricalDistribution(axis.values)
    if axis.whole:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return FloatDistribution(axis.low, axis.high, log=axis.log)


def _sampler(config: Sweep, trial: int) -> optuna.samplers.BaseSampler:
    """A sampler for one proposal, so that it does not depend on when the command started."""
    seed = stream_seed(config.training.seed, "sweep", trial) % 2**32
    if config.sampler == "tpe":
        return optuna.samplers.TPESampler(seed=seed, constant_liar=config.jobs.processes > 1)
    if config.sampler == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    whole = stream_seed(config.training.seed, "sweep") % 2**32  # one sequence for all trials
    return optuna.samplers.QMCSampler(seed=whole, warn_independent_sampling=False)


def _pruner(config: Sweep) -> optuna.pruners.BasePruner:
    rounds = config.training.rounds * config.repeats
    if config.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=rounds // 4)
    if config.pruner == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=1, max_resource=rounds)
    return optuna.pruners.NopPruner()
