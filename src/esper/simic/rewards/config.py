"""`RewardConfig`: reward mode, family and weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Final, Literal, get_args

import tyro

from esper.leyline.errors import EsperError, unknown_name

RewardMode = Literal[
    "score", "shaped", "simplified", "basic", "basic_plus", "sparse", "minimal", "escrow"
]
RewardFamily = Literal["contribution", "loss"]

REWARD_MODES: Final[tuple[RewardMode, ...]] = get_args(RewardMode)
REWARD_FAMILIES: Final[tuple[RewardFamily, ...]] = get_args(RewardFamily)


@dataclass(frozen=True, slots=True)
class RewardConfig:
    """Reward settings. `score` is the reported metric; the other modes are for shaping studies."""

    mode: RewardMode = "score"
    """Reward mode; docs/rewards.md has the formulas."""
    family: RewardFamily = "contribution"
    """How progress is measured: `contribution`: accuracy, and counterfactual contribution of seeds;
    `loss`: decrease of the loss, shared by the blended seeds."""
    rollback_penalty: float = 0.1
    """Penalty for a rollback by the governor, in score."""
    contribution_weight: float = 1.0
    """shaped, simplified, basic_plus, escrow: weight of a seed's worth, per unit of accuracy."""
    stage_weight: float = 0.02
    """shaped: potential of a fossilised seed; earlier stages get a fraction of it."""
    rent: float = 0.02
    """simplified, basic, basic_plus, escrow: cost of added parameters over a whole episode, per
    doubling of the parameters; in the loss family also the price of growth in the score."""
    advance: float = 0.5
    """escrow: fraction of an active seed's account paid in advance, taken back if it is pruned."""
    wait_baseline: bool = False
    """score: subtract the score gain of hosts that never grow, measured in one episode before
    training. Depends on the step only: less variance, same optimal policy."""
    own: Annotated[str, tyro.conf.arg(name="reward", prefix_name=False)] = ""
    """A reward of your own instead, as FILE.py:NAME; the file is run."""

    def __post_init__(self) -> None:
        if self.mode not in REWARD_MODES:
            raise unknown_name("reward mode", self.mode, REWARD_MODES)
        if self.family not in REWARD_FAMILIES:
            raise unknown_name("reward family", self.family, REWARD_FAMILIES)
        for name in ("rollback_penalty", "contribution_weight", "stage_weight", "rent"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise EsperError(f"reward {name}={value}: must be 0 or more, and finite")
        if not 0 <= self.advance <= 1:
            raise EsperError(f"reward advance={self.advance}: must be from 0 to 1")
        if self.wait_baseline and not self.pays_plain_score:
            raise EsperError(
                f"reward wait_baseline with mode {self.mode!r}, family {self.family!r}: it is a "
                f"curve of scores; use mode 'score', family 'contribution', or leave it out"
            )

    @property
    def pays_plain_score(self) -> bool:
        """Whether the reward is the change of the task's own score."""
        return self.mode == "score" and self.family == "contribution" and not self.own
