"""What does waiting bring on a task, step by step? Measured once, before training.

Shape letters: T steps, E members.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from esper.leyline.streams import stream_seed
from esper.tamiyo.baselines import WaitPolicy
from esper.tolaria.engine import VectorizedEngine

if TYPE_CHECKING:
    from esper.tasks.spec import TaskData, TaskSpec
    from esper.tolaria.engine_config import EngineConfig

SEED_BITS: Final = 0x7FFFFFFF
"""Seeds that are drawn from a stream are cut to this, so that they can be typed as a flag."""


def wait_curve(
    spec: TaskSpec, config: EngineConfig, data: TaskData | None = None
) -> tuple[float, ...]:
    """Mean score of hosts that are left alone: of the fresh ones, then after each step.

    They are drawn from a stream of their own, so that what a controller meets while it learns does
    not depend on whether this was measured.
    """
    seed = stream_seed(config.seed, "wait baseline") & SEED_BITS
    engine = VectorizedEngine(spec, replace(config, seed=seed, rollout_steps=None), data=data)
    engine.run_rollout(WaitPolicy())
    return tuple(map(float, engine.episode.score_TE.mean(axis=1)))
