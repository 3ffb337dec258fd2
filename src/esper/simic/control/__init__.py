"""Running normalisers of observations and rewards, saved in checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.leyline.lazy import attach

if TYPE_CHECKING:
    from esper.simic.control.normalizers import ObservationNormalizer as ObservationNormalizer
    from esper.simic.control.normalizers import RewardNormalizer as RewardNormalizer
    from esper.simic.control.normalizers import RunningMeanStd as RunningMeanStd
else:
    __getattr__, __dir__, __all__ = attach(__name__)
