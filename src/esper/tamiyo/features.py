"""Conversion of `TrainingSignals` into the features of the policy network.

Each feature is one row of a table: its name and a function of `TrainingSignals`. Losses are divided
by the loss of guessing, accuracies are above chance (0 is guessing, 1 is perfect), so that they
mean the same in every context. Unbounded quantities are scaled by symlog(x) = sign(x) log(1 + |x|)
and clipped at `MAX_SIZE`, positive ones that span decades by log(x) from `MIN_SIZE` on; fractions
are clipped to [-1, 1]. NaN (not measured) becomes 0; where 0 is also a valid measurement, a
separate feature tells them apart. Features are always finite.

To add one, append a row to `GLOBAL_FEATURES`, `SLOT_FEATURES` or `CANDIDATE_FEATURES`; the
network's input width follows, and saved controllers of another width are refused. Never reorder
rows: a saved controller would not notice. A new quantity is a field of `TrainingSignals`, filled by
tolaria/observation.py. No feature may be constant: a test runs random policies over contexts.

Shape letters: E members, S slots, K blueprints, G global features, F features of a slot, D features
of a candidate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from esper.leyline.actions import AlphaMode, BlendStyle, LifecycleOp
from esper.leyline.arrays import Doubles, Floats
from esper.leyline.signals import HISTORY_LENGTH, NO_BLUEPRINT, TrainingSignals
from esper.leyline.stages import SeedStage
from esper.tamiyo.inputs import Observation

_Values = npt.NDArray[np.generic]
_Reader = Callable[[TrainingSignals], npt.ArrayLike]

MAX_SIZE: Final = 1e6
"""Clipping bound of `symlog`, also for infinities."""
MIN_SIZE: Final = 1e-5
"""Lower clipping bound of `log`, also for 0 and NaN; below the smallest price and seed."""
MAX_LOG: Final = 1e12
"""Upper clipping bound of `log`."""


@dataclass(frozen=True, slots=True)
class Feature:
    """Name of a feature and how to compute it."""

    name: str
    read: _Reader
    """Returns `[E]` for a global feature, `[E, S]` for a slot, `[E, S, K]` for a candidate; leading
    axes may be left out where all members agree."""


def batch_signals_to_features(signals: TrainingSignals) -> Observation:
    """Compute the features of all members, in the order of `FEATURE_NAMES`."""
    shape_ESK = signals.candidates.fits_ESK.shape
    return Observation(
        global_EG=_columns(GLOBAL_FEATURES, signals, shape_ESK[:1]),
        slot_ESF=_columns(SLOT_FEATURES, signals, shape_ESK[:2]),
        candidate_ESKD=_columns(CANDIDATE_FEATURES, signals, shape_ESK),
        blueprint_ES=signals.slots.blueprint_ES,
    )


def _columns(
    table: tuple[Feature, ...], signals: TrainingSignals, shape: tuple[int, ...]
) -> Floats:
    """Values of all features of a table, the feature axis last."""
    values = np.empty((*shape, len(table)), dtype=np.float32)
    for column, feature in enumerate(table):
        values[..., column] = feature.read(signals)
    return values


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


def log(x: npt.ArrayLike) -> Floats:
    """Natural logarithm of a positive quantity, clipped to `MIN_SIZE`..`MAX_LOG`.

    >>> [round(float(y), 2) for y in log([np.nan, 0.0, 1.0, np.inf])]
    [-11.51, -11.51, 0.0, 27.63]
    """
    known = np.nan_to_num(np.asarray(x, dtype=np.float64), nan=0.0, posinf=MAX_LOG)
    return np.asarray(np.log(np.clip(known, MIN_SIZE, MAX_LOG)), dtype=np.float32)


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


# ---- normalised curves ---------------------------------------------------------------------------


def _over_chance(s: TrainingSignals, loss: npt.ArrayLike) -> Doubles:
    """Losses (or their slopes) over the loss of guessing."""
    return np.asarray(loss, dtype=np.float64) / max(s.context.chance_loss, MIN_SIZE)


def _above_chance(s: TrainingSignals, accuracy: npt.ArrayLike) -> Doubles:
    """Accuracies above that of guessing: 0 is guessing, 1 is perfect."""
    chance = s.context.chance_accuracy
    return (np.asarray(accuracy, dtype=np.float64) - chance) / max(1.0 - chance, MIN_SIZE)


_Normalise = Callable[[TrainingSignals, npt.ArrayLike], Doubles]
_Scale = Callable[[npt.ArrayLike], Floats]


def _history_deltas(name: str, normalise: _Normalise, scale: _Scale) -> list[Feature]:
    """Past values of a metric minus the current one; 0 before the start of the episode."""

    def ago(steps: int) -> Feature:
        def read(s: TrainingSignals) -> Floats:
            before_E: Floats = getattr(s, f"{name}_history_EL")[:, -1 - steps]
            now_E: Floats = getattr(s, f"{name}_E")
            past_E, present_E = (scale(normalise(s, x_E)) for x_E in (before_E, now_E))
            return np.where(np.isnan(before_E), 0.0, past_E - present_E)

        return Feature(f"{name}_{steps}_steps_ago", read)

    return [ago(steps) for steps in range(HISTORY_LENGTH - 1, 0, -1)]


def _history_known(s: TrainingSignals) -> Floats:
    """Filled fraction of the history."""
    return np.asarray((~np.isnan(s.val_loss_history_EL)).mean(axis=1), dtype=np.float32)


def _loss_gap(s: TrainingSignals) -> Floats:
    """Validation loss minus train loss; 0 where either is unknown."""
    with np.errstate(invalid="ignore"):
        return symlog(_over_chance(s, s.val_loss_E) - _over_chance(s, s.train_loss_E))


def _accuracy_gap(s: TrainingSignals) -> Floats:
    """Train accuracy minus validation accuracy; 0 where either is unknown."""
    with np.errstate(invalid="ignore"):
        return share(_above_chance(s, s.train_accuracy_E) - _above_chance(s, s.val_accuracy_E))


# ---- tables --------------------------------------------------------------------------------------


def _size(name: str, field: str) -> Feature:
    """Symlog of a field of the signals."""
    return Feature(name, lambda s: symlog(getattr(s, field)))


def _share(name: str, field: str) -> Feature:
    """Field of the signals, clipped to [-1, 1]."""
    return Feature(name, lambda s: share(getattr(s, field)))


def _known(name: str, field: str) -> Feature:
    return Feature(name, lambda s: known(getattr(s, field)))


def _loss(name: str, field: str) -> Feature:
    return Feature(name, lambda s: symlog(_over_chance(s, getattr(s, field))))


def _accuracy(name: str, field: str) -> Feature:
    return Feature(name, lambda s: share(_above_chance(s, getattr(s, field))))


def _accuracy_slope(s: TrainingSignals) -> Floats:
    slope_E = s.val_accuracy_slope_E.astype(np.float64)
    return share(slope_E / max(1.0 - s.context.chance_accuracy, MIN_SIZE))


def _slot_size(name: str, field: str) -> Feature:
    return Feature(name, lambda s: symlog(getattr(s.slots, field)))


def _slot_share(name: str, field: str) -> Feature:
    return Feature(name, lambda s: share(getattr(s.slots, field)))


def _price(name: str, constant: str) -> Feature:
    """Log of the price the member pays: a constant of the task times the member's factor."""
    return Feature(name, lambda s: log(s.context.price_E * getattr(s.context.constants, constant)))


def _context_log(name: str, field: str) -> Feature:
    return Feature(name, lambda s: log(getattr(s.context, field)))


def _capped(kind: str) -> Feature:
    return Feature(f"{kind}_capped", lambda s: known(getattr(s.context, f"{kind}_cap_E")))


def _cap_left(kind: str) -> Feature:
    """Share of the cap that is not reserved; 1 without a cap."""

    def read(s: TrainingSignals) -> Floats:
        cap_E = getattr(s.context, f"{kind}_cap_E")
        with np.errstate(all="ignore"):
            return share(1.0 - getattr(s.context, f"reserved_{kind}_E") / cap_E)

    return Feature(f"{kind}_cap_left", read)


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


def _steps_left(s: TrainingSignals) -> Floats:
    """Steps after this decision; all of them in the plan phase."""
    return symlog(s.episode_length - (0 if s.planning else s.step + 1))


def _last_op(op: LifecycleOp) -> Feature:
    return Feature(f"last_{op.name.lower()}", lambda s: s.last_op_E == op)


def _acted_on(s: TrainingSignals) -> _Values:
    """Slot targeted by the last action."""
    return np.asarray(s.last_slot_E[:, None] == np.arange(s.slots.stage_ES.shape[1]))


def _planned(s: TrainingSignals) -> _Values:
    """The slot that the plan phase decides on."""
    return np.asarray(np.arange(s.slots.stage_ES.shape[1]) == s.plan_slot)


def _candidate_over_host(kind: str) -> Feature:
    """Log of a candidate's parameters or MACs over the host's."""

    def read(s: TrainingSignals) -> Floats:
        host = max(getattr(s.context, f"host_{kind}"), 1)
        return log(getattr(s.candidates, f"{kind}_SK") / host)

    return Feature(f"candidate_{kind}", read)


def _fits_cap(kind: str) -> Feature:
    def read(s: TrainingSignals) -> _Values:
        needed_SK = getattr(s.candidates, f"{kind}_SK")
        left_E = getattr(s.context, f"{kind}_cap_E") - getattr(s.context, f"reserved_{kind}_E")
        return np.asarray(needed_SK <= left_E[:, None, None])

    return Feature(f"candidate_fits_{kind}_cap", read)


def _candidate_size(name: str, field: str) -> Feature:
    return Feature(name, lambda s: symlog(getattr(s.candidates, field)))


def _candidate_share(name: str, field: str) -> Feature:
    return Feature(name, lambda s: share(getattr(s.candidates, field)))


UNSEEN_STAGES: Final = frozenset({SeedStage.GERMINATED})
"""Stages that no policy observes: a seed germinated by an action trains from the next step on."""

GLOBAL_FEATURES: Final[tuple[Feature, ...]] = (
    Feature("progress", lambda s: 0.0 if s.planning else share(s.progress)),
    Feature("steps_left", _steps_left),
    Feature("planning", lambda s: float(s.planning)),
    # context
    _price("price_params", "c_p"),
    _price("price_macs", "c_m"),
    _price("price_compute", "c_f"),
    _capped("params"),
    _cap_left("params"),
    _capped("macs"),
    _cap_left("macs"),
    _context_log("compute_budget", "budget"),
    Feature("compute_spent", lambda s: share(s.context.spent_E)),
    _context_log("batch_cost", "cost_E"),
    Feature("stopped", lambda s: share(s.context.stopped_E)),
    _context_log("learning_rate", "learning_rate_E"),
    _context_log("train_samples", "train_samples"),
    _context_log("groups", "groups"),
    _context_log("host_params", "host_params"),
    _context_log("host_macs", "host_macs"),
    # learning curve
    _loss("train_loss", "train_loss_E"),
    _known("train_loss_finite", "train_loss_E"),
    _loss("val_loss", "val_loss_E"),
    _known("val_loss_finite", "val_loss_E"),
    _accuracy("train_accuracy", "train_accuracy_E"),
    _known("train_accuracy_known", "train_accuracy_E"),
    _accuracy("val_accuracy", "val_accuracy_E"),
    Feature("loss_gap", _loss_gap),
    Feature("accuracy_gap", _accuracy_gap),
    *_history_deltas("train_loss", _over_chance, symlog),
    *_history_deltas("val_loss", _over_chance, symlog),
    *_history_deltas("val_accuracy", _above_chance, share),
    Feature("history_known", _history_known),
    _loss("train_loss_slope", "train_loss_slope_E"),
    _loss("val_loss_slope", "val_loss_slope_E"),
    Feature("val_accuracy_slope", _accuracy_slope),
    _size("plateau_steps", "plateau_steps_E"),
    _share("plateaued", "plateaued_E"),
    _share("stabilised", "stabilised_E"),
    # growth, last action, governor
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
    *(_stage(stage) for stage in SeedStage if stage not in UNSEEN_STAGES),
    Feature("closed", lambda s: s.slots.closed_ES),
    Feature("planned_now", _planned),
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
    _size("activation_grad", "activation_grad_ES"),
    _known("activation_grad_known", "activation_grad_ES"),
    _size("channels", "channels_S"),
    _share("depth", "depth_S"),
    _size("resolution", "resolution_S"),
    Feature("acted_on_last", _acted_on),
)
"""Features of a slot; the network adds the descriptor of the blueprint it holds."""

CANDIDATE_FEATURES: Final[tuple[Feature, ...]] = (
    _candidate_over_host("params"),
    _candidate_over_host("macs"),
    _candidate_size("candidate_rent", "rent_ESK"),
    _candidate_share("candidate_budget_share", "budget_share_ESK"),
    _candidate_share("candidate_fits", "fits_ESK"),
    _fits_cap("params"),
    _fits_cap("macs"),
    _candidate_size("candidate_receptive_field", "receptive_SK"),
    _candidate_share("candidate_copies_host", "copies_SK"),
)
"""Descriptor of a blueprint in a slot: what the blueprint head points at."""


@dataclass(frozen=True, slots=True)
class FeatureNames:
    """Feature names, in column order."""

    whole: tuple[str, ...]
    """Names of the G global features."""
    slot: tuple[str, ...]
    """Names of the F slot features."""
    candidate: tuple[str, ...]
    """Names of the D features of a candidate."""


FEATURE_NAMES: Final = FeatureNames(
    whole=tuple(feature.name for feature in GLOBAL_FEATURES),
    slot=tuple(feature.name for feature in SLOT_FEATURES),
    candidate=tuple(feature.name for feature in CANDIDATE_FEATURES),
)
"""Column names of an `Observation`."""
