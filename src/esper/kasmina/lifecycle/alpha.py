"""Alpha curves from 0 to 1, and ramps between two values.

Every curve is monotone and exact at both ends, and a ramp of n steps reaches its target at the
n-th step exactly.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from esper.leyline.actions import AlphaCurve
from esper.leyline.arrays import Codes, Floats, Ints

SIGMOID_STEEPNESS: Final = {
    AlphaCurve.SIGMOID_6: 6.0,
    AlphaCurve.SIGMOID_12: 12.0,
    AlphaCurve.SIGMOID_24: 24.0,
}


def _curve_value(curve: Codes, progress: npt.NDArray[np.float64]) -> Floats:
    """Return the ramp position 0..1 after `progress` 0..1 of its steps."""
    t = np.clip(progress, 0.0, 1.0)
    out = np.where(curve == AlphaCurve.COSINE, 0.5 - 0.5 * np.cos(np.pi * t), t)
    for kind, steepness in SIGMOID_STEEPNESS.items():
        out = np.where(curve == kind, _scaled_sigmoid(t, steepness), out)
    out = np.where(t >= 1.0, 1.0, np.where(t <= 0.0, 0.0, out))
    return np.asarray(out, dtype=np.float32)


def _scaled_sigmoid(t: npt.NDArray[np.float64], steepness: float) -> npt.NDArray[np.float64]:
    """Sigmoid rescaled to start at 0 and end at 1."""
    low = 1.0 / (1.0 + np.exp(steepness / 2))
    raw = 1.0 / (1.0 + np.exp(-steepness * (t - 0.5)))
    return np.asarray((raw - low) / (1.0 - 2.0 * low), dtype=np.float64)


def ramp_alpha(
    start: Floats,
    target: Floats,
    curve: Codes,
    done: Ints,
    total: Ints,
) -> Floats:
    """Alpha after `done` of `total` steps from `start` to `target`; exactly `target` at the end."""
    progress = done / np.maximum(total, 1)
    value = start + (target - start) * _curve_value(curve, progress)
    return np.where(done >= total, target, value).astype(np.float32)
