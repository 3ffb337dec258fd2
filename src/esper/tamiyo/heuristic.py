"""Growth by rule of thumb: start seeds early, or when training stalls; keep what is worth it.

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
from esper.leyline.masks import ActionMasks
from esper.leyline.prices import ScoreConstants
from esper.leyline.protocols import RewardProtocol
from esper.leyline.records import PolicyDecision
from esper.leyline.signals import SlotReports, TrainingSignals
from esper.leyline.stages import LIVE_STAGES, SeedStage
from esper.tamiyo.unlearned import (
    FULL_ALPHA,
    UnlearnedPolicy,
    action_of,
    allowed_near,
    barren,
    first_wish,
    held_for,
    index_of,
    may,
    require_mask,
    require_one_of,
)

_LIVE: Bools = np.array([stage in LIVE_STAGES for stage in SeedStage])

PREFERRED: Final = ("depthwise", "conv_light", "conv_heavy", "lora", "mlp_small", "mlp")
"""Blueprints that can compute something new, the cheaper first."""
FREE: Final = ScoreConstants(c_p=0.0, c_m=0.0, c_f=0.0)
"""Prices of a task in which growth costs nothing."""
Trigger = Literal["plateaued", "stabilised", "either", "always"]


@dataclass(frozen=True, slots=True)
class HeuristicConfig:
    """The rules of thumb."""

    trigger: Trigger = "always"
    """Which signal starts a seed: no progress, the first descent over, either of the two; `always`:
    none is waited for, which did best where it was measured (docs/results.md)."""
    blueprints: tuple[str, ...] = ()
    """Blueprints to try, in this order, over and over; empty: those of `PREFERRED` that the host
    offers, or all of the host's."""
    take_turns: bool = False
    """Whether every seed is of the next blueprint in the order; otherwise the first one is taken
    until a seed of it was pruned."""
    seeds_at_once: int = 2
    """Seeds of a member that may be on their way at a time; permanent ones do not count."""
    min_steps_left: int = 10
    """A seed is started only if this many steps of the episode are left, this one included."""
    min_share_left: float = 0.4
    """A seed is started only if this share of the episode is left: a late one costs, and has no
    time to pay."""
    incubation_limit: int = 20
    """Steps of incubation after which a seed that still may not blend is pruned."""
    probation_steps: int = 10
    """Steps on probation before a seed is judged."""
    keep_above_errors: float = 2.0
    """A seed is kept if its contribution is more than this many of its standard errors above what
    keeping it costs."""
    charge: float = 1.0
    """How much of the task's prices a seed is charged with when it is judged; 0: nothing."""
    patience_steps: int = 3
    """Steps for which a seed that is worth something, but not its price, stays on probation."""
    embargo_steps: int = 10
    """Steps after a prune before the policy grows anything in that slot of that member again."""
    failure_penalty: float = 1.0
    """What a blueprint is charged with, for that member, when a seed of it is pruned."""
    penalty_decay: float = 0.9
    """Share of its penalties a blueprint still carries one step later."""
    penalty_limit: float = 0.3
    """A blueprint charged with more than this is passed over while another one fits."""
    style: BlendStyle = BlendStyle.ADD
    """How seeds are blended in."""
    tempo: int = TEMPOS[0]
    """Steps the first blend takes."""
    curve: AlphaCurve = AlphaCurve.LINEAR
    """Shape of a seed's blend and of its fading out."""
    prune_speed: int = ALPHA_SPEEDS[1]
    """Steps over which a pruned seed is faded out; 0: at once."""

    def __post_init__(self) -> None:
        if self.trigger not in get_args(Trigger):
            choices = ", ".join(get_args(Trigger))
            raise EsperError(f"heuristic: trigger {self.trigger!r}, choose from {choices}")
        require_one_of("tempo", self.tempo, TEMPOS, "heuristic")
        require_one_of("prune_speed", self.prune_speed, ALPHA_SPEEDS, "heuristic")
        least = {"seeds_at_once": 1, "min_steps_left": 1, "incubation_limit": 1}
        least |= {"probation_steps": 0, "keep_above_errors": 0, "embargo_steps": 0}
        least |= {"patience_steps": 0}
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
class HeuristicState(ArrayStruct):
    """What the policy remembers of each member. S and K are 0 until the host was first seen."""

    embargo_ES: Ints
    """Steps for which nothing is grown in that slot."""
    penalty_EK: Doubles
    """What each blueprint is charged with."""
    next_E: Ints
    """Where in the order of blueprints the search for the next one begins."""

    @classmethod
    def fresh(cls, members: int, slots: int, blueprints: int) -> HeuristicState:
        """Nothing has failed yet."""
        return cls(
            embargo_ES=np.zeros((members, slots), dtype=np.int64),
            penalty_EK=np.zeros((members, blueprints), dtype=np.float64),
            next_E=np.zeros(members, dtype=np.int64),
        )

    def forget(self, reset_E: Bools) -> HeuristicState:
        """The same with the rows of a mask as at the start (all fields start at 0)."""
        fresh = {f.name: getattr(self, f.name).copy() for f in fields(self)}
        for array in fresh.values():
            array[reset_E] = 0
        return replace(self, **fresh)


class HeuristicPolicy(UnlearnedPolicy):
    """Stalled training starts the next blueprint in the next dormant slot; worth decides its fate.

    One action per member and step, the first that applies: keep a seed that proved itself, prune
    one that did not, advance, germinate. What a slot or a blueprint failed at is not repeated at
    once: the slot is embargoed, the blueprint charged with a penalty that fades. Shortly before the
    episode ends every seed that is blended in is judged, so that none is left that only costs.
    """

    def __init__(
        self,
        config: HeuristicConfig | None = None,
        reward: RewardProtocol | None = None,
        prices: ScoreConstants | None = None,
    ) -> None:
        """`prices`: what growth costs in the task; without them every seed is kept for free."""
        super().__init__(reward)
        self.config = config or HeuristicConfig()
        self.prices = prices or FREE

    def initial_state(self, members: int) -> HeuristicState:
        """Nothing has failed yet."""
        return HeuristicState.fresh(members, 0, 0)

    def reset_state(self, policy_state: HeuristicState, reset_E: Bools) -> HeuristicState:
        """Members that start over have no embargo and no penalties."""
        require_mask(reset_E, len(policy_state.next_E))
        return policy_state.forget(reset_E)

    def act(
        self, obs: TrainingSignals, masks: ActionMasks, policy_state: HeuristicState
    ) -> tuple[PolicyDecision, HeuristicState]:
        """What the rules say of each member now."""
        members, (slots, blueprints) = len(masks.op_EO), masks.blueprint_SK.shape
        order_K = self._order(obs.slots.blueprints)
        if barren(masks):
            return PolicyDecision.deterministic(ActionSpec.wait(members)), policy_state
        state = _sized(policy_state, members, slots, blueprints)
        keep_ES, drop_ES = self._judge(obs, masks)
        op_E, slot_E = first_wish(
            [
                (LifecycleOp.FOSSILIZE, keep_ES),
                (LifecycleOp.PRUNE, drop_ES),
                (LifecycleOp.ADVANCE, may(masks, LifecycleOp.ADVANCE)),
                (LifecycleOp.GERMINATE, self._wanted(obs, masks, state, order_K)),
            ]
        )
        kind_E, place_E = self._next_blueprint(masks.blueprint_SK[slot_E], state, order_K)
        blend = self._blend(masks, prune_speed=0 if _closing(obs) else self.config.prune_speed)
        heads: dict[ActionHead, int | Ints] = {ActionHead.BLUEPRINT: kind_E, **blend}
        germinated_E = op_E == LifecycleOp.GERMINATE
        after = replace(
            self._aged(state, obs.slots, op_E == LifecycleOp.PRUNE, slot_E),
            next_E=np.where(germinated_E, (place_E + 1) % len(order_K), state.next_E),
        )
        return PolicyDecision.deterministic(action_of(op_E, slot_E, heads)), after

    def _order(self, blueprints: tuple[str, ...]) -> Ints:
        """Indices of the blueprints to try, in order."""
        offered = tuple(name for name in PREFERRED if name in blueprints)
        names = self.config.blueprints or offered or blueprints
        where = "of the heuristic"
        return np.array([index_of("blueprint", name, blueprints, where) for name in names])

    def _judge(self, obs: TrainingSignals, masks: ActionMasks) -> tuple[Bools, Bools]:
        """`[E, S]` each: seeds that proved themselves, and seeds that did not."""
        slots, config = obs.slots, self.config
        with np.errstate(invalid="ignore"):
            error_ES = config.keep_above_errors * slots.contribution_se_ES
            price_ES = config.charge * price_of_keeping(obs, self.prices)
            useful_ES = slots.contribution_ES > error_ES
            worth_ES = slots.contribution_ES > error_ES + price_ES
        judged_ES = held_for(obs, config.probation_steps)
        last_ES = held_for(obs, config.probation_steps + config.patience_steps)
        in_output_ES = _LIVE[slots.stage_ES] & (slots.alpha_ES > 0) & _closing(obs)
        keep_ES = (judged_ES | in_output_ES) & worth_ES & may(masks, LifecycleOp.FOSSILIZE)
        late_ES = slots.steps_in_stage_ES >= config.incubation_limit
        stuck_ES = (slots.stage_ES == SeedStage.TRAINING) & late_ES
        stuck_ES &= ~may(masks, LifecycleOp.ADVANCE)
        may_grow_ES = useful_ES & ~worth_ES & ~last_ES
        drop_ES = judged_ES & ~keep_ES & ~may_grow_ES
        drop_ES |= (in_output_ES & ~worth_ES) | stuck_ES
        return np.asarray(keep_ES), np.asarray(drop_ES & may(masks, LifecycleOp.PRUNE))

    def _wanted(
        self, obs: TrainingSignals, masks: ActionMasks, state: HeuristicState, order_K: Ints
    ) -> Bools:
        """`[E, S]`: where a seed may be started, if training of the member asks for one."""
        asked_E = {
            "plateaued": obs.plateaued_E,
            "stabilised": obs.stabilised_E,
            "either": obs.plateaued_E | obs.stabilised_E,
            "always": np.ones_like(obs.plateaued_E),
        }[self.config.trigger]
        room_E = _LIVE[obs.slots.stage_ES].sum(axis=1) < self.config.seeds_at_once
        left = obs.episode_length - obs.step
        in_time = left >= self.config.min_steps_left
        in_time &= left >= self.config.min_share_left * obs.episode_length
        can_grow_S = masks.blueprint_SK[:, order_K].any(axis=1)
        open_ES = may(masks, LifecycleOp.GERMINATE) & (state.embargo_ES == 0) & can_grow_S
        return np.asarray(open_ES & (asked_E & room_E & in_time)[:, None])

    def _next_blueprint(
        self, fits_EK: Bools, state: HeuristicState, order_K: Ints
    ) -> tuple[Ints, Ints]:
        """Index `[E]` of the next blueprint that fits, and its place in the order.

        The first in turn that is not over the penalty limit; if all are, the least charged.
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

    def _blend(self, masks: ActionMasks, prune_speed: int) -> dict[ActionHead, int]:
        """The later heads, which are the same for all members; a frozen head has its way."""
        config = self.config
        preferred = {
            ActionHead.STYLE: int(config.style),
            ActionHead.TEMPO: TEMPOS.index(config.tempo),
            ActionHead.ALPHA_TARGET: FULL_ALPHA,
            ActionHead.ALPHA_SPEED: ALPHA_SPEEDS.index(prune_speed),
            ActionHead.ALPHA_CURVE: int(config.curve),
        }
        return {head: allowed_near(masks, head, index) for head, index in preferred.items()}

    def _aged(
        self, state: HeuristicState, slots: SlotReports, pruned_E: Bools, slot_E: Ints
    ) -> HeuristicState:
        """The memory one step on, with what was pruned now added to it."""
        embargo_ES = np.maximum(state.embargo_ES - 1, 0)
        penalty_EK = state.penalty_EK * self.config.penalty_decay
        member = np.flatnonzero(pruned_E)
        slot = slot_E[member]
        embargo_ES[member, slot] = self.config.embargo_steps
        penalty_EK[member, slots.blueprint_ES[member, slot]] += self.config.failure_penalty
        return replace(state, embargo_ES=embargo_ES, penalty_EK=penalty_EK)


def price_of_keeping(obs: TrainingSignals, prices: ScoreConstants) -> Doubles:
    """`[E, S]`: rent to the end of the episode that is saved if the seed there goes now.

    What is left of the rent without it is what the member's other seeds in the output would pay;
    training FLOPs that are spent already are not saved. 0 where no seed is in the output.
    """
    slots = obs.slots
    in_output_ES = slots.alpha_ES > 0
    params_ES = _over_host(slots.params_ES, in_output_ES, obs.params_over_host_E)
    macs_ES = _over_host(slots.macs_ES, in_output_ES, obs.macs_over_host_E)
    params_E1, macs_E1 = params_ES.sum(axis=1, keepdims=True), macs_ES.sum(axis=1, keepdims=True)
    left = (obs.episode_length - 1 - obs.step) / obs.episode_length
    with_it_E1 = prices.rent(params_E1, macs_E1, left * macs_E1)
    without_ES = prices.rent(params_E1 - params_ES, macs_E1 - macs_ES, left * (macs_E1 - macs_ES))
    return np.asarray(with_it_E1 - without_ES)


def _over_host(count_ES: Ints, in_output_ES: Bools, over_host_E: Floats) -> Doubles:
    """Each seed's share of what the member's seeds in the output add to the host, over the host."""
    counted_ES = np.where(in_output_ES, count_ES, 0)
    total_E1 = np.maximum(counted_ES.sum(axis=1, keepdims=True), 1)
    return np.asarray(counted_ES / total_E1 * np.asarray(over_host_E, np.float64)[:, None])


def _closing(obs: TrainingSignals) -> bool:
    """Whether the end is so near that seeds are judged now: a step for each slot, and one to end on
    (at the last step only WAIT is left).
    """
    slots: int = obs.slots.stage_ES.shape[1]
    return obs.episode_length - obs.step <= slots + 2


def _sized(state: HeuristicState, members: int, slots: int, blueprints: int) -> HeuristicState:
    """The state for the host at hand: made at the first step, checked at all others."""
    have = (*state.embargo_ES.shape, state.penalty_EK.shape[1])
    if have == (members, 0, 0):
        return HeuristicState.fresh(members, slots, blueprints)
    if have != (members, slots, blueprints):
        raise EsperError(
            f"heuristic state of {have[0]} members, {have[1]} slots, {have[2]} blueprints: "
            f"this host has {members}, {slots}, {blueprints}; begin with initial_state"
        )
    return state
