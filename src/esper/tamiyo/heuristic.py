"""Heuristic policy: germinates early or on a plateau, keeps seeds worth more than they cost.

In contexts with a plan phase it plants the topology of a table, if it has one, prunes what does not
earn its rent, and stops training that is not worth its compute.

Shape letters: E members, S slots, K blueprints.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from esper.leyline.actions import ActionHead, ActionSpec, LifecycleOp
from esper.leyline.arrays import ArrayStruct, Bools, Doubles, Floats, Ints
from esper.leyline.masks import ActionMasks, require_mask
from esper.leyline.protocols import RewardProtocol
from esper.leyline.records import PolicyDecision
from esper.leyline.signals import SlotReports, TrainingSignals
from esper.leyline.stage_masks import IS_LIVE
from esper.leyline.stages import SeedStage
from esper.tamiyo.planning import plan_actions
from esper.tamiyo.scripted import (
    ScriptedPolicy,
    blend_heads,
    build_actions,
    cannot_grow,
    first_applicable,
    held_at_least,
    index_of,
    legal_slots,
)
from esper.tamiyo.topology_table import TopologyTable

PREFERRED: Final = ("depthwise", "conv_light", "conv_heavy", "lora", "mlp_small", "mlp")
"""Default order of blueprints: those that add capacity, cheapest first."""
SEEDS_AT_ONCE: Final = 2
"""Most live seeds of a member at a time; fossilised ones do not count."""
MIN_STEPS_LEFT: Final = 10
"""Steps left in the episode, this one included, below which no seed is started."""
MIN_SHARE_LEFT: Final = 0.4
"""Fraction of the episode left below which no seed is started: a late seed cannot pay off."""
INCUBATION_LIMIT: Final = 20
"""Steps in TRAINING after which a seed that still cannot advance is pruned."""
PROBATION_STEPS: Final = 10
"""Steps in HOLDING before a seed is kept or pruned."""
KEEP_ABOVE_ERRORS: Final = 2.0
"""A seed is kept if its contribution exceeds its cost by this many standard errors."""
PATIENCE_STEPS: Final = 3
"""Extra steps in HOLDING for a seed that contributes, but less than its cost."""
EMBARGO_STEPS: Final = 10
"""Steps after a prune during which nothing is germinated in that slot of that member."""
FAILURE_PENALTY: Final = 1.0
"""Penalty added to a blueprint, for that member, when a seed of it is pruned."""
PENALTY_DECAY: Final = 0.9
"""Factor on all penalties per step."""
PENALTY_LIMIT: Final = 0.3
"""A blueprint with a higher penalty is skipped if another one fits."""
STOP_ERRORS: Final = 2.0
"""Training stops if the slope of the validation accuracy, plus this many of its standard errors,
gains less over the rest of the episode than the compute left costs."""
STOP_AFTER: Final = 10
"""Steps without an improvement before training may stop."""


@dataclass(frozen=True, slots=True)
class HeuristicConfig:
    """Settings of `HeuristicPolicy`."""

    blueprints: tuple[str, ...] = ()
    """Blueprints to try, in this order; empty: those of `PREFERRED` that the host offers, or else
    all of the host's."""
    table: TopologyTable | None = None
    """What to plant in the plan phase, by price; None: nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class _HeuristicState(ArrayStruct):
    """Policy state of each member. S and K are 0 until the first `act`."""

    embargo_ES: Ints
    """Steps left during which nothing is germinated in that slot."""
    penalty_EK: Doubles
    """Penalty of each blueprint."""
    below_rent_ES: Ints
    """Steps in a row at which a planted seed contributed less than its rent."""

    @classmethod
    def fresh(cls, members: int, slots: int, blueprints: int) -> _HeuristicState:
        """Return the state at the start of an episode."""
        return cls(
            embargo_ES=np.zeros((members, slots), dtype=np.int64),
            penalty_EK=np.zeros((members, blueprints), dtype=np.float64),
            below_rent_ES=np.zeros((members, slots), dtype=np.int64),
        )

    def reset(self, reset_E: Bools) -> _HeuristicState:
        """Return a copy with the masked rows set to 0, the initial value of all fields."""
        fresh = {f.name: getattr(self, f.name).copy() for f in fields(self)}
        for array in fresh.values():
            array[reset_E] = 0
        return replace(self, **fresh)


class HeuristicPolicy(ScriptedPolicy):
    """Germinates the next blueprint in the next dormant slot; keeps or prunes by contribution.

    One action per member and step, the first that applies: fossilise a seed worth its cost, prune
    one that is not, advance, germinate, stop. After a prune the slot is embargoed and the blueprint
    gets a decaying penalty. Shortly before the end of the episode every blended seed is fossilised
    or pruned, because an unfinished seed costs score. Costs are at the member's own price.
    """

    def __init__(
        self, config: HeuristicConfig | None = None, reward: RewardProtocol | None = None
    ) -> None:
        super().__init__(reward)
        self.config = config or HeuristicConfig()

    def initial_state(self, members: int) -> _HeuristicState:
        """Return the state at the start of an episode."""
        return _HeuristicState.fresh(members, 0, 0)

    def reset_state(self, policy_state: _HeuristicState, reset_E: Bools) -> _HeuristicState:
        """Clear embargoes and penalties of the reset members."""
        require_mask(reset_E, len(policy_state.embargo_ES))
        return policy_state.reset(reset_E)

    def act(
        self, obs: TrainingSignals, masks: ActionMasks, policy_state: _HeuristicState
    ) -> tuple[PolicyDecision, _HeuristicState]:
        """Return the action of each member, and the updated state."""
        members, (slots, blueprints) = len(masks.op_EO), masks.blueprint_ESK.shape[1:]
        order_K = self._order(obs.slots.blueprints)
        if cannot_grow(masks):
            return PolicyDecision.deterministic(ActionSpec.wait(members)), policy_state
        state = _matched_to_host(policy_state, members, slots, blueprints)
        if obs.planning:
            return PolicyDecision.deterministic(self._plan(obs, masks)), state
        rent_ES = remaining_rent(obs)
        state = replace(state, below_rent_ES=_below_rent(obs, rent_ES, state.below_rent_ES))
        keep_ES, drop_ES = _evaluate_seeds(obs, masks, rent_ES)
        drop_ES |= _planted_to_drop(obs, masks, state)
        op_E, slot_E = first_applicable(
            [
                (LifecycleOp.FOSSILIZE, keep_ES),
                (LifecycleOp.PRUNE, drop_ES),
                (LifecycleOp.ADVANCE, legal_slots(masks, LifecycleOp.ADVANCE)),
                (LifecycleOp.GERMINATE, _germination_slots(obs, masks, state, order_K)),
                (LifecycleOp.STOP, _stops(obs, masks)),
            ]
        )
        fits_EK = masks.blueprint_ESK[np.arange(members), slot_E]
        heads = blend_heads(masks, 0) if _episode_ending(obs) else blend_heads(masks)
        heads[ActionHead.BLUEPRINT] = _next_blueprint(fits_EK, state, order_K)
        after = _after_step(state, obs.slots, op_E == LifecycleOp.PRUNE, slot_E)
        return PolicyDecision.deterministic(build_actions(op_E, slot_E, heads)), after

    def _order(self, blueprints: tuple[str, ...]) -> Ints:
        """Indices of the blueprints to try, in order of preference."""
        offered = tuple(name for name in PREFERRED if name in blueprints)
        names = self.config.blueprints or offered or blueprints
        where = "of the heuristic"
        return np.array([index_of("blueprint", name, blueprints, where) for name in names])

    def _plan(self, obs: TrainingSignals, masks: ActionMasks) -> ActionSpec:
        """PLANT what the table has for the member's price; without a table, WAIT."""
        table, slots = self.config.table, obs.slots
        if table is None:
            return ActionSpec.wait(len(masks.op_EO))
        wanted_ES = table.wanted(obs.context.price_E, slots.slot_ids, slots.blueprints)
        return plan_actions(obs, masks, wanted_ES)


def _planted_to_drop(obs: TrainingSignals, masks: ActionMasks, state: _HeuristicState) -> Bools:
    """`[E, S]`: planted seeds past probation whose contribution stays below their rent."""
    slots = obs.slots
    judged_ES = slots.steps_in_stage_ES >= PROBATION_STEPS
    judged_ES &= slots.stage_ES == SeedStage.PLANTED
    stays_ES = state.below_rent_ES > PATIENCE_STEPS
    return np.asarray(judged_ES & stays_ES & legal_slots(masks, LifecycleOp.PRUNE))


def _stops(obs: TrainingSignals, masks: ActionMasks) -> Bools:
    """`[E, S]`, the same in all slots: members whose training is not worth its compute.

    The gain is that of the slope, continued to the end, at the upper end of its error.
    """
    context = obs.context
    left = obs.episode_length - 1 - obs.step
    slope_E = obs.val_accuracy_slope_E + STOP_ERRORS * _slope_error(obs.val_accuracy_history_EL)
    compute_left_E = context.budget * (1.0 - context.spent_E)
    price_E = context.price_E * context.constants.c_f * compute_left_E
    stop_E = slope_E * left < price_E  # NaN: no
    stop_E &= obs.plateau_steps_E >= STOP_AFTER
    stop_E &= ~IS_LIVE[obs.slots.stage_ES].any(axis=1)
    stop_E &= masks.op_EO[:, LifecycleOp.STOP]
    return np.repeat(stop_E[:, None], obs.slots.stage_ES.shape[1], axis=1)


def _evaluate_seeds(
    obs: TrainingSignals, masks: ActionMasks, rent_ES: Doubles
) -> tuple[Bools, Bools]:
    """Return the seeds to fossilise and the seeds to prune, `[E, S]` each."""
    slots = obs.slots
    with np.errstate(invalid="ignore"):
        error_ES = KEEP_ABOVE_ERRORS * slots.contribution_se_ES
        useful_ES = slots.contribution_ES > error_ES
        worth_ES = slots.contribution_ES > error_ES + rent_ES
    judged_ES = held_at_least(obs, PROBATION_STEPS)
    last_ES = held_at_least(obs, PROBATION_STEPS + PATIENCE_STEPS)
    in_output_ES = IS_LIVE[slots.stage_ES] & (slots.alpha_ES > 0) & _episode_ending(obs)
    keep_ES = (judged_ES | in_output_ES) & worth_ES & legal_slots(masks, LifecycleOp.FOSSILIZE)
    late_ES = slots.steps_in_stage_ES >= INCUBATION_LIMIT
    stuck_ES = (slots.stage_ES == SeedStage.TRAINING) & late_ES
    stuck_ES &= ~legal_slots(masks, LifecycleOp.ADVANCE)
    on_extension_ES = useful_ES & ~worth_ES & ~last_ES
    drop_ES = judged_ES & ~keep_ES & ~on_extension_ES
    drop_ES |= (in_output_ES & ~worth_ES) | stuck_ES
    return np.asarray(keep_ES), np.asarray(drop_ES & legal_slots(masks, LifecycleOp.PRUNE))


def _germination_slots(
    obs: TrainingSignals, masks: ActionMasks, state: _HeuristicState, order_K: Ints
) -> Bools:
    """`[E, S]`: slots in which to germinate now."""
    below_limit_E = IS_LIVE[obs.slots.stage_ES].sum(axis=1) < SEEDS_AT_ONCE
    left = obs.episode_length - obs.step
    in_time = left >= max(MIN_STEPS_LEFT, MIN_SHARE_LEFT * obs.episode_length)
    can_grow_ES = masks.blueprint_ESK[:, :, order_K].any(axis=2)
    open_ES = legal_slots(masks, LifecycleOp.GERMINATE) & (state.embargo_ES == 0) & can_grow_ES
    return np.asarray(open_ES & (below_limit_E & in_time)[:, None])


def _next_blueprint(fits_EK: Bools, state: _HeuristicState, order_K: Ints) -> Ints:
    """Return the index `[E]` of the first blueprint in the order that fits, below the penalty limit
    if there is one, else that with the lowest penalty."""
    penalty_EK = state.penalty_EK[:, order_K]
    cost_EK = np.where(penalty_EK <= PENALTY_LIMIT, 0.0, penalty_EK)
    cost_EK = np.where(fits_EK[:, order_K], cost_EK, np.inf)
    return np.asarray(order_K[cost_EK.argmin(axis=1)])


def _after_step(
    state: _HeuristicState, slots: SlotReports, pruned_E: Bools, slot_E: Ints
) -> _HeuristicState:
    """Decay embargoes and penalties by one step, then add those of this step's prunes."""
    embargo_ES = np.maximum(state.embargo_ES - 1, 0)
    penalty_EK = state.penalty_EK * PENALTY_DECAY
    member = np.flatnonzero(pruned_E)
    slot = slot_E[member]
    embargo_ES[member, slot] = EMBARGO_STEPS
    penalty_EK[member, slots.blueprint_ES[member, slot]] += FAILURE_PENALTY
    return replace(state, embargo_ES=embargo_ES, penalty_EK=penalty_EK)


def _below_rent(obs: TrainingSignals, rent_ES: Doubles, before_ES: Ints) -> Ints:
    """`[E, S]`: steps in a row at which a planted seed contributed less than its rent."""
    slots = obs.slots
    measured_ES = (slots.stage_ES == SeedStage.PLANTED) & (obs.contribution_age_ES >= 0)
    with np.errstate(invalid="ignore"):
        below_ES = measured_ES & (slots.contribution_ES < rent_ES)
    return np.where(below_ES, before_ES + 1, 0)


def _slope_error(history_EL: Floats | Doubles) -> Doubles:
    """Standard error `[E]` of the least-squares slope of a history; NaN until it is full.

    >>> _slope_error(np.array([[0.1, 0.2, 0.3, 0.4, 0.5]], dtype=np.float32)).round(6).tolist()
    [0.0]
    """
    values_EL = np.asarray(history_EL, dtype=np.float64)
    length = values_EL.shape[1]
    time_L = np.arange(length) - (length - 1) / 2
    spread = float((time_L**2).sum())
    centred_EL = values_EL - values_EL.mean(axis=1, keepdims=True)
    slope_E1 = (centred_EL @ time_L)[:, None] / spread
    residual_EL = centred_EL - slope_E1 * time_L
    return np.asarray(np.sqrt((residual_EL**2).sum(axis=1) / (length - 2) / spread))


def remaining_rent(obs: TrainingSignals, equal_compute: bool = False) -> Doubles:
    """`[E, S]`: rent saved by pruning a seed now, up to the end of the episode.

    The difference between the member's rent with and without the seed, at the member's price. FLOPs
    already spent are not saved; with `equal_compute` none are: a smaller network trains on more
    batches instead. 0 where alpha is 0.
    """
    slots, prices = obs.slots, obs.context.constants
    in_output_ES = slots.alpha_ES > 0
    params_ES = _relative_to_host(slots.params_ES, in_output_ES, obs.params_over_host_E)
    macs_ES = _relative_to_host(slots.macs_ES, in_output_ES, obs.macs_over_host_E)
    params_E1, macs_E1 = params_ES.sum(axis=1, keepdims=True), macs_ES.sum(axis=1, keepdims=True)
    left = 0.0 if equal_compute else (obs.episode_length - 1 - obs.step) / obs.episode_length
    with_it_E1 = prices.rent(params_E1, macs_E1, left * macs_E1)
    without_ES = prices.rent(params_E1 - params_ES, macs_E1 - macs_ES, left * (macs_E1 - macs_ES))
    return np.asarray(obs.context.price_E[:, None] * (with_it_E1 - without_ES))


def _relative_to_host(count_ES: Ints, in_output_ES: Bools, over_host_E: Floats) -> Doubles:
    """Split the member's growth, relative to the host, among its seeds with alpha > 0."""
    counted_ES = np.where(in_output_ES, count_ES, 0)
    total_E1 = np.maximum(counted_ES.sum(axis=1, keepdims=True), 1)
    return np.asarray(counted_ES / total_E1 * np.asarray(over_host_E, np.float64)[:, None])


def _episode_ending(obs: TrainingSignals) -> bool:
    """Whether only enough steps are left to decide every slot, plus the last step (WAIT only)."""
    slots: int = obs.slots.stage_ES.shape[1]
    return obs.episode_length - obs.step <= slots + 2


def _matched_to_host(
    state: _HeuristicState, members: int, slots: int, blueprints: int
) -> _HeuristicState:
    """Return the state sized for this host: created at the first step."""
    if state.embargo_ES.shape[1] == slots and state.penalty_EK.shape[1] == blueprints:
        return state
    return _HeuristicState.fresh(members, slots, blueprints)
