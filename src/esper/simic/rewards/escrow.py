"""Reward mode `escrow`: payments held back until a seed is permanent.

Every active seed has an account that holds its worth. A fraction of it (`advance`) is paid in
advance and follows the account up and down. When the seed is fossilised, the rest is paid and the
account is closed; when it is pruned, rolled back by the governor, or not fossilised by the end of
the episode, the advance is taken back. A restart of the member takes back all that was paid for its
seeds, permanent ones included. In total a seed earns its worth at fossilisation, once, or nothing.

Shape letters: E members, S slots.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from esper.leyline.actions import LifecycleOp
from esper.leyline.arrays import Bools, Doubles
from esper.leyline.rewards import RewardInputs
from esper.leyline.stage_masks import IS_LIVE
from esper.simic.rewards.base import ModeReward
from esper.simic.rewards.family import Progress


class EscrowReward(ModeReward):
    """Advance + payout - clawback - rent - upkeep; nothing for the host."""

    CHARGES_RENT: ClassVar[bool] = True

    paid_ES: Doubles
    """Paid so far for the seed in the slot."""
    closed_ES: Bools
    """The seed was fossilised and paid out."""
    forfeited_ES: Bools
    """Pruning was requested; alpha may take some steps to reach 0."""

    def begin(self, inputs: RewardInputs) -> None:
        """Reset the accounts; seeds present at the start have none."""
        super().begin(inputs)
        self.paid_ES = np.zeros(inputs.stage_ES.shape)
        self.closed_ES = np.zeros(inputs.stage_ES.shape, dtype=np.bool_)
        self.forfeited_ES = np.zeros(inputs.stage_ES.shape, dtype=np.bool_)

    def paid(self, inputs: RewardInputs, progress: Progress) -> dict[str, Doubles]:
        """Advance, payout and clawback summed over slots."""
        live_ES = IS_LIVE[inputs.stage_ES]
        self.forfeited_ES = (self.forfeited_ES | _executed(inputs, LifecycleOp.PRUNE)) & live_ES
        kept_E1 = ~_restarted(inputs)[:, None]
        self.closed_ES = self.closed_ES & kept_E1
        open_ES = live_ES & ~self.forfeited_ES & kept_E1
        payout_ES = open_ES & _executed(inputs, LifecycleOp.FOSSILIZE)
        ahead_ES = open_ES & ~payout_ES & (not inputs.episode_over)
        account_ES = self.config.contribution_weight * progress.worth_ES
        due_ES = np.where(self.closed_ES, self.paid_ES, 0.0)
        due_ES = np.where(ahead_ES, self.config.advance * account_ES, due_ES)
        due_ES = np.where(payout_ES, account_ES, due_ES)
        change_ES = due_ES - self.paid_ES
        self.paid_ES = due_ES
        self.closed_ES = self.closed_ES | payout_ES
        return {
            "advance": _sum(change_ES, ahead_ES),
            "payout": _sum(change_ES, payout_ES),
            "clawback": _sum(change_ES, ~ahead_ES & ~payout_ES),
        }


def _executed(inputs: RewardInputs, op: LifecycleOp) -> Bools:
    """Slots `[E, S]` in which this step executed `op`."""
    done_E = (inputs.actions.op == op) & inputs.outcome.executed
    slots = np.arange(inputs.stage_ES.shape[1])
    return np.asarray(done_E[:, None] & (inputs.outcome.target_slot[:, None] == slots))


def _restarted(inputs: RewardInputs) -> Bools:
    """Members that begin anew after this step."""
    return np.asarray((inputs.actions.op == LifecycleOp.RESTART) & inputs.outcome.executed)


def _sum(value_ES: Doubles, mask_ES: Bools) -> Doubles:
    return np.asarray(np.where(mask_ES, value_ES, 0.0).sum(axis=1))
