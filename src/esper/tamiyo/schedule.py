"""Growth by the calendar: named blueprints in named slots at given steps, for every member.

Shape letters: E members, S slots, N entries of the schedule.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esper.leyline.actions import (
    ALPHA_SPEEDS,
    HEAD_CHOICES,
    TEMPOS,
    ActionHead,
    ActionSpec,
    AlphaCurve,
    BlendStyle,
    LifecycleOp,
)
from esper.leyline.arrays import Bools, Ints
from esper.leyline.errors import EsperError
from esper.leyline.masks import ActionMasks
from esper.leyline.protocols import RewardProtocol
from esper.leyline.records import PolicyDecision
from esper.leyline.signals import SlotReports, TrainingSignals
from esper.tamiyo.unlearned import (
    FULL_ALPHA,
    UnlearnedPolicy,
    action_of,
    allowed_near,
    barren,
    first_wish,
    fixed_mask,
    held_for,
    index_of,
    may,
    require_mask,
    require_one_of,
)


@dataclass(frozen=True, slots=True)
class ScheduleEntry:
    """One seed to grow."""

    step: int
    """Step of the episode at the end of which it is germinated."""
    slot: str
    """Id of its slot."""
    blueprint: str
    """Name of its blueprint."""
    tempo: int = TEMPOS[0]
    """Steps its first blend takes."""
    style: BlendStyle = BlendStyle.ADD
    """How it is blended in."""
    curve: AlphaCurve = AlphaCurve.LINEAR
    """Shape of its first blend."""

    def __post_init__(self) -> None:
        if self.step < 0:
            raise EsperError(f"schedule entry for slot {self.slot}: step {self.step} is below 0")
        require_one_of("tempo", self.tempo, TEMPOS, f"schedule entry for slot {self.slot}")


@dataclass(frozen=True, slots=True)
class ScheduleConfig:
    """What is grown when, and how long a seed may prove itself."""

    entries: tuple[ScheduleEntry, ...]
    """The seeds to grow; those due at the same step follow each other, in this order."""
    probation_steps: int = 5
    """Steps on probation after which a seed that cannot be made permanent is pruned."""
    prune_speed: int = ALPHA_SPEEDS[1]
    """Steps over which a pruned seed is faded out; 0: at once."""

    def __post_init__(self) -> None:
        if self.probation_steps < 0:
            raise EsperError(f"probation_steps={self.probation_steps}: must be 0 or more")
        require_one_of("prune_speed", self.prune_speed, ALPHA_SPEEDS, "schedule")


class FixedSchedule(UnlearnedPolicy):
    """Germinates by its entries, advances and fossilises when legal, prunes after probation.

    One action per member and step: an entry that is due first, then fossilise, prune, advance. An
    entry that cannot be carried out yet (another came first, the slot is not dormant) stays due.
    Its state is `done_EN`, the entries each member has germinated; a member that starts over may
    germinate all of them again, where slots are dormant.
    """

    def __init__(self, config: ScheduleConfig, reward: RewardProtocol | None = None) -> None:
        super().__init__(reward)
        self.config = config
        self.entries = tuple(sorted(config.entries, key=lambda entry: entry.step))

    def initial_state(self, members: int) -> Bools:
        """Nothing germinated yet."""
        return np.zeros((members, len(self.entries)), dtype=np.bool_)

    def reset_state(self, policy_state: Bools, reset_E: Bools) -> Bools:
        """Members that start over have germinated nothing."""
        require_mask(reset_E, len(policy_state))
        return np.asarray(policy_state & ~reset_E[:, None])

    def act(
        self, obs: TrainingSignals, masks: ActionMasks, policy_state: Bools
    ) -> tuple[PolicyDecision, Bools]:
        """What the schedule says of each member now."""
        places = self._places(obs.slots, masks)
        if barren(masks):
            return PolicyDecision.deterministic(ActionSpec.wait(len(policy_state))), policy_state
        entry_E, due_ES = self._due(obs, may(masks, LifecycleOp.GERMINATE), policy_state, places)
        may_keep_ES = may(masks, LifecycleOp.FOSSILIZE)
        unworthy_ES = held_for(obs, self.config.probation_steps) & ~may_keep_ES
        op_E, slot_E = first_wish(
            [
                (LifecycleOp.GERMINATE, due_ES),
                (LifecycleOp.FOSSILIZE, may_keep_ES),
                (LifecycleOp.PRUNE, unworthy_ES & may(masks, LifecycleOp.PRUNE)),
                (LifecycleOp.ADVANCE, may(masks, LifecycleOp.ADVANCE)),
            ]
        )
        started_E = op_E == LifecycleOp.GERMINATE
        started_EN = started_E[:, None] & (entry_E[:, None] == np.arange(len(self.entries)))
        actions = self._actions(op_E, slot_E, entry_E, places, masks)
        return PolicyDecision.deterministic(actions), np.asarray(policy_state | started_EN)

    def _places(self, slots: SlotReports, masks: ActionMasks) -> Ints:
        """`[N, 2]`: slot and blueprint index of every entry; names must be known and fit."""
        places = [
            (
                index_of("slot", entry.slot, slots.slot_ids, "of the schedule"),
                index_of("blueprint", entry.blueprint, slots.blueprints, "of the schedule"),
            )
            for entry in self.entries
        ]
        for entry, place in zip(self.entries, places, strict=True):
            if not masks.blueprint_SK[place]:
                raise EsperError(
                    f"schedule: blueprint {entry.blueprint} may not be grown in slot {entry.slot}"
                )
        return np.array(places, dtype=np.int64).reshape(-1, 2)

    def _due(
        self, obs: TrainingSignals, may_ES: Bools, done_EN: Bools, places: Ints
    ) -> tuple[Ints, Bools]:
        """The first entry `[E]` each member can germinate now, and its slot as a mask `[E, S]`."""
        members, slots = may_ES.shape
        if not self.entries:
            return np.zeros(members, dtype=np.int64), np.zeros_like(may_ES)
        slot_N = places[:, 0]
        time_has_come_N = np.array([entry.step <= obs.step for entry in self.entries])
        ready_EN = time_has_come_N & ~done_EN & may_ES[:, slot_N]
        entry_E = ready_EN.argmax(axis=1)
        here_ES = slot_N[entry_E][:, None] == np.arange(slots)
        return entry_E, np.asarray(here_ES & ready_EN.any(axis=1, keepdims=True))

    def _actions(
        self, op_E: Ints, slot_E: Ints, entry_E: Ints, places: Ints, masks: ActionMasks
    ) -> ActionSpec:
        """The heads: of the entry where one is germinated, else those of a prune."""
        speed = ALPHA_SPEEDS.index(self.config.prune_speed)
        heads: dict[ActionHead, int | Ints] = {
            ActionHead.ALPHA_SPEED: allowed_near(masks, ActionHead.ALPHA_SPEED, speed),
            ActionHead.ALPHA_CURVE: allowed_near(masks, ActionHead.ALPHA_CURVE, AlphaCurve.LINEAR),
        }
        if self.entries:
            germinating_E = op_E == LifecycleOp.GERMINATE
            heads[ActionHead.BLUEPRINT] = places[entry_E, 1]
            for head, index_N in self._blend_heads(masks).items():
                heads[head] = np.where(germinating_E, index_N[entry_E], heads.get(head, 0))
        return action_of(op_E, slot_E, heads)

    def _blend_heads(self, masks: ActionMasks) -> dict[ActionHead, Ints]:
        """The choices `[N]` the entries ask for; a head frozen to another choice is an error."""
        asked: dict[ActionHead, list[int]] = {
            ActionHead.STYLE: [int(entry.style) for entry in self.entries],
            ActionHead.TEMPO: [TEMPOS.index(entry.tempo) for entry in self.entries],
            ActionHead.ALPHA_TARGET: [FULL_ALPHA] * len(self.entries),
            ActionHead.ALPHA_CURVE: [int(entry.curve) for entry in self.entries],
        }
        for head, choices in asked.items():
            allowed = fixed_mask(masks, head)
            for entry, choice in zip(self.entries, choices, strict=True):
                if not allowed[choice]:
                    raise EsperError(
                        f"schedule entry for slot {entry.slot}: {head.name.lower()} "
                        f"{HEAD_CHOICES[head][choice]} is masked; left are "
                        + ", ".join(HEAD_CHOICES[head][i] for i in np.flatnonzero(allowed))
                    )
        return {head: np.array(choices, dtype=np.int64) for head, choices in asked.items()}
