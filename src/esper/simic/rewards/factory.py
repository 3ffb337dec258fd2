"""`make_reward`: builds a reward from its config.

    reward = make_reward(RewardConfig(mode="escrow"), spec.upkeep)
    rewards_E, components = reward(inputs)

A reward of your own needs no entry here: `RewardConfig(own="FILE.py:NAME")` names one in a file,
and any `RewardProtocol` can be passed to a policy client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from esper.leyline.protocols import RewardProtocol
from esper.simic.rewards.base import ModeReward
from esper.simic.rewards.basic import BasicPlusReward, BasicReward
from esper.simic.rewards.config import RewardConfig, RewardMode
from esper.simic.rewards.escrow import EscrowReward
from esper.simic.rewards.own import load_own_reward
from esper.simic.rewards.score import ScoreReward
from esper.simic.rewards.shaped import ScoreChangeReward, ShapedReward, SimplifiedReward
from esper.simic.rewards.sparse import MinimalReward, SparseReward
from esper.tasks.scoring import Upkeep

MODES: Final[Mapping[RewardMode, type[ModeReward]]] = MappingProxyType(
    {
        "score": ScoreChangeReward,
        "shaped": ShapedReward,
        "simplified": SimplifiedReward,
        "basic": BasicReward,
        "basic_plus": BasicPlusReward,
        "sparse": SparseReward,
        "minimal": MinimalReward,
        "escrow": EscrowReward,
    }
)


def make_reward(
    config: RewardConfig,
    upkeep_rule: Upkeep,
    baseline_curve: Sequence[float] | None = None,
) -> RewardProtocol:
    """Build the reward of a config, for a task with this upkeep.

    `baseline_curve`: mean score of `wait` initially and after each step (T + 1 values), to be
    subtracted; only for mode `score` of the contribution family.
    """
    if config.own:
        return load_own_reward(config.own)
    if config.pays_plain_score:
        curve = None if baseline_curve is None else tuple(float(v) for v in baseline_curve)
        return ScoreReward(upkeep_rule, config.rollback_penalty, curve)
    return MODES[config.mode](config, upkeep_rule)
