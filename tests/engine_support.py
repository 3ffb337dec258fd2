"""Small engines for tests: made-up images, a tiny host, every policy that does not learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from esper.leyline.protocols import EngineListener
from esper.leyline.records import StepRecord
from esper.simic.rewards.score import ScoreReward
from esper.tamiyo.baselines import RandomPolicy
from esper.tasks.spec import TaskSpec
from esper.tasks.synthetic_images import synthetic_spec
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.engine_config import EngineConfig
from esper.tolaria.episode import EpisodeTracker
from esper.tolaria.governor import GovernorConfig

HISTORIES = (
    "score_TE", "score_accuracy_TE", "score_loss_TE", "accuracy_TE", "loss_TE", "train_loss_TE",
)  # fmt: skip


CALM = GovernorConfig(spike_steps=1000, learnt_share=0.99)
"""Only what is not finite is a panic: small validation sets are noisy."""


def small_task(**changes: Any) -> TaskSpec:
    """Eight-pixel images, two train batches of 16 a step."""
    settings: dict[str, Any] = {
        "train": 200,
        "validation": 60,
        "batch_size": 16,
        "batches_per_step": 2,
        "episode_length": 12,
        "kernel_size": 1,
    }
    return synthetic_spec(**(settings | changes))


def small_engine(
    spec: TaskSpec | None = None, listener: EngineListener | None = None, **config: Any
) -> VectorizedEngine:
    """An engine on the CPU with few members."""
    settings: dict[str, Any] = {"members": 4, "device": "cpu"}
    return VectorizedEngine(spec or small_task(), EngineConfig(**(settings | config)), listener)


def random_policy(seed: int = 0, spec: TaskSpec | None = None) -> RandomPolicy:
    """Masked uniform actions, paid by the score."""
    return RandomPolicy(seed, ScoreReward((spec or small_task()).upkeep))


def histories(episode: EpisodeTracker) -> dict[str, np.ndarray]:
    """Copies of all histories of an episode."""
    return {name: getattr(episode, name).copy() for name in HISTORIES}


class Diary:
    """A listener that keeps everything it is told, in order."""

    def __init__(self, watch: Callable[[StepRecord], None] | None = None) -> None:
        self.records: list[StepRecord] = []
        self.slot_events: list[tuple[int, int, Any]] = []
        self.reported: list[str] = []
        self.watch = watch

    def on_round_start(self, round_index: int, members: int) -> None:
        self.reported.append(f"start {round_index}")

    def on_slot_events(self, round_index: int, step: int, payload: Any) -> None:
        self.slot_events.append((round_index, step, payload))

    def on_step(self, record: StepRecord) -> None:
        self.records.append(record)
        self.reported.append(f"step {record.signals.step}")
        if self.watch is not None:
            self.watch(record)

    def on_round_end(self, rollout: Any) -> None:
        self.reported.append(f"end {rollout.round_index}")
