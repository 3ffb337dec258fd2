"""Tracking of training signals per member: histories, slopes, plateaus and stabilisation.

A non-finite value is kept in the history, ignored by the slopes and never counts as an
improvement.

Shape letters: E members, L last values.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from esper.leyline.arrays import ArrayStruct, Bools, Doubles, Floats, Ints
from esper.leyline.errors import EsperError
from esper.leyline.masks import require_mask
from esper.leyline.signals import HISTORY_LENGTH


@dataclass(frozen=True, slots=True)
class SignalConfig:
    """Thresholds for `plateaued_E` and `stabilised_E`."""

    plateau_tolerance: float = 0.005
    """Smallest drop of the validation loss below its last improvement that counts as one."""
    plateau_patience: int = 5
    """Steps without improvement after which a member is plateaued."""
    steep_descent: float = 0.03
    """Relative drop below the lowest validation loss so far that counts as a steep step."""
    stabilisation_steps: int = 3
    """Consecutive steps that are not steep after which a member is stabilised."""

    def __post_init__(self) -> None:
        for name in ("plateau_patience", "stabilisation_steps"):
            if getattr(self, name) < 1:
                raise EsperError(f"SignalConfig.{name}={getattr(self, name)}: must be 1 or more")
        for name in ("plateau_tolerance", "steep_descent"):
            if not 0 <= getattr(self, name) < np.inf:
                raise EsperError(
                    f"SignalConfig.{name}={getattr(self, name)}: must be finite, 0 or more"
                )


@dataclass(frozen=True, slots=True, eq=False)
class TrackedSignals(ArrayStruct):
    """Fields of `TrainingSignals` computed by the tracker; documented there."""

    train_loss_history_EL: Floats
    val_loss_history_EL: Floats
    val_accuracy_history_EL: Floats
    train_loss_slope_E: Floats
    val_loss_slope_E: Floats
    val_accuracy_slope_E: Floats
    plateau_steps_E: Ints
    plateaued_E: Bools
    stabilised_E: Bools


@dataclass(slots=True)
class _TrackerState:
    """State carried from step to step."""

    train_loss_history_EL: Floats
    val_loss_history_EL: Floats
    val_accuracy_history_EL: Floats
    reference_loss_E: Doubles
    """Validation loss at the last improvement; +inf before the first finite value."""
    plateau_steps_E: Ints
    lowest_loss_E: Doubles
    """Lowest finite validation loss so far; +inf before the first."""
    calm_steps_E: Ints
    """Consecutive steps that were not steep."""
    stabilised_E: Bools

    @classmethod
    def fresh(cls, members: int) -> _TrackerState:
        """Return the state at the start of an episode."""
        unseen_EL = np.full((members, HISTORY_LENGTH), np.nan, dtype=np.float32)
        return cls(
            train_loss_history_EL=unseen_EL,
            val_loss_history_EL=unseen_EL.copy(),
            val_accuracy_history_EL=unseen_EL.copy(),
            reference_loss_E=np.full(members, np.inf),
            plateau_steps_E=np.zeros(members, dtype=np.int64),
            lowest_loss_E=np.full(members, np.inf),
            calm_steps_E=np.zeros(members, dtype=np.int64),
            stabilised_E=np.zeros(members, dtype=np.bool_),
        )

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Arrays by field name, without copying."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


class SignalTracker:
    """Tracks losses and accuracy of E members through an episode.

    >>> tracker = SignalTracker(1, SignalConfig(plateau_patience=2))
    >>> for loss in (1.0, 0.5, 0.5, 0.5):
    ...     seen = tracker.update(np.array([loss]), np.array([loss]), np.array([1 - loss]))
    >>> seen.plateau_steps_E.tolist(), seen.plateaued_E.tolist()
    ([2], [True])
    """

    def __init__(self, members: int, config: SignalConfig | None = None) -> None:
        self.members = members
        self.config = config or SignalConfig()
        self._state = _TrackerState.fresh(members)

    def update(
        self, train_loss_E: Floats, val_loss_E: Floats, val_accuracy_E: Floats
    ) -> TrackedSignals:
        """Append the measurements of one step and return the updated signals."""
        state = self._state
        _append(state.train_loss_history_EL, train_loss_E)
        _append(state.val_loss_history_EL, val_loss_E)
        _append(state.val_accuracy_history_EL, val_accuracy_E)
        self._update_plateau(val_loss_E.astype(np.float64))
        self._update_stabilisation(val_loss_E.astype(np.float64))
        return self.current()

    def reset(self, reset_E: Bools | None = None) -> None:
        """Reset all members, or the masked ones, to the start of an episode."""
        if reset_E is None:
            self._state = _TrackerState.fresh(self.members)
            return
        require_mask(reset_E, self.members)
        if not reset_E.any():
            return
        fresh = _TrackerState.fresh(self.members).arrays()
        for name, array in self._state.arrays().items():
            array[reset_E] = fresh[name][reset_E]

    def _update_plateau(self, val_E: Doubles) -> None:
        """Count steps since the validation loss last improved by more than the tolerance."""
        state = self._state
        limit_E = state.reference_loss_E - self.config.plateau_tolerance
        improved_E = np.isfinite(val_E) & (val_E < limit_E)
        state.reference_loss_E = np.where(improved_E, val_E, state.reference_loss_E)
        state.plateau_steps_E = np.where(improved_E, 0, state.plateau_steps_E + 1)

    def _update_stabilisation(self, val_E: Doubles) -> None:
        """Count consecutive steps that were not steep; a non-finite loss resets the count."""
        state = self._state
        finite_E = np.isfinite(val_E)
        lowest_E = state.lowest_loss_E
        compared_E = finite_E & np.isfinite(lowest_E)
        gain_E = np.subtract(lowest_E, val_E, out=np.zeros_like(val_E), where=compared_E)
        scale_E = np.where(compared_E, np.abs(lowest_E), 1.0)
        calm_E = compared_E & ((gain_E <= 0) | (gain_E < self.config.steep_descent * scale_E))
        state.calm_steps_E = np.where(calm_E, state.calm_steps_E + 1, 0)
        state.stabilised_E |= state.calm_steps_E >= self.config.stabilisation_steps
        state.lowest_loss_E = np.where(finite_E, np.fmin(lowest_E, val_E), lowest_E)

    def current(self) -> TrackedSignals:
        """Return copies of the signals as of the last update; NaN histories before the first."""
        state = self._state
        histories = (
            state.train_loss_history_EL, state.val_loss_history_EL, state.val_accuracy_history_EL
        )  # fmt: skip
        slopes = slope(np.concatenate(histories)).reshape(len(histories), self.members)
        train_E, val_E, accuracy_E = slopes
        return TrackedSignals(
            train_loss_history_EL=state.train_loss_history_EL.copy(),
            val_loss_history_EL=state.val_loss_history_EL.copy(),
            val_accuracy_history_EL=state.val_accuracy_history_EL.copy(),
            train_loss_slope_E=train_E,
            val_loss_slope_E=val_E,
            val_accuracy_slope_E=accuracy_E,
            plateau_steps_E=state.plateau_steps_E.copy(),
            plateaued_E=np.asarray(state.plateau_steps_E >= self.config.plateau_patience),
            stabilised_E=state.stabilised_E.copy(),
        )


def _append(history_EL: Floats, value_E: Floats) -> None:
    """Shift the history by one and append, in place."""
    history_EL[:, :-1] = history_EL[:, 1:]
    history_EL[:, -1] = value_E


def slope(history_EL: Floats) -> Floats:
    """Least-squares slope per step over the finite values; 0 if there are fewer than two.

    >>> slope(np.array([[np.nan, 3.0, 2.0, np.inf, 0.0]], dtype=np.float32)).tolist()
    [-1.0]
    """
    known_EL = np.isfinite(history_EL)
    count_E = np.maximum(known_EL.sum(axis=1), 1)
    x_EL = np.where(known_EL, np.arange(history_EL.shape[1], dtype=np.float64), 0.0)
    y_EL = np.where(known_EL, history_EL, 0.0).astype(np.float64)
    x_EL = np.where(known_EL, x_EL - (x_EL.sum(axis=1) / count_E)[:, None], 0.0)
    y_EL = np.where(known_EL, y_EL - (y_EL.sum(axis=1) / count_E)[:, None], 0.0)
    spread_E = (x_EL**2).sum(axis=1)
    slope_E = (x_EL * y_EL).sum(axis=1) / np.where(spread_E > 0, spread_E, 1.0)
    largest = float(np.finfo(np.float32).max)
    return np.asarray(np.clip(slope_E, -largest, largest), dtype=np.float32)
