"""Score of hosts that never grow, per step; measured once before training.

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

SEED_MASK: Final = 0x7FFFFFFF
"""Mask for seeds drawn from a stream, so that they can be passed as a flag."""


def measure_wait_baseline(
    spec: TaskSpec, config: EngineConfig, data: TaskData | None = None
) -> tuple[float, ...]:
    """Mean score `[T + 1]` of hosts under `WaitPolicy`: at initialisation, then after each step.

    Uses its own random stream, so that training does not depend on whether it was measured.
    """
    seed = stream_seed(config.seed, "wait baseline") & SEED_MASK
    engine = VectorizedEngine(spec, replace(config, seed=seed, rollout_steps=None), data=data)
    engine.run_rollout(WaitPolicy())
    return tuple(map(float, engine.episode.score_TE.mean(axis=1)))
