"""Score constants of a task and the rent they put on growth.

rent = c_p * log2(1 + dP / P0) + c_m * log2(1 + dM / M0) + c_f * (FLOPs / host's - 1)

Scores are accuracy minus this rent (tasks/scoring.py); policies may use it too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from esper.leyline.arrays import Doubles, Floats
from esper.leyline.errors import EsperError


@dataclass(frozen=True, slots=True)
class ScoreConstants:
    """Price of growth in a task, in accuracy (0..1)."""

    c_p: float = 0.02
    """Per doubling of the parameter count."""
    c_m: float = 0.005
    """Per doubling of the multiply-accumulates of one forward."""
    c_f: float = 0.002
    """Per training run of the host, in extra FLOPs."""

    def __post_init__(self) -> None:
        for name in ("c_p", "c_m", "c_f"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise EsperError(f"score constant {name}={value}: must be 0 or more, and finite")

    def rent(
        self,
        params_over_host: Floats | Doubles,
        macs_over_host: Floats | Doubles,
        flops_over_host: Floats | Doubles | float,
    ) -> Doubles:
        """Return the rent of added parameters, MACs and training FLOPs, relative to the host's.

        >>> float(ScoreConstants(c_p=0.1, c_m=0.01, c_f=0.5).rent(np.ones(1), np.zeros(1), 0.2)[0])
        0.2
        """
        doublings_p = np.log2(1.0 + np.asarray(params_over_host, dtype=np.float64))
        doublings_m = np.log2(1.0 + np.asarray(macs_over_host, dtype=np.float64))
        runs = np.asarray(flops_over_host, dtype=np.float64)
        return np.asarray(self.c_p * doublings_p + self.c_m * doublings_m + self.c_f * runs)
