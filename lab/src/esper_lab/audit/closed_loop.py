"""The scripted closed loop: plant generously, watch, drop what does not pay, stop in time.

In the plan phase it plants what a planner wants, or fills the slots. In training it prunes the seed
whose leave-one-out contribution stays below its rent at the member's price, and stops where
accuracy rises more slowly than compute is paid for and the loss does not fall. It never germinates.

Caps are reserved when a seed is planted, so a network within them stays within them. Where they are
exceeded all the same (caps that only the observation knows), the least useful seeds go first.

Shape letters: E members, S slots, K blueprints, W last steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from esper.leyline.actions import ALPHA_SPEEDS, ActionHead, ActionSpec, AlphaCurve, LifecycleOp
from esper.leyline.arrays import ArrayStruct, Bools, Doubles, Floats, Ints
from esper.leyline.errors import EsperError, shown
from esper.leyline.masks import ActionMasks
from esper.leyline.protocols import RewardProtocol
from esper.leyline.records import PolicyDecision
from esper.leyline.signals import NO_BLUEPRINT, TrainingSignals
from esper.tamiyo.heuristic import remaining_rent
from esper.tamiyo.planning import plan_actions
from esper.tamiyo.scripted import (
    ScriptedPolicy,
    build_actions,
    cannot_grow,
    first_applicable,
    legal_slots,
    nearest_allowed,
)

Plan = Ints | Callable[[TrainingSignals], Ints] | Literal["fill"]
"""What to plant: blueprint indices `[E, S]` (`NO_BLUEPRINT`: none), a function of the first
observation that returns them, or `fill`."""
FILL: Final = "fill"


@dataclass(frozen=True, slots=True)
class ClosedLoopConfig:
    """Settings of `ClosedLoop`."""

    prunes: bool = True
    """Prune seeds that do not earn their rent."""
    prune_from: float = 0.4
    """Share of the episode before which nothing is pruned: seeds need time to become useful."""
    patience: int = 3
    """Measurements in a row at which a seed must contribute less than its rent."""
    prune_errors: float = 0.0
    """Standard errors added to a contribution before it is compared with the rent."""
    charge: float = 1.0
    """Factor on the rent of seeds; 0: only harmful seeds are pruned."""
    prune_speed: int = ALPHA_SPEEDS[1]
    """Steps over which alpha falls to 0; 0: immediately, as always near the end of the episode."""
    stops: bool = True
    """Stop training that is not worth its compute."""
    stop_from: float = 0.25
    """Share of the episode before which training does not stop."""
    window: int = 3
    """Steps whose mean is compared with the mean of as many before, of accuracy and loss on
    `val_control`. Training stops where accuracy has gained less than its compute costs and the loss
    does not fall, at a step that is not below their mean: the last one counts. By look-up in the
    records of seven tasks, 3 was better than 4, and with the loss better than without."""
    equal_compute: bool = True
    """All members spend the same compute, whatever their size (compute clock), so pruning a seed
    saves none."""
    fill_runs: float = 1.0
    """`fill`: train the network on at least as many batches as this many runs of the host, if
    the budget has as many."""

    def __post_init__(self) -> None:
        if self.prune_speed not in ALPHA_SPEEDS:
            listed = ", ".join(map(str, ALPHA_SPEEDS))
            raise EsperError(f"closed loop: prune_speed {self.prune_speed}, choose from {listed}")
        least = {"patience": 1, "prune_errors": 0, "charge": 0, "window": 1, "fill_runs": 0}
        for name, value in least.items():
            if not value <= getattr(self, name) < math.inf:
                raise EsperError(
                    f"closed loop: {name}={getattr(self, name)}: must be {value} or more, and "
                    f"finite"
                )
        for name in ("prune_from", "stop_from"):
            if not 0 <= getattr(self, name) <= 1:
                raise EsperError(f"closed loop: {name}={getattr(self, name)}: must be 0 to 1")


@dataclass(frozen=True, slots=True, eq=False)
class ClosedLoopState(ArrayStruct):
    """Policy state; S is 0 until the first `act`."""

    wanted_ES: Ints
    """Blueprints to plant."""
    below_ES: Ints
    """Measurements in a row at which a seed contributed less than its rent."""
    accuracy_EW: Doubles
    """Accuracy on `val_control` of the last two windows, oldest first; NaN where unknown."""
    loss_EW: Doubles


class ClosedLoop(ScriptedPolicy):
    """Plants a plan, prunes at most one seed per step and member, and stops."""

    def __init__(
        self,
        plan: Plan,
        config: ClosedLoopConfig | None = None,
        reward: RewardProtocol | None = None,
    ) -> None:
        super().__init__(reward)
        if isinstance(plan, str) and plan != FILL:
            raise EsperError(
                f"closed loop: plan {shown(plan)}: give an array, a function or {FILL!r}"
            )
        self.plan, self.config = plan, config or ClosedLoopConfig()

    def initial_state(self, members: int) -> ClosedLoopState:
        """Return the state at the start of an episode."""
        nothing_ES = np.zeros((members, 0), dtype=np.int64)
        unknown_EW = np.full((members, 2 * self.config.window), np.nan)
        return ClosedLoopState(nothing_ES, nothing_ES.copy(), unknown_EW, unknown_EW.copy())

    def reset_state(self, policy_state: ClosedLoopState, reset_E: Bools) -> ClosedLoopState:
        """Forget what was measured of the reset members."""
        return _forget(policy_state, reset_E)

    def act(
        self, obs: TrainingSignals, masks: ActionMasks, policy_state: ClosedLoopState
    ) -> tuple[PolicyDecision, ClosedLoopState]:
        """Return PLANT in the plan phase, then PRUNE, STOP or WAIT."""
        members = len(masks.op_EO)
        if cannot_grow(masks):
            return PolicyDecision.deterministic(ActionSpec.wait(members)), policy_state
        state = _matched(policy_state, obs)
        if obs.planning:
            state = replace(state, wanted_ES=self._wanted(obs, masks, state.wanted_ES))
            actions = plan_actions(obs, masks, state.wanted_ES)
            return PolicyDecision.deterministic(actions), state
        rent_ES = self.config.charge * remaining_rent(obs, self.config.equal_compute)
        state = self._measured(obs, rent_ES, state)
        prune_ES = self._to_prune(obs, masks, rent_ES, state.below_ES)
        op_E, slot_E = first_applicable(
            [(LifecycleOp.PRUNE, prune_ES), (LifecycleOp.STOP, self._stops(obs, masks, state))]
        )
        # What the others contribute, and what is gained, have to be measured without the seed.
        state = _forget(state, op_E == LifecycleOp.PRUNE)
        actions = build_actions(op_E, slot_E, self._ramp(obs, masks))
        return PolicyDecision.deterministic(actions), state

    # ---- plan ----------------------------------------------------------------------------------

    def _wanted(self, obs: TrainingSignals, masks: ActionMasks, before_ES: Ints) -> Ints:
        """Blueprints `[E, S]` to plant; a function is asked once, at the first slot."""
        slot, shape = obs.plan_slot, obs.slots.stage_ES.shape
        if isinstance(self.plan, str):
            wanted_ES = before_ES.copy()
            wanted_ES[:, slot] = fill_slot(obs, masks, self.config.fill_runs)
            return wanted_ES
        if slot > 0:
            return before_ES
        given = self.plan(obs) if callable(self.plan) else self.plan
        wanted_ES = np.asarray(given)
        known = np.issubdtype(wanted_ES.dtype, np.integer) and wanted_ES.shape == shape
        kinds = len(obs.slots.blueprints)
        if not known or (wanted_ES < NO_BLUEPRINT).any() or (wanted_ES >= kinds).any():
            raise EsperError(
                f"closed loop: plan of {wanted_ES.dtype} and shape {wanted_ES.shape}: give "
                f"blueprint indices {NO_BLUEPRINT} to {kinds - 1} of shape {shape}"
            )
        return wanted_ES.astype(np.int64)

    # ---- training ------------------------------------------------------------------------------

    def _measured(
        self, obs: TrainingSignals, rent_ES: Doubles, state: ClosedLoopState
    ) -> ClosedLoopState:
        """Count contributions below the rent, where they were measured now, and note accuracy."""
        slots = obs.slots
        new_ES = obs.contribution_age_ES == 0
        with np.errstate(invalid="ignore"):
            error_ES = self.config.prune_errors * np.nan_to_num(slots.contribution_se_ES)
            low_ES = slots.contribution_ES + error_ES < rent_ES  # NaN: no
        counted_ES = np.where(low_ES, state.below_ES + 1, 0)
        below_ES = np.where(new_ES, counted_ES, state.below_ES)
        held_ES = slots.blueprint_ES != NO_BLUEPRINT
        return replace(
            state,
            below_ES=np.where(held_ES, below_ES, 0),
            accuracy_EW=_appended(state.accuracy_EW, obs.val_accuracy_E),
            loss_EW=_appended(state.loss_EW, obs.val_loss_E),
        )

    def _to_prune(
        self, obs: TrainingSignals, masks: ActionMasks, rent_ES: Doubles, below_ES: Ints
    ) -> Bools:
        """`[E, S]`: the seed of each member to prune now, at most one."""
        config, slots = self.config, obs.slots
        over_E = above_caps(obs)
        due_ES = (below_ES >= config.patience) & (obs.progress >= config.prune_from)
        due_ES &= config.prunes
        due_ES |= over_E[:, None]
        due_ES &= legal_slots(masks, LifecycleOp.PRUNE)
        due_ES &= ~slots.pruning_ES.any(axis=1, keepdims=True)
        net_ES = np.nan_to_num(slots.contribution_ES) - rent_ES
        worst_E = np.where(due_ES, net_ES, np.inf).argmin(axis=1)
        return np.asarray(due_ES & (worst_E[:, None] == np.arange(due_ES.shape[1])))

    def _stops(self, obs: TrainingSignals, masks: ActionMasks, state: ClosedLoopState) -> Bools:
        """`[E, S]`, the same in all slots: members that gain less than their compute costs.

        A seed that is being pruned is waited for: the score would be charged for it.
        """
        config, context = self.config, obs.context
        accuracy_E, gained_E = _last_window(state.accuracy_EW, config.window)
        _, loss_gained_E = _last_window(state.loss_EW, config.window)
        compute = config.window * context.budget / obs.episode_length
        stop_E = gained_E < context.price_E * context.constants.c_f * compute  # NaN: no
        stop_E &= loss_gained_E >= 0
        stop_E &= state.accuracy_EW[:, -1] >= accuracy_E
        stop_E &= config.stops and obs.progress >= config.stop_from
        stop_E &= masks.op_EO[:, LifecycleOp.STOP] & ~obs.slots.pruning_ES.any(axis=1)
        return np.repeat(stop_E[:, None], obs.slots.stage_ES.shape[1], axis=1)

    def _ramp(self, obs: TrainingSignals, masks: ActionMasks) -> dict[ActionHead, int]:
        """Heads of PRUNE: a ramp that ends before the episode does."""
        speed = self.config.prune_speed
        if obs.step + 1 + speed >= obs.episode_length:
            speed = 0
        preferred = {
            ActionHead.ALPHA_SPEED: ALPHA_SPEEDS.index(speed),
            ActionHead.ALPHA_CURVE: int(AlphaCurve.LINEAR),
        }
        return {head: nearest_allowed(masks, head, index) for head, index in preferred.items()}


# ---- helpers -----------------------------------------------------------------------------------


def fill_slot(obs: TrainingSignals, masks: ActionMasks, least_runs: float) -> Ints:
    """Largest blueprint `[E]` for the slot to decide on; `NO_BLUEPRINT` where none fits.

    Every slot gets an equal share of what the caps and the budget leave, so that the first ones do
    not use it up. The budget allows networks that can train on `least_runs` host runs of batches.
    """
    context, candidates, slot = obs.context, obs.candidates, obs.plan_slot
    slots_left = obs.slots.stage_ES.shape[1] - slot
    params_left_E = context.params_cap_E - context.reserved_params_E
    macs_left_E = context.macs_cap_E - context.reserved_macs_E
    most_cost = max(1.0, context.budget / max(least_runs, 1e-9))
    share_EK = candidates.budget_share_ESK[:, slot].astype(np.float64)
    cost_E1 = context.cost_E[:, None]
    cost_EK = cost_E1 * share_EK / np.maximum(1.0 - share_EK, 1e-9)
    size_K = candidates.params_SK[slot]
    fits_EK = masks.blueprint_ESK[:, slot] & masks.op_EO[:, LifecycleOp.PLANT, None]
    fits_EK = fits_EK & (size_K * slots_left <= params_left_E[:, None])
    fits_EK &= candidates.macs_SK[slot] * slots_left <= macs_left_E[:, None]
    fits_EK &= cost_EK * slots_left <= most_cost - cost_E1
    kind_E = np.where(fits_EK, size_K, -1).argmax(axis=1)
    return np.where(fits_EK.any(axis=1), kind_E, NO_BLUEPRINT)


def above_caps(obs: TrainingSignals) -> Bools:
    """`[E]`: members whose network exceeds a cap."""
    context = obs.context
    over_E = context.reserved_params_E > context.params_cap_E
    return np.asarray(over_E | (context.reserved_macs_E > context.macs_cap_E))


def _appended(history_EW: Doubles, latest_E: Floats) -> Doubles:
    """The history without its oldest value and with the latest."""
    return np.concatenate([history_EW[:, 1:], latest_E.astype(np.float64)[:, None]], axis=1)


def _last_window(history_EW: Doubles, window: int) -> tuple[Doubles, Doubles]:
    """Mean `[E]` of the last window, and what it is above the one before; NaN until both are full.

    >>> [it.round(6).tolist() for it in _last_window(np.array([[0.1, 0.3, 0.4, 0.6]]), 2)]
    [[0.5], [0.3]]
    """
    last_E = history_EW[:, window:].mean(axis=1)
    return last_E, last_E - history_EW[:, :window].mean(axis=1)


def _forget(state: ClosedLoopState, members_E: Bools) -> ClosedLoopState:
    """The state without the measurements of some members."""
    return replace(
        state,
        below_ES=np.where(members_E[:, None], 0, state.below_ES),
        accuracy_EW=np.where(members_E[:, None], np.nan, state.accuracy_EW),
        loss_EW=np.where(members_E[:, None], np.nan, state.loss_EW),
    )


def _matched(state: ClosedLoopState, obs: TrainingSignals) -> ClosedLoopState:
    """The state sized for this host: created at the first decision, checked afterwards."""
    shape, found = obs.slots.stage_ES.shape, state.below_ES.shape
    if found == (shape[0], 0):
        empty_ES = np.full(shape, NO_BLUEPRINT, dtype=np.int64)
        return replace(state, wanted_ES=empty_ES, below_ES=np.zeros_like(empty_ES))
    if found != shape:
        raise EsperError(
            f"closed loop state of {found[0]} members and {found[1]} slots: this host has "
            f"{shape[0]} and {shape[1]}; call initial_state"
        )
    return state
