"""`FlatActions`: every composite action with an index of its own.

    actions.table_NA[7]                 heads of action 7
    actions.mask(masks)                 [E, N]: which are legal
    actions.describe(7, slots, names)   'GERMINATE r0c1 conv_light ...'

Shape letters: E members, N actions, A action heads, S slots, K blueprints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np

from esper.leyline.actions import (
    HEAD_CHOICES,
    HEADS_BY_OP,
    OFFERED_OPS,
    ActionHead,
    ActionSpace,
    LifecycleOp,
)
from esper.leyline.arrays import Bools, Ints
from esper.leyline.errors import EsperError
from esper.leyline.masks import FIXED_MASK, ActionMasks
from esper.leyline.signals import TrainingSignals
from esper.tamiyo.actions import HEAD_USED_OA, parse_sampled_action
from esper.tamiyo.scripted import fixed_mask


class FlatActions:
    """The actions that can ever be legal in an environment, in a fixed order; WAIT is 0.

    Heads that an operation does not use are 0, so that every action occurs once.
    """

    def __init__(
        self, fits_SK: Bools, frozen: Mapping[ActionHead, int], actions: ActionSpace
    ) -> None:
        """`fits_SK`: blueprints that fit a slot; `frozen`: heads with one choice."""
        self._fits_SK, self._frozen = fits_SK, frozen
        rows = [row for op in OFFERED_OPS[actions] for row in self._actions_of(op)]
        self.table_NA: Ints = np.array(rows, dtype=np.int64)
        """Heads of each action."""
        self._index = {tuple(row): index for index, row in enumerate(rows)}

    @staticmethod
    def observed(signals: TrainingSignals, frozen: Mapping[ActionHead, int]) -> FlatActions:
        """The actions of the environment whose members are observed so."""
        context, candidates = signals.context, signals.candidates
        actions: ActionSpace = "full" if context.plans else "grow"
        if context.restarts:
            actions = "full+restart" if context.plans else "grow+restart"
        # What does not fit a slot has no size there.
        fits_SK = (candidates.params_SK > 0) | (candidates.macs_SK > 0)
        return FlatActions(fits_SK, frozen, actions)

    def __len__(self) -> int:
        return len(self.table_NA)

    def _actions_of(self, op: LifecycleOp) -> Iterator[tuple[int, ...]]:
        """All actions of an operation, by slot, then blueprint, then the other heads."""
        used = HEADS_BY_OP[op]
        choices = [self._choices(head) if head in used else (0,) for head in ActionHead]
        choices[ActionHead.OP] = (int(op),)
        for row in product(*choices):
            fits = self._fits_SK[row[ActionHead.SLOT], row[ActionHead.BLUEPRINT]]
            if ActionHead.BLUEPRINT not in used or fits:
                yield row

    def _choices(self, head: ActionHead) -> Sequence[int]:
        if head in self._frozen:
            return (self._frozen[head],)
        slots, blueprints = self._fits_SK.shape
        sizes = {ActionHead.SLOT: slots, ActionHead.BLUEPRINT: blueprints}
        return range(sizes[head] if head in sizes else len(HEAD_CHOICES[head]))

    def mask(self, masks: ActionMasks) -> Bools:
        """`[E, N]`: actions that are legal now."""
        heads = dict(zip(ActionHead, self.table_NA.T, strict=True))
        op_N, slot_N = heads[ActionHead.OP], heads[ActionHead.SLOT]
        legal_EN = masks.op_EO[:, op_N].copy()
        legal_EN &= masks.slot_EOS[:, op_N, slot_N] | ~HEAD_USED_OA[op_N, ActionHead.SLOT]
        fits_EN = masks.blueprint_ESK[:, slot_N, heads[ActionHead.BLUEPRINT]]
        legal_EN &= fits_EN | ~HEAD_USED_OA[op_N, ActionHead.BLUEPRINT]
        for head in FIXED_MASK:
            legal_EN &= fixed_mask(masks, head)[heads[head]] | ~HEAD_USED_OA[op_N, head]
        return legal_EN

    def heads(self, index_E: Ints) -> Ints:
        """`[E, A]`: heads of the actions with these indices."""
        index_E = np.asarray(index_E)
        bad = np.flatnonzero((index_E < 0) | (index_E >= len(self)))
        if bad.size:
            raise EsperError(
                f"action {index_E[bad[0]]} of member {bad[0]}: valid are 0 to {len(self) - 1}"
            )
        return np.asarray(self.table_NA[index_E])

    def index(self, heads_EA: Ints) -> Ints:
        """`[E]`: indices of actions given by their heads; unused heads do not matter."""
        heads_EA = np.asarray(heads_EA)
        used_EA = np.where(HEAD_USED_OA[heads_EA[:, ActionHead.OP]], heads_EA, 0)
        found = [self._index.get(tuple(row)) for row in used_EA.tolist()]
        if None in found:
            row = heads_EA[found.index(None)].tolist()
            raise EsperError(f"heads {row}: no action of this environment")
        return np.array(found, dtype=np.int64)

    def describe(self, index: int, slots: Sequence[str], blueprints: Sequence[str]) -> str:
        """Text of an action: `PLANT r0c1 conv_light`."""
        heads_EA = self.heads(np.array([index]))
        return parse_sampled_action(heads_EA).describe(0, slots, blueprints)
