"""Conversion of `TrainingSignals` into the features of the policy network.

Each feature is one row of a table: its name, a function of `TrainingSignals` and the scale of its
values; all features of a scale are scaled in one call. Losses are divided by the loss of guessing,
accuracies are above chance (0 is guessing, 1 is perfect), so that they mean the same in every
context. Unbounded quantities are scaled by symlog(x) = sign(x) log(1 + |x|) and clipped at
`MAX_SIZE`, positive ones that span decades by log(x) from `MIN_SIZE` on; fractions are clipped to
[-1, 1]. NaN (not measured) becomes 0; where 0 is also a valid measurement, a separate feature tells
them apart. Features are always finite.

To add one, append a row to `GLOBAL_FEATURES`, `SLOT_FEATURES` or `CANDIDATE_FEATURES`; the
network's input width follows, and saved controllers of another width are refused. Never reorder
rows: a saved controller would not notice. A new quantity is a field of `TrainingSignals`, filled by
tolaria/observation.py. No feature may be constant: a test runs random policies over contexts.

Shape letters: E members, S slots, K blueprints, G global features, F features of a slot, D features
of a candidate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from esper.leyline.actions import OFFERED_OPS, AlphaMode, BlendStyle, LifecycleOp
from esper.leyline.arrays import Doubles, Floats
from esper.leyline.signals import HISTORY_LENGTH, NO_BLUEPRINT, TrainingSignals
from esper.leyline.stages import SeedStage
from esper.tamiyo.inputs import Observation

_Values = npt.NDArray[np.generic]
_Reader = Callable[[TrainingSignals], npt.ArrayLike]

MAX_SIZE: Final = 1e6
"""Clipping bound of `_symlog`, also for infinities."""
MIN_SIZE: Final = 1e-5
"""Lower clipping bound of `log`, also for 0 and NaN; below the smallest price and seed."""
MAX_LOG: Final = 1e12
"""Upper clipping bound of `log`."""


_Scale = Callable[[npt.ArrayLike], Floats]
_Unit = Callable[[TrainingSignals, npt.ArrayLike], Doubles]


@dataclass(frozen=True, slots=True)
class _Feature:
    """Name of a feature and how to compute it."""

    name: str
    read: _Reader
    """Returns `[E]` for a global feature, `[E, S]` for a slot, `[E, S, K]` for a candidate; leading
    axes may be left out where all members agree."""
    scale: _Scale | None = None
    """Maps what was read to the feature; None: it is the feature."""
    unit: _Unit | None = None
    """Converts what was read before it is scaled."""
    minus: str | None = None
    """Name of a feature of the same table to subtract; 0 where what was read is NaN."""


def batch_signals_to_features(signals: TrainingSignals, restarts: bool = False) -> Observation:
    """Compute the features of all members, in the order of `feature_names(restarts)`."""
    shape_ESK = signals.candidates.fits_ESK.shape
    whole, slot, candidate = _COLUMNS
    whole = _WITH_RESTARTS if restarts else whole
    return Observation(
        global_EG=whole.read(signals, shape_ESK[:1]),
        slot_ESF=slot.read(signals, shape_ESK[:2]),
        candidate_ESKD=candidate.read(signals, shape_ESK),
        blueprint_ES=signals.slots.blueprint_ES.copy(),  # the report is shared
    )


class _Columns:
    """A table of features, sorted by scale, so that each scale is one range of rows."""

    def __init__(self, table: tuple[_Feature, ...]) -> None:
        scales, units = ([*dict.fromkeys(getattr(f, key) for f in table)] for key in _KINDS)
        ordered = sorted(table, key=lambda f: (scales.index(f.scale), units.index(f.unit)))
        self._readers = tuple(feature.read for feature in ordered)
        self._units = [(unit, rows) for unit, rows in _runs(ordered, "unit") if unit is not None]
        self._scales = _runs(ordered, "scale")
        row_of = {feature.name: row for row, feature in enumerate(ordered)}
        self._column_rows = np.array([row_of[feature.name] for feature in table])
        """Row of each column of the result."""
        relative = [(f.name, f.minus) for f in table if f.minus is not None]
        self._relative = np.array([row_of[name] for name, _ in relative], dtype=np.int64)
        self._base = np.array([row_of[base] for _, base in relative], dtype=np.int64)

    def read(self, signals: TrainingSignals, shape: tuple[int, ...]) -> Floats:
        """Values of all features, the feature axis last."""
        raw = np.empty((len(self._readers), *shape))
        values = np.empty(raw.shape, dtype=np.float32)
        with np.errstate(all="ignore"):
            for row, read in zip(raw, self._readers, strict=True):
                row[...] = read(signals)
            for unit, rows in self._units:
                raw[rows] = unit(signals, raw[rows])
        for scale, rows in self._scales:
            values[rows] = raw[rows] if scale is None else scale(raw[rows])
        if self._relative.size:
            unknown = np.isnan(raw[self._relative])
            change = values[self._relative] - values[self._base]
            values[self._relative] = np.where(unknown, np.float32(0.0), change)
        columns = values[self._column_rows].transpose(*range(1, values.ndim), 0)
        return np.ascontiguousarray(columns)


_KINDS: Final = ("scale", "unit")


def _runs(features: list[_Feature], kind: str) -> list[tuple[Any, slice]]:
    """Ranges of consecutive features with the same scale or unit."""
    runs, begin = [], 0
    for value, run in groupby(features, attrgetter(kind)):
        end = begin + len(list(run))
        runs.append((value, slice(begin, end)))
        begin = end
    return runs


# ---- scales --------------------------------------------------------------------------------------


def _symlog(x: npt.ArrayLike) -> Floats:
    """sign(x) log(1 + |x|), with |x| clipped at `MAX_SIZE`; 0 for NaN.

    >>> [round(float(y), 2) for y in _symlog([np.nan, 0.0, -1.0, np.inf])]
    [0.0, 0.0, -0.69, 13.82]
    """
    known = _zero_for_nan(x)
    size = np.minimum(np.abs(known), MAX_SIZE)
    return np.asarray(np.sign(known) * np.log1p(size), dtype=np.float32)


def log(x: npt.ArrayLike) -> Floats:
    """Natural logarithm of a positive quantity, clipped to `MIN_SIZE`..`MAX_LOG`.

    >>> [round(float(y), 2) for y in log([np.nan, 0.0, 1.0, np.inf])]
    [-11.51, -11.51, 0.0, 27.63]
    """
    size = np.clip(_zero_for_nan(x), MIN_SIZE, MAX_LOG)
    return np.asarray(np.log(size), dtype=np.float32)


def share(x: npt.ArrayLike) -> Floats:
    """Clip to [-1, 1]; 0 for NaN.

    >>> share([np.nan, 0.25, -np.inf]).tolist()
    [0.0, 0.25, -1.0]
    """
    return np.asarray(np.clip(_zero_for_nan(x), -1.0, 1.0), dtype=np.float32)


def known(x: npt.ArrayLike) -> Floats:
    """1 where finite, else 0."""
    return np.isfinite(np.asarray(x, dtype=np.float64)).astype(np.float32)


def _zero_for_nan(x: npt.ArrayLike) -> Doubles:
    values = np.asarray(x, dtype=np.float64)
    return np.where(np.isnan(values), 0.0, values)


# ---- normalised curves ---------------------------------------------------------------------------


def _over_chance(s: TrainingSignals, loss: npt.ArrayLike) -> Doubles:
    """Losses (or their slopes) over the loss of guessing."""
    return np.asarray(loss, dtype=np.float64) / max(s.context.chance_loss, MIN_SIZE)


def _above_chance(s: TrainingSignals, accuracy: npt.ArrayLike) -> Doubles:
    """Accuracies above that of guessing: 0 is guessing, 1 is perfect."""
    chance = s.context.chance_accuracy
    return (np.asarray(accuracy, dtype=np.float64) - chance) / max(1.0 - chance, MIN_SIZE)


def _history_deltas(name: str, unit: _Unit, scale: _Scale) -> list[_Feature]:
    """Past values of a metric minus the current one; 0 before the start of the episode."""
    history = attrgetter(f"{name}_history_EL")

    def ago(steps: int) -> _Feature:
        title = f"{name}_{steps}_steps_ago"
        return _Feature(title, lambda s: history(s)[:, -1 - steps], scale, unit, minus=name)

    return [ago(steps) for steps in range(HISTORY_LENGTH - 1, 0, -1)]


def _history_known(s: TrainingSignals) -> Floats:
    """Filled fraction of the history."""
    return np.asarray((~np.isnan(s.val_loss_history_EL)).mean(axis=1), dtype=np.float32)


def _loss_gap(s: TrainingSignals) -> Doubles:
    """Validation loss minus train loss; NaN where either is unknown."""
    return _over_chance(s, s.val_loss_E) - _over_chance(s, s.train_loss_E)


def _accuracy_gap(s: TrainingSignals) -> Doubles:
    """Train accuracy minus validation accuracy; NaN where either is unknown."""
    return _above_chance(s, s.train_accuracy_E) - _above_chance(s, s.val_accuracy_E)


# ---- tables --------------------------------------------------------------------------------------


def _size(name: str, field: str) -> _Feature:
    """Symlog of a field of the signals, or of a part of them."""
    return _Feature(name, attrgetter(field), _symlog)


def _share(name: str, field: str) -> _Feature:
    """Field of the signals, or of a part of them, clipped to [-1, 1]."""
    return _Feature(name, attrgetter(field), share)


def _known(name: str, field: str) -> _Feature:
    return _Feature(name, attrgetter(field), known)


def _log(name: str, field: str) -> _Feature:
    return _Feature(name, attrgetter(field), log)


def _loss(name: str, field: str) -> _Feature:
    return _Feature(name, attrgetter(field), _symlog, _over_chance)


def _accuracy(name: str, field: str) -> _Feature:
    return _Feature(name, attrgetter(field), share, _above_chance)


def _accuracy_slope(s: TrainingSignals) -> Doubles:
    slope_E = s.val_accuracy_slope_E.astype(np.float64)
    return slope_E / max(1.0 - s.context.chance_accuracy, MIN_SIZE)


def _price(name: str, constant: str) -> _Feature:
    """Log of the price the member pays: a constant of the task times the member's factor."""
    price = attrgetter(f"context.constants.{constant}")
    return _Feature(name, lambda s: s.context.price_E * price(s), log)


def _cap_left(kind: str) -> _Feature:
    """Share of the cap that is not reserved; 1 without a cap."""
    reserved, cap = attrgetter(f"context.reserved_{kind}_E"), attrgetter(f"context.{kind}_cap_E")
    return _Feature(f"{kind}_cap_left", lambda s: 1.0 - reserved(s) / cap(s), share)


def _stage(stage: SeedStage) -> _Feature:
    name, code = f"stage_{stage.name.lower()}", int(stage)
    return _Feature(name, lambda s: s.slots.stage_ES == code)


def _style(style: BlendStyle) -> _Feature:
    code = int(style)

    def read(s: TrainingSignals) -> _Values:
        occupied_ES = s.slots.blueprint_ES != NO_BLUEPRINT
        return np.asarray((s.slots.style_ES == code) & occupied_ES)

    return _Feature(f"style_{style.name.lower()}", read)


def _direction(s: TrainingSignals) -> _Values:
    """1 while alpha rises, -1 while it falls, else 0."""
    mode_ES = s.slots.alpha_mode_ES
    return np.asarray((mode_ES == AlphaMode.UP) * 1.0 - (mode_ES == AlphaMode.DOWN) * 1.0)


def _significance(s: TrainingSignals) -> Doubles:
    """Contribution in standard errors; NaN where either is unknown."""
    contribution_ES = s.slots.contribution_ES.astype(np.float64)
    error_ES = s.slots.contribution_se_ES.astype(np.float64)
    return np.asarray(contribution_ES / np.maximum(error_ES, 1e-6))


def _steps_left(s: TrainingSignals) -> int:
    """Steps after this decision; all of them in the plan phase."""
    return s.episode_length - (0 if s.planning else s.step + 1)


def _progress_since_restart(s: TrainingSignals) -> Doubles:
    """Share of the member's learning-rate schedule that is over."""
    began_E = s.context.began_E
    done_E = 0 if s.planning else s.step + 1 - began_E
    return np.asarray(done_E / (s.episode_length - began_E))


def _last_op(op: LifecycleOp) -> _Feature:
    code = int(op)
    return _Feature(f"last_{op.name.lower()}", lambda s: s.last_op_E == code)


def _acted_on(s: TrainingSignals) -> _Values:
    """Slot targeted by the last action."""
    return np.asarray(s.last_slot_E[:, None] == np.arange(s.slots.stage_ES.shape[1]))


def _planned(s: TrainingSignals) -> _Values:
    """The slot that the plan phase decides on."""
    return np.asarray(np.arange(s.slots.stage_ES.shape[1]) == s.plan_slot)


def _candidate_over_host(kind: str) -> _Feature:
    """Log of a candidate's parameters or MACs over the host's."""
    host, size_SK = attrgetter(f"context.host_{kind}"), attrgetter(f"candidates.{kind}_SK")
    return _Feature(f"candidate_{kind}", lambda s: size_SK(s) / max(host(s), 1), log)


def _fits_cap(kind: str) -> _Feature:
    reserved, cap = attrgetter(f"context.reserved_{kind}_E"), attrgetter(f"context.{kind}_cap_E")
    needed_SK = attrgetter(f"candidates.{kind}_SK")

    def read(s: TrainingSignals) -> _Values:
        left_E = cap(s) - reserved(s)
        return np.asarray(needed_SK(s) <= left_E[:, None, None])

    return _Feature(f"candidate_fits_{kind}_cap", read)


UNSEEN_STAGES: Final = frozenset({SeedStage.GERMINATED})
"""Stages that no policy observes: a seed germinated by an action trains from the next step on."""

GLOBAL_FEATURES: Final[tuple[_Feature, ...]] = (
    _Feature("progress", lambda s: 0.0 if s.planning else s.progress, share),
    _Feature("steps_left", _steps_left, _symlog),
    _Feature("planning", lambda s: float(s.planning)),
    # context
    _price("price_params", "c_p"),
    _price("price_macs", "c_m"),
    _price("price_compute", "c_f"),
    _known("params_capped", "context.params_cap_E"),
    _cap_left("params"),
    _known("macs_capped", "context.macs_cap_E"),
    _cap_left("macs"),
    _log("compute_budget", "context.budget"),
    _share("compute_spent", "context.spent_E"),
    _log("batch_cost", "context.cost_E"),
    _share("stopped", "context.stopped_E"),
    _log("learning_rate", "context.learning_rate_E"),
    _log("train_samples", "context.train_samples"),
    _log("groups", "context.groups"),
    _log("host_params", "context.host_params"),
    _log("host_macs", "context.host_macs"),
    # learning curve
    _loss("train_loss", "train_loss_E"),
    _known("train_loss_finite", "train_loss_E"),
    _loss("val_loss", "val_loss_E"),
    _known("val_loss_finite", "val_loss_E"),
    _accuracy("train_accuracy", "train_accuracy_E"),
    _known("train_accuracy_known", "train_accuracy_E"),
    _accuracy("val_accuracy", "val_accuracy_E"),
    _Feature("loss_gap", _loss_gap, _symlog),
    _Feature("accuracy_gap", _accuracy_gap, share),
    *_history_deltas("train_loss", _over_chance, _symlog),
    *_history_deltas("val_loss", _over_chance, _symlog),
    *_history_deltas("val_accuracy", _above_chance, share),
    _Feature("history_known", _history_known),
    _loss("train_loss_slope", "train_loss_slope_E"),
    _loss("val_loss_slope", "val_loss_slope_E"),
    _Feature("val_accuracy_slope", _accuracy_slope, share),
    _size("plateau_steps", "plateau_steps_E"),
    _share("plateaued", "plateaued_E"),
    _share("stabilised", "stabilised_E"),
    # growth, last action, governor
    _size("params_over_host", "params_over_host_E"),
    _size("macs_over_host", "macs_over_host_E"),
    _size("seed_budget_left", "seed_budget_left_E"),
    *(_last_op(op) for op in OFFERED_OPS["full"]),
    _share("last_executed", "last_executed_E"),
    _size("governor_strikes", "governor_strikes_E"),
    _size("rollbacks", "rollbacks_E"),
    _size("steps_since_snapshot", "steps_since_snapshot_E"),
)
"""Features of a member."""

RESTART_FEATURES: Final[tuple[_Feature, ...]] = (
    _last_op(LifecycleOp.RESTART),
    _size("restarts", "context.restarts_E"),
    _Feature("progress_since_restart", _progress_since_restart, share),
)
"""Further features of a member for controllers that may restart it."""

SLOT_FEATURES: Final[tuple[_Feature, ...]] = (
    *(_stage(stage) for stage in SeedStage if stage not in UNSEEN_STAGES),
    _Feature("closed", attrgetter("slots.closed_ES")),
    _Feature("planned_now", _planned),
    *(_style(style) for style in BlendStyle),
    _share("alpha", "slots.alpha_ES"),
    _share("alpha_target", "slots.alpha_target_ES"),
    _Feature("alpha_direction", _direction),
    _size("ramp_steps_left", "slots.ramp_steps_left_ES"),
    _size("steps_in_stage", "slots.steps_in_stage_ES"),
    _size("age", "slots.age_ES"),
    _share("pruning", "slots.pruning_ES"),
    _size("cooldown_left", "slots.cooldown_left_ES"),
    _size("params", "slots.params_ES"),
    _size("macs", "slots.macs_ES"),
    _share("contribution", "slots.contribution_ES"),
    _known("contribution_known", "slots.contribution_ES"),
    _share("contribution_error", "slots.contribution_se_ES"),
    _Feature("contribution_significance", _significance, _symlog),
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
    _Feature("acted_on_last", _acted_on),
)
"""Features of a slot; the network adds the descriptor of the blueprint it holds."""

CANDIDATE_FEATURES: Final[tuple[_Feature, ...]] = (
    _candidate_over_host("params"),
    _candidate_over_host("macs"),
    _size("candidate_rent", "candidates.rent_ESK"),
    _share("candidate_budget_share", "candidates.budget_share_ESK"),
    _share("candidate_fits", "candidates.fits_ESK"),
    _fits_cap("params"),
    _fits_cap("macs"),
    _size("candidate_receptive_field", "candidates.receptive_SK"),
    _share("candidate_copies_host", "candidates.copies_SK"),
)
"""Descriptor of a blueprint in a slot: what the blueprint head points at."""


@dataclass(frozen=True, slots=True)
class _FeatureNames:
    """Feature names, in column order."""

    whole: tuple[str, ...]
    """Names of the G global features."""
    slot: tuple[str, ...]
    """Names of the F slot features."""
    candidate: tuple[str, ...]
    """Names of the D features of a candidate."""


FEATURE_NAMES: Final = _FeatureNames(
    whole=tuple(feature.name for feature in GLOBAL_FEATURES),
    slot=tuple(feature.name for feature in SLOT_FEATURES),
    candidate=tuple(feature.name for feature in CANDIDATE_FEATURES),
)
"""Column names of an `Observation`."""


def feature_names(restarts: bool = False) -> _FeatureNames:
    """Column names of an `Observation`, with those for controllers that may restart members."""
    added = tuple(feature.name for feature in RESTART_FEATURES) if restarts else ()
    return replace(FEATURE_NAMES, whole=FEATURE_NAMES.whole + added)


_COLUMNS: Final = tuple(map(_Columns, (GLOBAL_FEATURES, SLOT_FEATURES, CANDIDATE_FEATURES)))
_WITH_RESTARTS: Final = _Columns(GLOBAL_FEATURES + RESTART_FEATURES)
