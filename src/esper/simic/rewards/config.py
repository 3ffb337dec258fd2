"""Which reward a controller learns from, and with which weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, get_args

from esper.leyline.errors import EsperError, unknown_name

RewardMode = Literal[
    "score", "shaped", "simplified", "basic", "basic_plus", "sparse", "minimal", "escrow"
]
RewardFamily = Literal["contribution", "loss"]

REWARD_MODES: Final[tuple[RewardMode, ...]] = get_args(RewardMode)
REWARD_FAMILIES: Final[tuple[RewardFamily, ...]] = get_args(RewardFamily)


@dataclass(frozen=True, slots=True)
class RewardConfig:
    """What a controller is paid for. `score` is what is reported; the others study shaping."""

    mode: RewardMode = "score"
    """When and for what it is paid; docs/rewards.md has the formulas."""
    family: RewardFamily = "contribution"
    """How progress is measured: accuracy, and seeds by their counterfactual `contribution`; or the
    fall of the `loss`, shared by the seeds that are blended in."""
    rollback_penalty: float = 0.1
    """Taken off where the governor set a member back, in score."""
    contribution_weight: float = 1.0
    """shaped, simplified, basic_plus, escrow: what a seed's worth counts, per unit of accuracy."""
    stage_weight: float = 0.02
    """shaped: potential of a seed that has gone all the way; earlier stages have a part of it."""
    rent: float = 0.02
    """simplified, basic, basic_plus, escrow: what standing for a whole episode costs, per doubling
    of the parameters; in the loss family it is also the price of growth in the score."""
    advance: float = 0.5
    """escrow: share of a live seed's account that is paid ahead, and taken back if it is pruned."""
    wait_baseline: bool = False
    """score: take off what waiting would have brought, measured in one episode before training. A
    function of the step alone: less variance, the same best policy."""

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
        """What is paid is the change of the task's own score."""
        return self.mode == "score" and self.family == "contribution"
