"""Conversion of `TrainingSignals` into the features of the policy network.

Each feature is one row of a table: its name and a function of `TrainingSignals`. Unbounded
quantities (losses, norms, counts) are scaled by symlog(x) = sign(x) log(1 + |x|) and clipped at
`MAX_SIZE`; fractions are clipped to [-1, 1]. NaN (not measured) becomes 0; where 0 is also a valid
measurement, a separate feature tells them apart. Features are always finite.

To add one, append a row to `GLOBAL_FEATURES` or `SLOT_FEATURES`; the network's input width follows,
and saved controllers of another width are refused. Never reorder rows: a saved controller would not
notice. A new quantity is a field of `TrainingSignals`, filled by tolaria/observation.py.

Shape letters: E members, S slots, G global features, F features of a slot, Z stages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from esper.leyline.actions import AlphaMode, BlendStyle, LifecycleOp
from esper.leyline.arrays import Floats
from esper.leyline.signals import HISTORY_LENGTH, NO_BLUEPRINT, TrainingSignals
from esper.leyline.stages import SeedStage
from esper.tamiyo.inputs import Observation

_Values = npt.NDArray[np.generic]
_Reader = Callable[[TrainingSignals], npt.ArrayLike]

MAX_SIZE: Final = 1e6
"""Clipping bound of `symlog`, also for infinities."""


@dataclass(frozen=True, slots=True)
class Feature:
    """Name of a feature and how to compute it."""

    name: str
    read: _Reader
    """Returns `[E]` for a global feature; `[E, S]`, or `[S]` if all members agree, for a slot."""


def batch_signals_to_features(signals: TrainingSignals) -> Observation:
    """Compute the features of all members, in the order of `FEATURE_NAMES`."""
    slots = signals.slots
    shape_ES = slots.stage_ES.shape
    global_GE = [np.broadcast_to(f.read(signals), shape_ES[:1]) for f in GLOBAL_FEATURES]
    slot_FES = [np.broadcast_to(f.read(signals), shape_ES) for f in SLOT_FEATURES]
    return Observation(
        global_EG=np.stack(global_GE, axis=-1).astype(np.float32),
        slot_ESF=np.stack(slot_FES, axis=-1).astype(np.float32),
        blueprint_ES=slots.blueprint_ES,
    )


# ---- scales --------------------------------------------------------------------------------------


def symlog(x: npt.ArrayLike) -> Floats:
    """sign(x) log(1 + |x|), with |x| clipped at `MAX_SIZE`; 0 for NaN.

    >>> [round(float(y), 2) for y in symlog([np.nan, 0.0, -1.0, np.inf])]
    [0.0, 0.0, -0.69, 13.82]
    """
    known = np.nan_to_num(
        np.asarray(x, dtype=np.float64), nan=0.0, posinf=MAX_SIZE, neginf=-MAX_SIZE
    )
    size = np.minimum(np.abs(known), MAX_SIZE)
    return np.asarray(np.sign(known) * np.log1p(size), dtype=np.float32)


def share(x: npt.ArrayLike) -> Floats:
    """Clip to [-1, 1]; 0 for NaN.

    >>> share([np.nan, 0.25, -np.inf]).tolist()
    [0.0, 0.25, -1.0]
    """
    known = np.nan_to_num(np.asarray(x, dtype=np.float64), nan=0.0, posinf=1.0, neginf=-1.0)
    return np.asarray(np.clip(known, -1.0, 1.0), dtype=np.float32)


def known(x: npt.ArrayLike) -> Floats:
    """1 where finite, else 0."""
    return np.isfinite(np.asarray(x, dtype=np.float64)).astype(np.float32)


# ---- tables --------------------------------------------------------------------------------------


def _size(name: str, field: str) -> Feature:
    """Symlog of a field of the signals."""
    return Feature(name, lambda s: symlog(getattr(s, field)))


def _share(name: str, field: str) -> Feature:
    """Field of the signals, clipped to [-1, 1]."""
    return Feature(name, lambda s: share(getattr(s, field)))


def _known(name: str, field: str) -> Feature:
    return Feature(name, lambda s: known(getattr(s, field)))


def _slot_size(name: str, field: str) -> Feature:
    return Feature(name, lambda s: symlog(getattr(s.slots, field)))


def _slot_share(name: str, field: str) -> Feature:
    return Feature(name, lambda s: share(getattr(s.slots, field)))


def _history_deltas(
    name: str, metric: str, scale: Callable[[npt.ArrayLike], Floats]
) -> list[Feature]:
    """Past values of a metric minus the current one; 0 before the start of the episode."""

    def ago(steps: int) -> Feature:
        def read(s: TrainingSignals) -> Floats:
            before_E: Floats = getattr(s, f"{metric}_history_EL")[:, -1 - steps]
            now_E: Floats = getattr(s, f"{metric}_E")
            return np.where(np.isnan(before_E), 0.0, scale(before_E) - scale(now_E))

        return Feature(f"{name}_{steps}_steps_ago", read)

    return [ago(steps) for steps in range(HISTORY_LENGTH - 1, 0, -1)]


def _history_known(s: TrainingSignals) -> Floats:
    """Filled fraction of the history."""
    return np.asarray((~np.isnan(s.val_loss_history_EL)).mean(axis=1), dtype=np.float32)


def _stage(stage: SeedStage) -> Feature:
    name = f"stage_{stage.name.lower()}"
    return Feature(name, lambda s: s.slots.stage_ES == stage)


def _style(style: BlendStyle) -> Feature:
    def read(s: TrainingSignals) -> _Values:
        occupied_ES = s.slots.blueprint_ES != NO_BLUEPRINT
        return np.asarray((s.slots.style_ES == style) & occupied_ES)

    return Feature(f"style_{style.name.lower()}", read)


def _direction(s: TrainingSignals) -> _Values:
    """1 while alpha rises, -1 while it falls, else 0."""
    mode_ES = s.slots.alpha_mode_ES
    return np.asarray((mode_ES == AlphaMode.UP) * 1.0 - (mode_ES == AlphaMode.DOWN) * 1.0)


def _significance(s: TrainingSignals) -> Floats:
    """Contribution in standard errors; 0 where either is unknown."""
    contribution_ES = s.slots.contribution_ES.astype(np.float64)
    error_ES = s.slots.contribution_se_ES.astype(np.float64)
    with np.errstate(all="ignore"):
        return symlog(contribution_ES / np.maximum(error_ES, 1e-6))


def _last_op(op: LifecycleOp) -> Feature:
    return Feature(f"last_{op.name.lower()}", lambda s: s.last_op_E == op)


def _acted_on(s: TrainingSignals) -> _Values:
    """Slot targeted by the last action."""
    return np.asarray(s.last_slot_E[:, None] == np.arange(s.slots.stage_ES.shape[1]))


GLOBAL_FEATURES: Final[tuple[Feature, ...]] = (
    Feature("progress", lambda s: share(s.progress)),
    Feature("steps_left", lambda s: symlog(s.episode_length - s.step - 1)),
    _size("train_loss", "train_loss_E"),
    _known("train_loss_finite", "train_loss_E"),
    _size("val_loss", "val_loss_E"),
    _known("val_loss_finite", "val_loss_E"),
    _share("val_accuracy", "val_accuracy_E"),
    *_history_deltas("train_loss", "train_loss", symlog),
    *_history_deltas("val_loss", "val_loss", symlog),
    *_history_deltas("val_accuracy", "val_accuracy", share),
    Feature("history_known", _history_known),
    _size("train_loss_slope", "train_loss_slope_E"),
    _size("val_loss_slope", "val_loss_slope_E"),
    _share("val_accuracy_slope", "val_accuracy_slope_E"),
    _size("plateau_steps", "plateau_steps_E"),
    _share("plateaued", "plateaued_E"),
    _share("stabilised", "stabilised_E"),
    _size("params_over_host", "params_over_host_E"),
    _size("macs_over_host", "macs_over_host_E"),
    _size("seed_budget_left", "seed_budget_left_E"),
    *(_last_op(op) for op in LifecycleOp),
    _share("last_executed", "last_executed_E"),
    _size("governor_strikes", "governor_strikes_E"),
    _size("rollbacks", "rollbacks_E"),
    _size("steps_since_snapshot", "steps_since_snapshot_E"),
)
"""Features of a member."""

SLOT_FEATURES: Final[tuple[Feature, ...]] = (
    *(_stage(stage) for stage in SeedStage),
    *(_style(style) for style in BlendStyle),
    _slot_share("alpha", "alpha_ES"),
    _slot_share("alpha_target", "alpha_target_ES"),
    Feature("alpha_direction", _direction),
    _slot_size("ramp_steps_left", "ramp_steps_left_ES"),
    _slot_size("steps_in_stage", "steps_in_stage_ES"),
    _slot_size("age", "age_ES"),
    _slot_share("pruning", "pruning_ES"),
    _slot_size("cooldown_left", "cooldown_left_ES"),
    _slot_size("params", "params_ES"),
    _slot_size("macs", "macs_ES"),
    _slot_share("contribution", "contribution_ES"),
    Feature("contribution_known", lambda s: known(s.slots.contribution_ES)),
    _slot_share("contribution_error", "contribution_se_ES"),
    Feature("contribution_significance", _significance),
    _size("contribution_age", "contribution_age_ES"),
    _share("contribution_velocity", "contribution_velocity_ES"),
    _share("shapley", "shapley_ES"),
    _share("interaction", "interaction_ES"),
    _size("grad_norm", "grad_norm_ES"),
    _known("grad_norm_finite", "grad_norm_ES"),
    _share("grad_health", "grad_health_ES"),
    _size("shadow_gap", "shadow_gap_ES"),
    _known("shadow_gap_known", "shadow_gap_ES"),
    _size("channels", "channels_S"),
    _share("depth", "depth_S"),
    _size("resolution", "resolution_S"),
    Feature("acted_on_last", _acted_on),
)
"""Features of a slot, besides the embedding of its blueprint."""


@dataclass(frozen=True, slots=True)
class FeatureNames:
    """Feature names, in column order."""

    whole: tuple[str, ...]
    """Names of the G global features."""
    slot: tuple[str, ...]
    """Names of the F slot features."""


FEATURE_NAMES: Final = FeatureNames(
    whole=tuple(feature.name for feature in GLOBAL_FEATURES),
    slot=tuple(feature.name for feature in SLOT_FEATURES),
)
"""Column names of an `Observation`."""
