"""`RoundFeed`: passes the record of every round to the run's trackers and to `on_round`.

Figures have the names of the fields of ROUND_COMPLETED and, after `ppo/`, of PPO_UPDATED.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import fields

from esper.leyline.actions import ActionHead, LifecycleOp
from esper.leyline.arrays import Doubles, Ints
from esper.leyline.codec import to_json
from esper.leyline.errors import EsperError
from esper.leyline.payloads import PPOUpdateMetrics
from esper.leyline.user_errors import user_callback
from esper.nissa.trackers.names import require_trackers
from esper.nissa.trackers.tracking import Tracking, track_run
from esper.simic.training.config import TrainingConfig
from esper.simic.training.history import RoundRecord
from esper.simic.training.runs.folder import RunFolder
from esper.simic.training.vectorized_trainer import VectorizedPPOTrainer
from esper.tolaria.round_results import RoundResult

OnRound = Callable[[RoundRecord], None]


class RoundFeed(ExitStack):
    """Hook that comes after those that save: what it calls may raise, and nothing is lost.

    with RoundFeed(config, on_round, ["wandb"], folder) as feed:
        trainer = ...                  with `feed` among its hooks
        feed.begin(trainer.history)    after a resume has restored it
    """

    def __init__(
        self,
        config: TrainingConfig,
        on_round: OnRound | None,
        track: Sequence[str],
        folder: RunFolder | None,
    ) -> None:
        """Raises if a tracker is not installed."""
        super().__init__()
        self._config, self._on_round, self._folder = config, on_round, folder
        self._names = require_trackers(track)
        if self._names and folder is None:
            raise EsperError(
                f"track={list(track)} without run_dir: trackers keep their files in the run folder"
            )
        self._tracking: Tracking | None = None

    def begin(self, history: Sequence[RoundRecord]) -> None:
        """Open the trackers; `history`: rounds of earlier sessions, sent where they are missing."""
        if self._folder is None or not self._names:
            return
        tracking = track_training(self._names, self._folder, self._config, len(history))
        self._tracking = self.enter_context(tracking)
        for step, record in enumerate(history):
            self._tracking.log(step, _record_figures(record))

    def __call__(self, trainer: VectorizedPPOTrainer, record: RoundRecord, /) -> None:
        """Pass the record on."""
        if self._tracking is not None:
            self._tracking.log(len(trainer.history) - 1, _record_figures(record))
        if self._on_round is not None:
            with user_callback("on_round fails"):
                self._on_round(record)


def track_training(
    names: Sequence[str], folder: RunFolder, config: TrainingConfig, rounds_done: int
) -> AbstractContextManager[Tracking]:
    """Track a run of `esper train`."""
    settings = to_json(config)
    assert isinstance(settings, dict)
    return track_run(names, folder.path, folder.path.name, settings, rounds_done)


def _record_figures(record: RoundRecord) -> dict[str, float]:
    """Figures of a round of the learner."""
    chosen, whole_E = zip(LifecycleOp, record.chosen_O, strict=True), record.whole_E
    return {
        **_member_figures(
            record.score_E[whole_E],
            record.accuracy_E[whole_E],
            record.return_E[whole_E],
            record.added_params_E[whole_E],
            record.rollbacks_E[whole_E],
        ),
        "episodes_done": record.episodes_done,
        "cut_steps": record.cut_steps,
        "seconds": record.rollout_seconds,
        "update_seconds": record.update_seconds,
        **{f"chosen/{op.name}": int(count) for op, count in chosen},
        **_update_figures(record.metrics),
    }


def result_figures(done: RoundResult) -> dict[str, float]:
    """Figures of a round of a policy that does not learn."""
    ended = done.outcome
    return {
        **_member_figures(
            ended.score_E,
            ended.accuracy_E,
            ended.episode_return_E,
            ended.added_params_E,
            ended.rollbacks_E,
        ),
        "mean_test_accuracy": float(done.test_E.mean()),
        "seconds": done.seconds,
    }


def _member_figures(
    score_E: Doubles, accuracy_E: Doubles, return_E: Doubles, added_E: Ints, rollbacks_E: Ints
) -> dict[str, float]:
    return {
        "mean_score": float(score_E.mean()),
        "max_score": float(score_E.max()),
        "mean_accuracy": float(accuracy_E.mean()),
        "min_accuracy": float(accuracy_E.min()),
        "max_accuracy": float(accuracy_E.max()),
        "mean_reward": float(return_E.mean()),
        "mean_added_params": float(added_E.mean()),
        "rollbacks": int(rollbacks_E.sum()),
    }


def _update_figures(metrics: PPOUpdateMetrics) -> dict[str, float]:
    found: dict[str, float] = {}
    for field in fields(metrics):
        value = getattr(metrics, field.name)
        if field.name == "head_entropy":
            heads = zip(ActionHead, value, strict=True)
            found |= {f"ppo/head_entropy/{head.name}": one for head, one in heads}
        else:
            found[f"ppo/{field.name}"] = float(value)
    return found
