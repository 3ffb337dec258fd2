"""Hiding of the learning curve: what a policy without feedback from training would observe.

A policy that decides as well without the curve is a calendar or a table, not a controller. Masks
are not changed: what the gates allow stays visible, because it must be obeyed.

Shape letters: E members, S slots.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from esper.leyline.arrays import Bools, Ints
from esper.leyline.signals import TrainingSignals
from esper.leyline.streams import stream_keys

HIDDEN_VALUES: Final[dict[str, float]] = {
    "train_loss_E": np.nan,
    "val_loss_E": np.nan,
    "val_accuracy_E": np.nan,
    "train_accuracy_E": np.nan,
    "train_loss_history_EL": np.nan,
    "val_loss_history_EL": np.nan,
    "val_accuracy_history_EL": np.nan,
    "train_loss_slope_E": 0.0,
    "val_loss_slope_E": 0.0,
    "val_accuracy_slope_E": 0.0,
    "plateau_steps_E": 0,
    "plateaued_E": False,
    "stabilised_E": False,
    "governor_strikes_E": 0,
    "rollbacks_E": 0,
    "steps_since_snapshot_E": 0,
    "contribution_age_ES": -1,
    "contribution_velocity_ES": np.nan,
    "shapley_ES": np.nan,
    "interaction_ES": np.nan,
    "grad_norm_ES": np.nan,
    "grad_health_ES": np.nan,
    "shadow_gap_ES": np.nan,
    "activation_grad_ES": np.nan,
}
"""Fields of `TrainingSignals` that follow from the curve, and their values when it is unknown."""
HIDDEN_SLOT_VALUES: Final[dict[str, float]] = {
    "contribution_ES": np.nan,
    "contribution_se_ES": np.nan,
}
"""The same for `SlotReports`."""


def hide_curve(signals: TrainingSignals, hidden_E: Bools) -> TrainingSignals:
    """Return the signals with the curve of the members `hidden_E` unknown."""
    if not hidden_E.any():
        return signals
    slots = replace(signals.slots, **_hidden(signals.slots, HIDDEN_SLOT_VALUES, hidden_E))
    return replace(signals, slots=slots, **_hidden(signals, HIDDEN_VALUES, hidden_E))


def _hidden(struct: object, values: dict[str, float], hidden_E: Bools) -> dict[str, Any]:
    found: dict[str, npt.NDArray[Any]] = {}
    for name, unknown in values.items():
        found[name] = getattr(struct, name).copy()
        found[name][hidden_E] = unknown
    return found


def draw_hidden(probability: float, seed: int, round_index: int, members: Ints) -> Bools:
    """Members `[E]` whose whole episode hides the curve, drawn with this probability.

    Depends only on (seed, round, member).

    >>> draw_hidden(1.0, 0, 0, np.arange(2)).tolist(), draw_hidden(0.0, 0, 0, np.arange(1)).tolist()
    ([True, True], [False])
    """
    if probability <= 0:
        return np.zeros(len(members), dtype=np.bool_)
    bits = stream_keys(seed, "curve dropout", round_index, members) >> np.uint64(11)
    return np.asarray(bits.astype(np.float64) * 2.0**-53 < probability)
