"""Sets of stages as arrays, to be indexed by arrays of stages: `IS_LIVE[stage_ES]`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np

from esper.leyline.arrays import Bools
from esper.leyline.stages import LIVE_STAGES, OCCUPIED_STAGES, SeedStage


def stage_mask(stages: Collection[SeedStage]) -> Bools:
    """Return for every stage whether it is one of these; read-only."""
    mask: Bools = np.array([stage in stages for stage in SeedStage])
    mask.flags.writeable = False
    return mask


IS_LIVE: Final = stage_mask(LIVE_STAGES)
"""`LIVE_STAGES` as a mask by stage: `IS_LIVE[stage_ES]`."""
IS_OCCUPIED: Final = stage_mask(OCCUPIED_STAGES)
"""`OCCUPIED_STAGES` as a mask by stage."""
