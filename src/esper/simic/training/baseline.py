"""Score of hosts that never grow, per step; measured once before training.

Shape letters: T steps, E members.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from esper.leyline.streams import stream_seed
from esper.simic.distributed.ranks import SINGLE_PROCESS, Ranks
from esper.tamiyo.baselines import WaitPolicy
from esper.tolaria.engine import VectorizedEngine

if TYPE_CHECKING:
    from esper.leyline.arrays import Doubles
    from esper.tasks.spec import TaskSpec
    from esper.tasks.task_data import TaskData
    from esper.tolaria.engine_config import EngineConfig

SEED_MASK: Final = 0x7FFFFFFF
"""Mask for seeds drawn from a stream, so that they can be passed as a flag."""


def measure_wait_baseline(
    spec: TaskSpec,
    config: EngineConfig,
    data: TaskData | None = None,
    ranks: Ranks = SINGLE_PROCESS,
) -> tuple[float, ...]:
    """Mean score `[T + 1]` of hosts under `WaitPolicy`: at initialisation, then after each step.

    The mean is over the members of all `ranks`. Uses its own random stream, so that training does
    not depend on whether it was measured.
    """
    seed = stream_seed(config.seed, "wait baseline") & SEED_MASK
    config = replace(config, seed=seed, rollout_steps=None)
    score_TE = ranks.together(lambda: _wait_scores(spec, config, data))
    return tuple(map(float, ranks.gather(score_TE.T).T.mean(axis=1)))


def _wait_scores(spec: TaskSpec, config: EngineConfig, data: TaskData | None) -> Doubles:
    engine = VectorizedEngine(spec, config, data=data)
    engine.run_rollout(WaitPolicy())
    return engine.episode.score_TE
