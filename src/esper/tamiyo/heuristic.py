"""Heuristic policy: germinates early or on a plateau, keeps seeds worth more than they cost.

In contexts with a plan phase it plants the topology of a table, if it has one, prunes what does not
earn its rent, and stops training that is not worth its compute.

Shape letters: E members, S slots, K blueprints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Final, Literal, get_args

import numpy as np

from esper.leyline.actions import (
    ALPHA_SPEEDS,
    TEMPOS,
    ActionHead,
    ActionSpec,
    AlphaCurve,
    BlendStyle,
    LifecycleOp,
)
from esper.leyline.arrays import ArrayStruct, Bools, Doubles, Floats, Ints
from esper.leyline.errors import EsperError
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
    require_one_of,
)
from esper.tamiyo.topology_table import TopologyTable

PREFERRED: Final = ("depthwise", "conv_light", "conv_heavy", "lora", "mlp_small", "mlp")
"""Default order of blueprints: those that add capacity, cheapest first."""
Trigger = Literal["plateaued", "stabilised", "either", "always"]


@dataclass(frozen=True, slots=True)
class HeuristicConfig:
    """Settings of `HeuristicPolicy`."""

    trigger: Trigger = "always"
    """Signal that starts a seed; `always` waits for none and scored best (docs/growth.md)."""
    blueprints: tuple[str, ...] = ()
    """Blueprints to try, in this order, cyclically; empty: those of `PREFERRED` that the host
    offers, or else all of the host's."""
    take_turns: bool = False
    """Use the next blueprint in the order for every seed; otherwise the first one until a seed of
    it is pruned."""
    seeds_at_once: int = 2
    """Most live seeds of a member at a time; fossilised ones do not count."""
    min_steps_left: int = 10
    """Steps left in the episode, this one included, below which no seed is started."""
    min_share_left: float = 0.4
    """Fraction of the episode left below which no seed is started: a late seed cannot pay off."""
    incubation_limit: int = 20
    """Steps in TRAINING after which a seed that still cannot advance is pruned."""
    probation_steps: int = 10
    """Steps in HOLDING before a seed is kept or pruned."""
    keep_above_errors: float = 2.0
    """A seed is kept if its contribution exceeds its cost by this many standard errors."""
    charge: float = 1.0
    """Factor on the task's prices when a seed is evaluated; 0: growth is free."""
    patience_steps: int = 3
    """Extra steps in HOLDING for a seed that contributes, but less than its cost."""
    embargo_steps: int = 10
    """Steps after a prune during which nothing is germinated in that slot of that member."""
    failure_penalty: float = 1.0
    """Penalty added to a blueprint, for that member, when a seed of it is pruned."""
    penalty_decay: float = 0.9
    """Factor on all penalties per step."""
    penalty_limit: float = 0.3
    """A blueprint with a higher penalty is skipped if another one fits."""
    style: BlendStyle = BlendStyle.ADD
    """Blend style."""
    tempo: int = TEMPOS[0]
    """Steps of the first alpha ramp."""
    curve: AlphaCurve = AlphaCurve.LINEAR
    """Curve of all alpha ramps."""
    prune_speed: int = ALPHA_SPEEDS[1]
    """Steps over which alpha falls to 0 when a seed is pruned; 0: immediately."""
    table: TopologyTable | None = None
    """What to plant in the plan phase, by price; None: nothing."""
    stop_errors: float = 2.0
    """Training stops if the slope of the validation accuracy, plus this many of its standard
    errors, gains less over the rest of the episode than the compute left costs."""
    stop_after: int = 10
    """Steps without an improvement before training may stop."""

    def __post_init__(self) -> None:
        if self.trigger not in get_args(Trigger):
            choices = ", ".join(get_args(Trigger))
            raise EsperError(f"heuristic: trigger {self.trigger!r}, choose from {choices}")
        require_one_of("tempo", self.tempo, TEMPOS, "heuristic")
        require_one_of("prune_speed", self.prune_speed, ALPHA_SPEEDS, "heuristic")
        least = {"seeds_at_once": 1, "min_steps_left": 1, "incubation_limit": 1}
        least |= {"probation_steps": 0, "keep_above_errors": 0, "embargo_steps": 0}
        least |= {"patience_steps": 0, "stop_errors": 0, "stop_after": 0}
        least |= {"failure_penalty": 0, "penalty_limit": 0, "charge": 0}
        for name, value in least.items():
            if not value <= getattr(self, name) < math.inf:
                raise EsperError(
                    f"heuristic: {name}={getattr(self, name)}: must be {value} or more, and finite"
                )
        for name in ("penalty_decay", "min_share_left"):
            if not 0 <= getattr(self, name) <= 1:
                raise EsperError(f"heuristic: {name}={getattr(self, name)}: must be 0 to 1")


@dataclass(frozen=True, slots=True, eq=False)
class _HeuristicState(ArrayStruct):
    """Policy state of each member. S and K are 0 until the first `act`."""

    embargo_ES: Ints
    """Steps left during which nothing is germinated in that slot."""
    penalty_EK: Doubles
    """Penalty of each blueprint."""
    next_E: Ints
    """Position in the order of blueprints at which the search for the next one starts."""
    below_rent_ES: Ints
    """Steps in a row at which a planted seed contributed less than its rent."""

    @classmethod
    def fresh(cls, members: int, slots: int, blueprints: int) -> _HeuristicState:
        """Return the state at the start of an episode."""
        return cls(
            embargo_ES=np.zeros((members, slots), dtype=np.int64),
            penalty_EK=np.zeros((members, blueprints), dtype=np.float64),
            next_E=np.zeros(members, dtype=np.int64),
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
        require_mask(reset_E, len(policy_state.next_E))
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
        rent_ES = self.config.charge * remaining_rent(obs)
        state = replace(state, below_rent_ES=_below_rent(obs, rent_ES, state.below_rent_ES))
        keep_ES, drop_ES = self._evaluate_seeds(obs, masks, rent_ES)
        drop_ES |= self._planted_to_drop(obs, masks, state)
        op_E, slot_E = first_applicable(
            [
                (LifecycleOp.FOSSILIZE, keep_ES),
                (LifecycleOp.PRUNE, drop_ES),
                (LifecycleOp.ADVANCE, legal_slots(masks, LifecycleOp.ADVANCE)),
                (LifecycleOp.GERMINATE, self._germination_slots(obs, masks, state, order_K)),
                (LifecycleOp.STOP, self._stops(obs, masks)),
            ]
        )
        fits_EK = masks.blueprint_ESK[np.arange(members), slot_E]
        kind_E, place_E = self._next_blueprint(fits_EK, state, order_K)
        config = self.config
        speed = 0 if _episode_ending(obs) else config.prune_speed
        heads = blend_heads(masks, speed, config.style, config.tempo, config.curve)
        heads[ActionHead.BLUEPRINT] = kind_E
        germinated_E = op_E == LifecycleOp.GERMINATE
        after = replace(
            self._after_step(state, obs.slots, op_E == LifecycleOp.PRUNE, slot_E),
            next_E=np.where(germinated_E, (place_E + 1) % len(order_K), state.next_E),
        )
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

    def _planted_to_drop(
        self, obs: TrainingSignals, masks: ActionMasks, state: _HeuristicState
    ) -> Bools:
        """`[E, S]`: planted seeds past probation whose contribution stays below their rent."""
        slots, config = obs.slots, self.config
        judged_ES = slots.steps_in_stage_ES >= config.probation_steps
        judged_ES &= slots.stage_ES == SeedStage.PLANTED
        stays_ES = state.below_rent_ES > config.patience_steps
        return np.asarray(judged_ES & stays_ES & legal_slots(masks, LifecycleOp.PRUNE))

    def _stops(self, obs: TrainingSignals, masks: ActionMasks) -> Bools:
        """`[E, S]`, the same in all slots: members whose training is not worth its compute.

        The gain is that of the slope, continued to the end, at the upper end of its error.
        """
        config, context = self.config, obs.context
        left = obs.episode_length - 1 - obs.step
        slope_E = obs.val_accuracy_slope_E + config.stop_errors * _slope_error(
            obs.val_accuracy_history_EL
        )
        compute_left_E = context.budget * (1.0 - context.spent_E)
        price_E = config.charge * context.price_E * context.constants.c_f * compute_left_E
        stop_E = slope_E * left < price_E  # NaN: no
        stop_E &= obs.plateau_steps_E >= config.stop_after
        stop_E &= ~IS_LIVE[obs.slots.stage_ES].any(axis=1)
        stop_E &= masks.op_EO[:, LifecycleOp.STOP]
        return np.repeat(stop_E[:, None], obs.slots.stage_ES.shape[1], axis=1)

    def _evaluate_seeds(
        self, obs: TrainingSignals, masks: ActionMasks, rent_ES: Doubles
    ) -> tuple[Bools, Bools]:
        """Return the seeds to fossilise and the seeds to prune, `[E, S]` each."""
        slots, config = obs.slots, self.config
        with np.errstate(invalid="ignore"):
            error_ES = config.keep_above_errors * slots.contribution_se_ES
            useful_ES = slots.contribution_ES > error_ES
            worth_ES = slots.contribution_ES > error_ES + rent_ES
        judged_ES = held_at_least(obs, config.probation_steps)
        last_ES = held_at_least(obs, config.probation_steps + config.patience_steps)
        in_output_ES = IS_LIVE[slots.stage_ES] & (slots.alpha_ES > 0) & _episode_ending(obs)
        keep_ES = (judged_ES | in_output_ES) & worth_ES & legal_slots(masks, LifecycleOp.FOSSILIZE)
        late_ES = slots.steps_in_stage_ES >= config.incubation_limit
        stuck_ES = (slots.stage_ES == SeedStage.TRAINING) & late_ES
        stuck_ES &= ~legal_slots(masks, LifecycleOp.ADVANCE)
        on_extension_ES = useful_ES & ~worth_ES & ~last_ES
        drop_ES = judged_ES & ~keep_ES & ~on_extension_ES
        drop_ES |= (in_output_ES & ~worth_ES) | stuck_ES
        return np.asarray(keep_ES), np.asarray(drop_ES & legal_slots(masks, LifecycleOp.PRUNE))

    def _germination_slots(
        self, obs: TrainingSignals, masks: ActionMasks, state: _HeuristicState, order_K: Ints
    ) -> Bools:
        """`[E, S]`: slots in which to germinate now."""
        triggered_E = {
            "plateaued": obs.plateaued_E,
            "stabilised": obs.stabilised_E,
            "either": obs.plateaued_E | obs.stabilised_E,
            "always": np.ones_like(obs.plateaued_E),
        }[self.config.trigger]
        below_limit_E = IS_LIVE[obs.slots.stage_ES].sum(axis=1) < self.config.seeds_at_once
        left = obs.episode_length - obs.step
        in_time = left >= self.config.min_steps_left
        in_time &= left >= self.config.min_share_left * obs.episode_length
        can_grow_ES = masks.blueprint_ESK[:, :, order_K].any(axis=2)
        open_ES = legal_slots(masks, LifecycleOp.GERMINATE) & (state.embargo_ES == 0) & can_grow_ES
        return np.asarray(open_ES & (triggered_E & below_limit_E & in_time)[:, None])

    def _next_blueprint(
        self, fits_EK: Bools, state: _HeuristicState, order_K: Ints
    ) -> tuple[Ints, Ints]:
        """Return the next blueprint index `[E]` that fits, and its position in the order.

        The first one below the penalty limit; if there is none, the one with the lowest penalty.
        """
        turn = len(order_K)
        first_E = state.next_E if self.config.take_turns else np.zeros_like(state.next_E)
        place_EK = (first_E[:, None] + np.arange(turn)) % turn
        kind_EK = order_K[place_EK]
        penalty_EK = np.take_along_axis(state.penalty_EK, kind_EK, axis=1)
        cost_EK = np.where(penalty_EK <= self.config.penalty_limit, 0.0, penalty_EK)
        cost_EK = np.where(np.take_along_axis(fits_EK, kind_EK, axis=1), cost_EK, np.inf)
        member_E, turn_E = np.arange(len(kind_EK)), cost_EK.argmin(axis=1)
        return kind_EK[member_E, turn_E], place_EK[member_E, turn_E]

    def _after_step(
        self, state: _HeuristicState, slots: SlotReports, pruned_E: Bools, slot_E: Ints
    ) -> _HeuristicState:
        """Decay embargoes and penalties by one step, then add those of this step's prunes."""
        embargo_ES = np.maximum(state.embargo_ES - 1, 0)
        penalty_EK = state.penalty_EK * self.config.penalty_decay
        member = np.flatnonzero(pruned_E)
        slot = slot_E[member]
        embargo_ES[member, slot] = self.config.embargo_steps
        penalty_EK[member, slots.blueprint_ES[member, slot]] += self.config.failure_penalty
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
