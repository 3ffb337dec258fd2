"""Who steps in when a member's training breaks down: finds panics, and sets members back.

The governor looks at every member once a step, after validation. A member that panics goes back to
its last snapshot (`kasmina.snapshot`): host and permanent seeds as they were, seeds on trial
uprooted. Every member has a snapshot at every moment, because the first is of the fresh host.

    governor.reset(score_E)                     # hosts are fresh, planted seeds are in
    for step in range(steps):
        ...                                     # train, validate, transfer 1, population.end_step
        verdicts = governor.review(step, ...)
        ...                                     # act
        governor.after_actions(step, fossilized_E, score_E)

Call `review` after `population.end_step`: a seed uprooted before it would cool down a step less.
What is decided is numpy on the host; what is set back are rows on the device, and no one waits.

Shape letters: E members, W losses remembered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from esper.kasmina.population import Population
from esper.kasmina.snapshot import MemberSnapshots
from esper.leyline.arrays import Bools, Codes, Doubles, Floats, Ints
from esper.leyline.errors import EsperError
from esper.leyline.signals import GovernorVerdicts, PanicKind

FRESH_STEP: Final = -1
"""Step of the snapshot of a fresh host."""

_SNAPSHOTS: Final = "snapshots/"
_ARRAYS: Final = (
    "strikes_E",
    "rollbacks_E",
    "snapshot_step_E",
    "snapshot_score_E",
    "_window_EW",
    "_learnt_E",
    "_good_steps_E",
)
"""What the governor remembers beside the snapshots."""


@dataclass(frozen=True, slots=True)
class GovernorConfig:
    """When the governor steps in, and how often it takes snapshots."""

    window: int = 10
    """Past validation losses a member is compared with: those that were not above the limit."""
    min_window: int = 5
    """Fewer than these, and there is no limit yet."""
    spike_deviations: float = 6.0
    """k: a loss above median + k * MAD of the window is a strike. MAD is the median absolute
    deviation."""
    min_deviation: float = 0.05
    """The least MAD that is reckoned with, in units of the loss: a flat window is no reason to
    panic."""
    spike_steps: int = 3
    """m: so many strikes in a row are a panic."""
    learnt_share: float = 0.2
    """A member has learnt once its accuracy is this share of the way from chance to 1."""
    collapse_share: float = 0.02
    """One that has learnt panics when its accuracy is back within this share of chance."""
    snapshot_steps: int = 5
    """A snapshot is taken every so many good steps: no strike, everything finite."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_window <= self.window:
            raise EsperError(
                f"governor min_window={self.min_window}: must be from 1 to window={self.window}"
            )
        for name in ("spike_steps", "snapshot_steps"):
            if getattr(self, name) < 1:
                raise EsperError(f"governor {name}={getattr(self, name)}: must be 1 or more")
        for name in ("spike_deviations", "min_deviation"):
            if not 0 <= getattr(self, name) < math.inf:
                raise EsperError(
                    f"governor {name}={getattr(self, name)}: must be 0 or more, and finite"
                )
        if not 0 <= self.collapse_share < self.learnt_share < 1:
            raise EsperError(
                f"governor collapse_share={self.collapse_share}, learnt_share={self.learnt_share}: "
                f"from 0 to below 1, the first below the second"
            )


class TolariaGovernor:
    """Watches every member of a population, and sets back those whose training broke down."""

    def __init__(
        self, population: Population, chance: float, config: GovernorConfig | None = None
    ) -> None:
        """`chance`: the accuracy of guessing, 0 to below 1."""
        if not 0 <= chance < 1:
            raise EsperError(f"governor chance={chance}: must be from 0 to below 1")
        self.config = config or GovernorConfig()
        self.chance = chance
        self._snapshots = MemberSnapshots(population)
        self._members = population.members
        self._begin()

    def _begin(self) -> None:
        """As before the first step of an episode, without snapshots."""
        members = self._members
        self.strikes_E: Ints = np.zeros(members, dtype=np.int64)
        """Steps in a row that the loss has been above the limit."""
        self.rollbacks_E: Ints = np.zeros(members, dtype=np.int64)
        """Rollbacks of this episode."""
        self.snapshot_step_E: Ints = np.full(members, FRESH_STEP, dtype=np.int64)
        self.snapshot_score_E: Doubles = np.full(members, np.nan)
        self._window_EW: Doubles = np.full((members, self.config.window), np.nan)
        """Oldest first; NaN where there is none yet."""
        self._learnt_E: Bools = np.zeros(members, dtype=np.bool_)
        self._good_steps_E: Ints = np.zeros(members, dtype=np.int64)
        """Since the last snapshot."""

    def reset(self, score_E: Doubles) -> None:
        """Start an episode: forget everything, take the first snapshot of every member.

        A score that is not finite (data are broken) counts as chance: a fresh host guesses.
        """
        score_E = self._each("score_E", score_E).astype(np.float64)
        self._begin()
        self._snapshots.clear()
        everyone = np.ones(self._members, dtype=np.bool_)
        self._snapshot(everyone, FRESH_STEP, np.where(np.isfinite(score_E), score_E, self.chance))

    def review(
        self,
        step: int,
        train_loss_E: Floats,
        val_loss_E: Floats,
        accuracy_E: Floats,
        gradients_finite_E: Bools,
        score_E: Doubles,
    ) -> GovernorVerdicts:
        """Judge every member's step; set back those that panic, snapshot those that are due.

        Strikes go by the validation loss: it is measured after the step, on the same images every
        time. `gradients_finite_E` is about all that ends up in the member's output and in its
        snapshot; broken seeds that still incubate are the gates' business.
        """
        if not self._snapshots.taken_E.all():
            raise EsperError("the governor has no snapshots yet: call reset(score_E) first")
        train_loss_E = self._each("train_loss_E", train_loss_E)
        val_loss_E = self._each("val_loss_E", val_loss_E)
        accuracy_E = self._each("accuracy_E", accuracy_E)
        gradients_finite_E = self._each("gradients_finite_E", gradients_finite_E).astype(np.bool_)
        score_E = self._each("score_E", score_E).astype(np.float64)
        limit_E = self._limits()
        above_E = val_loss_E > limit_E  # never where either is NaN
        self.strikes_E = np.where(above_E, self.strikes_E + 1, 0)
        loss_finite_E = np.isfinite(train_loss_E) & np.isfinite(val_loss_E)
        panic_E = self._panics(loss_finite_E, gradients_finite_E, accuracy_E)
        panics_E = panic_E != PanicKind.NONE
        strikes_E = self.strikes_E.copy()
        pruned_E = self._roll_back(panics_E)
        good_E = ~panics_E & ~above_E
        self._remember(good_E, val_loss_E, accuracy_E)
        due_E = good_E & (self._good_steps_E >= self.config.snapshot_steps)
        self._snapshot(due_E & np.isfinite(score_E), step, score_E)
        return GovernorVerdicts(
            panic_E=panic_E,
            loss_limit_E=limit_E.astype(np.float32),
            strikes_E=strikes_E,
            rolled_back_E=panics_E,
            snapshot_step_E=self.snapshot_step_E.copy(),
            snapshot_score_E=self.snapshot_score_E.copy(),
            seeds_pruned_E=pruned_E,
        )

    def after_actions(self, step: int, fossilized_E: Bools, score_E: Doubles) -> None:
        """Snapshot members that made a seed permanent at this step, so that it is not lost.

        Their score is this step's: making a seed permanent changes no output. Where it is not
        finite there is no snapshot, and a rollback would undo the fossilisation.
        """
        score_E = self._each("score_E", score_E).astype(np.float64)
        fossilized_E = self._each("fossilized_E", fossilized_E).astype(np.bool_)
        self._snapshot(fossilized_E & np.isfinite(score_E), step, score_E)

    def steps_since_snapshot(self, step: int) -> Ints:
        """`[E]`: how many steps a rollback at `step` would lose."""
        return np.asarray(step - self.snapshot_step_E)

    # ---- inside ---------------------------------------------------------------------------

    def _limits(self) -> Doubles:
        """median + k * MAD of each member's window; NaN while it is too short."""
        limit_E = np.full(self._members, np.nan)
        known_E = np.isfinite(self._window_EW).sum(axis=1) >= self.config.min_window
        if known_E.any():
            window_NW = self._window_EW[known_E]
            median_N1 = np.nanmedian(window_NW, axis=1, keepdims=True)
            mad_N = np.nanmedian(np.abs(window_NW - median_N1), axis=1)
            spread_N = np.maximum(mad_N, self.config.min_deviation)
            limit_E[known_E] = median_N1[:, 0] + self.config.spike_deviations * spread_N
        return limit_E

    def _panics(self, loss_finite_E: Bools, gradients_finite_E: Bools, accuracy_E: Floats) -> Codes:
        """`PanicKind` of each member; the first that applies."""
        collapse = self.chance + self.config.collapse_share * (1 - self.chance)
        found = np.select(
            [
                ~loss_finite_E,
                ~gradients_finite_E,
                self.strikes_E >= self.config.spike_steps,
                self._learnt_E & (accuracy_E <= collapse),
            ],
            [
                PanicKind.NON_FINITE_LOSS,
                PanicKind.NON_FINITE_GRADIENT,
                PanicKind.LOSS_SPIKE,
                PanicKind.ACCURACY_COLLAPSE,
            ],
            PanicKind.NONE,
        )
        return found.astype(np.int8)

    def _roll_back(self, mask_E: Bools) -> Ints:
        """Set members back; what was learnt of their past is forgotten. Seeds removed, `[E]`."""
        pruned_E = self._snapshots.restore(mask_E)
        self.rollbacks_E = self.rollbacks_E + mask_E
        self.strikes_E[mask_E] = 0
        self._window_EW[mask_E] = np.nan
        self._learnt_E[mask_E] = False  # its snapshot may be from before it learnt
        self._good_steps_E[mask_E] = 0
        return pruned_E

    def _remember(self, good_E: Bools, val_loss_E: Floats, accuracy_E: Floats) -> None:
        """Note a good step."""
        self._window_EW[good_E, :-1] = self._window_EW[good_E, 1:]
        self._window_EW[good_E, -1] = val_loss_E[good_E]
        learnt = self.chance + self.config.learnt_share * (1 - self.chance)
        self._learnt_E |= good_E & (accuracy_E >= learnt)
        self._good_steps_E[good_E] += 1

    def _snapshot(self, mask_E: Bools, step: int, score_E: Doubles) -> None:
        self._snapshots.take(mask_E)
        self.snapshot_step_E[mask_E] = step
        self.snapshot_score_E[mask_E] = score_E[mask_E]
        self._good_steps_E[mask_E] = 0

    def _each(self, name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
        """One value per member, checked."""
        array = np.asarray(values)
        if array.shape != (self._members,):
            raise EsperError(
                f"governor {name}: shape {array.shape}, expected one value for each of the "
                f"{self._members} members"
            )
        return array

    # ---- keeping --------------------------------------------------------------------------

    def state(self) -> dict[str, npt.NDArray[np.generic] | Tensor]:
        """Everything a governor needs to go on; copies on the host."""
        out: dict[str, npt.NDArray[np.generic] | Tensor] = {}
        for name in _ARRAYS:
            out[name.lstrip("_")] = getattr(self, name).copy()
        for name, tensor in self._snapshots.state().items():
            out[_SNAPSHOTS + name] = tensor
        return out

    def load_state(self, state: Mapping[str, npt.NDArray[np.generic] | Tensor]) -> None:
        """Go on as the governor that gave `state`; its population must have been loaded before."""
        self._begin()
        for name in _ARRAYS:
            own, given = getattr(self, name), state.get(name.lstrip("_"))
            if given is None or tuple(given.shape) != own.shape:
                found = "nothing" if given is None else tuple(given.shape)
                raise EsperError(
                    f"governor state {name.lstrip('_')!r}: {found} given, expected {own.shape}"
                )
            own[...] = np.asarray(given)
        snapshots = {
            name.removeprefix(_SNAPSHOTS): torch.as_tensor(value)
            for name, value in state.items()
            if name.startswith(_SNAPSHOTS)
        }
        self._snapshots.load_state(snapshots)


def sound_members(
    population: Population, host_norm_E: Doubles, seed_norm_ES: Doubles, finite_E: Bools
) -> Bools:
    """`[E]`: members whose weights (`finite_E`) and gradient norms are finite.

    A seed that incubates cannot hurt its host: what breaks in it is for the gates to see.
    """
    heard_ES = population.trainer.training() & (population.lifecycle.alpha_ES > 0)
    seeds_E = (np.isfinite(seed_norm_ES) | ~heard_ES).all(axis=1)
    return np.asarray(np.isfinite(host_norm_E) & seeds_E & finite_E)
