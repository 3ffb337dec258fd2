"""Detection of failed training (panics) and rollback of members to their last snapshot.

The governor reviews every member once per step, after validation. A member that panics is restored
from its last snapshot (`kasmina.snapshot`): host and fossilised seeds are restored, all other seeds
are removed. Every member always has a snapshot; the first is of the fresh host.

    governor.reset(score_E)                     # fresh hosts, with planted seeds
    for step in range(steps):
        ...                                     # train, validate, transfer 1, population.end_step
        verdicts = governor.review(step, ...)
        ...                                     # act
        governor.after_actions(step, fossilized_E, score_E)

Call `review` after `population.end_step`; otherwise removed seeds would cool down one step less.
Decisions are made in numpy on the host; restoring on the device does not synchronise.

Shape letters: E members, W losses remembered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from esper.kasmina.population import Population
from esper.kasmina.snapshot import MemberSnapshots
from esper.leyline.arrays import Bools, Codes, Doubles, Floats, Ints
from esper.leyline.signals import GovernorVerdicts, PanicKind
from esper.tasks.spec import TaskSpec

FRESH_STEP: Final = -1
"""`snapshot_step_E` of a fresh host."""


@dataclass(frozen=True, slots=True)
class GovernorConfig:
    """Panic thresholds and snapshot interval."""

    window: int = 10
    """Number of past validation losses of good steps the limit is computed from."""
    min_window: int = 5
    """Fewest losses in the window for there to be a limit."""
    spike_deviations: float = 6.0
    """k: a loss above median + k * MAD of the window is a strike. MAD is the median absolute
    deviation."""
    min_deviation: float = 0.05
    """Lower bound of the MAD, in units of the loss, so that a flat window causes no panic."""
    spike_steps: int = 3
    """m: consecutive strikes that cause a panic."""
    learnt_share: float = 0.2
    """A member has learnt once its accuracy exceeds chance by this fraction of (1 - chance)."""
    collapse_share: float = 0.02
    """A member that has learnt panics when its accuracy falls back to within this fraction."""
    snapshot_steps: int = 5
    """Good steps (no strike, no panic) between snapshots."""


WITHOUT_SPIKES: Final = GovernorConfig(spike_deviations=1e6)
"""Members panic only over non-finite values and collapsed accuracy."""


def default_governor(spec: TaskSpec) -> GovernorConfig:
    """Thresholds that suit the contexts of a task.

    With few samples or noisy labels members overfit: the validation loss rises step after step
    without anything having failed, so where contexts change the data it is no reason to panic.
    """
    return WITHOUT_SPIKES if spec.context.changes_data else GovernorConfig()


class TolariaGovernor:
    """Reviews every member of a population; rolls back those whose training failed."""

    def __init__(
        self, population: Population, chance: float, config: GovernorConfig | None = None
    ) -> None:
        """`chance`: accuracy of random guessing, in [0, 1)."""
        self.config = config or GovernorConfig()
        self.chance = chance
        self._snapshots = MemberSnapshots(population)
        self._members = population.members
        self._reset_state()

    def _reset_state(self) -> None:
        """Reset the arrays to the start of an episode; does not touch snapshots."""
        members = self._members
        self.strikes_E: Ints = np.zeros(members, dtype=np.int64)
        """Consecutive steps with the validation loss above the limit."""
        self.rollbacks_E: Ints = np.zeros(members, dtype=np.int64)
        """Rollbacks in this episode."""
        self.snapshot_step_E: Ints = np.full(members, FRESH_STEP, dtype=np.int64)
        self.snapshot_score_E: Doubles = np.full(members, np.nan)
        self._window_EW: Doubles = np.full((members, self.config.window), np.nan)
        """Validation losses of good steps, oldest first; NaN where empty."""
        self._learnt_E: Bools = np.zeros(members, dtype=np.bool_)
        self._good_steps_E: Ints = np.zeros(members, dtype=np.int64)
        """Good steps since the last snapshot."""

    def reset(self, score_E: Doubles) -> None:
        """Start an episode: clear all state and snapshot every member.

        A non-finite score (broken data) is replaced by chance.
        """
        self._reset_state()
        self._snapshots.clear()
        all_E = np.ones(self._members, dtype=np.bool_)
        self._snapshot(all_E, FRESH_STEP, np.where(np.isfinite(score_E), score_E, self.chance))

    def review(
        self,
        step: int,
        train_loss_E: Floats,
        val_loss_E: Floats,
        accuracy_E: Floats,
        gradients_finite_E: Bools,
        score_E: Doubles,
    ) -> GovernorVerdicts:
        """Review a step: roll back members that panic, snapshot those that are due.

        Strikes use the validation loss, which is measured after the step on the same images every
        time. `gradients_finite_E` covers what affects the member's output (`healthy_members`); a
        non-finite seed that is still in TRAINING is handled by the gates.
        """
        limit_E = self._loss_limits()
        above_E = val_loss_E > limit_E  # False where either is NaN
        self.strikes_E = np.where(above_E, self.strikes_E + 1, 0)
        loss_finite_E = np.isfinite(train_loss_E) & np.isfinite(val_loss_E)
        panic_E = self._detect_panics(loss_finite_E, gradients_finite_E, accuracy_E)
        panics_E = panic_E != PanicKind.NONE
        strikes_E = self.strikes_E.copy()
        pruned_E = self._roll_back(panics_E)
        good_E = ~panics_E & ~above_E
        self._record_good_steps(good_E, val_loss_E, accuracy_E)
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
        """Snapshot members that fossilised a seed, so that a rollback does not lose it.

        Fossilising does not change the output, so this step's score is still valid. Without a
        finite score there is no snapshot, and a rollback would undo the fossilisation.
        """
        self._snapshot(fossilized_E & np.isfinite(score_E), step, score_E)

    def after_restarts(self, restarted_E: Bools) -> None:
        """Forget the past of members that began anew; their next good step is snapshotted.

        A fresh member has no score yet. Until it has one, a rollback leads back to before the
        restart.
        """
        self._forget(restarted_E)
        self._good_steps_E[restarted_E] = self.config.snapshot_steps - 1

    def steps_since_snapshot(self, step: int) -> Ints:
        """`[E]`: steps that a rollback at `step` would lose."""
        return np.asarray(step - self.snapshot_step_E)

    # ---- helpers --------------------------------------------------------------------------

    def _loss_limits(self) -> Doubles:
        """`[E]`: median + k * MAD of each member's window; NaN while it is too short."""
        limit_E = np.full(self._members, np.nan)
        known_E = np.isfinite(self._window_EW).sum(axis=1) >= self.config.min_window
        if known_E.any():
            window_NW = self._window_EW[known_E]
            median_N = _medians(window_NW)
            mad_N = _medians(np.abs(window_NW - median_N[:, None]))
            spread_N = np.maximum(mad_N, self.config.min_deviation)
            limit_E[known_E] = median_N + self.config.spike_deviations * spread_N
        return limit_E

    def _detect_panics(
        self, loss_finite_E: Bools, gradients_finite_E: Bools, accuracy_E: Floats
    ) -> Codes:
        """`[E]`: first `PanicKind` that applies."""
        collapse = self.chance + self.config.collapse_share * (1 - self.chance)
        found_E = np.full(self._members, PanicKind.NONE, dtype=np.int8)
        # The first kind that applies is written last.
        found_E[self._learnt_E & (accuracy_E <= collapse)] = PanicKind.ACCURACY_COLLAPSE
        found_E[self.strikes_E >= self.config.spike_steps] = PanicKind.LOSS_SPIKE
        found_E[~gradients_finite_E] = PanicKind.NON_FINITE_GRADIENT
        found_E[~loss_finite_E] = PanicKind.NON_FINITE_LOSS
        return found_E

    def _roll_back(self, mask_E: Bools) -> Ints:
        """Restore members from their snapshots and clear their state; returns seeds removed."""
        pruned_E = self._snapshots.restore(mask_E)
        self.rollbacks_E = self.rollbacks_E + mask_E
        self._forget(mask_E)
        return pruned_E

    def _forget(self, mask_E: Bools) -> None:
        """Clear the state of members whose weights were replaced."""
        self.strikes_E[mask_E] = 0
        self._window_EW[mask_E] = np.nan
        self._learnt_E[mask_E] = False  # the snapshot may predate it
        self._good_steps_E[mask_E] = 0

    def _record_good_steps(self, good_E: Bools, val_loss_E: Floats, accuracy_E: Floats) -> None:
        """Update the windows of members with a good step."""
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


def _medians(values_NW: Doubles) -> Doubles:
    """Return the median of each row without its NaNs, as `np.nanmedian`, which takes ten times as
    long for few numbers; every row has a number."""
    sorted_NW = np.sort(values_NW, axis=1)  # NaNs last
    count_N = (~np.isnan(sorted_NW)).sum(axis=1)
    middle_N2 = np.stack([(count_N - 1) // 2, count_N // 2], axis=1)
    return np.asarray(np.take_along_axis(sorted_NW, middle_N2, axis=1).mean(axis=1))


def healthy_members(
    population: Population, host_norm_E: Doubles, seed_norm_ES: Doubles, finite_E: Bools
) -> Bools:
    """`[E]`: members with finite weights (`finite_E`) and finite gradient norms.

    Seeds with alpha 0 do not affect the member's output and are ignored; gates check them.
    """
    audible_ES = population.trainer.training() & (population.lifecycle.alpha_ES > 0)
    seeds_E = (np.isfinite(seed_norm_ES) | ~audible_ES).all(axis=1)
    return np.asarray(np.isfinite(host_norm_E) & seeds_E & finite_E)
