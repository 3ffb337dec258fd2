"""State of all members between steps, as a struct of arrays.

Fields are named after the state of one environment; each holds all members. `env(i)` reads one.

Shape letters: E members, S slots, O operations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from esper.kasmina.population import Population
from esper.kasmina.training.optim import StackedOptimizer
from esper.kasmina.training.scaling import MemberScaler
from esper.leyline.actions import NO_SLOT, ActionOutcome, ActionSpec, LifecycleOp
from esper.leyline.arrays import Bools, Codes, Doubles, Ints
from esper.leyline.errors import EsperError
from esper.leyline.protocols import PolicyProtocol
from esper.leyline.stage_masks import IS_LIVE
from esper.leyline.stages import SeedStage
from esper.tamiyo.signals import SignalTracker
from esper.tolaria.batch_ops import RowTotals, TrainTotals
from esper.tolaria.governor import TolariaGovernor


@dataclass(frozen=True, slots=True)
class _EnvView:
    """Read-only view of one member."""

    env_idx: int
    device: torch.device
    seed_stage: tuple[SeedStage, ...]
    """Stage of each slot."""
    active_slot: int
    """First slot with a live seed; `NO_SLOT` if there is none."""
    epoch_reward: float
    """Reward of this episode so far."""
    counts: dict[LifecycleOp, int]
    """Operations chosen in this episode, by operation."""
    successes: dict[LifecycleOp, int]
    """Operations executed in this episode, by operation."""


@dataclass(slots=True)
class ParallelEnvState:
    """All members: population, trackers, policy state and accumulators."""

    model: Population
    signal_tracker: SignalTracker
    governor: TolariaGovernor
    scaler: MemberScaler | None = None
    """Loss scales, for fp16."""
    stream: torch.cuda.Stream | None = None
    """The CUDA stream the members' work is queued on; None: the current one."""
    lstm_hidden: Any = None
    """The policy's state; opaque to the engine."""

    epoch_rewards: Doubles = field(init=False)
    """`[E]`: reward of this episode so far."""
    counts: Ints = field(init=False)
    """`[E, O]`: operations chosen in this episode."""
    successes: Ints = field(init=False)
    """`[E, O]`: operations executed in this episode."""
    last_action: ActionSpec = field(init=False)
    last_outcome: ActionOutcome = field(init=False)

    train: TrainTotals = field(init=False)
    """Losses, correct predictions and gradient norms of this step's batches, on the device."""
    val: RowTotals = field(init=False)
    """Losses and correct predictions of this step's validation on `val_control`, on the device;
    the first E rows are the members."""

    def __post_init__(self) -> None:
        if self.stream is not None and self.device.type != "cuda":
            raise ValueError(f"a CUDA stream with device {self.device}: pass no stream")
        self.init_accumulators()

    # ---- all members ----------------------------------------------------------------------

    @property
    def members(self) -> int:
        """E, the number of members."""
        return self.model.members

    @property
    def device(self) -> torch.device:
        """Device of the members."""
        return self.model.device

    @property
    def env_idx(self) -> Ints:
        """`[E]`: index of each member."""
        return np.arange(self.members, dtype=np.int64)

    @property
    def host_optimizer(self) -> StackedOptimizer:
        """Optimizer of the hosts."""
        return self.model.trainer.host_optimizer

    @property
    def seed_optimizer(self) -> StackedOptimizer:
        """Optimizer of the seeds, including fossilised ones."""
        return self.model.trainer.seed_optimizer

    @property
    def seed_stage(self) -> Codes:
        """`[E, S]`: `SeedStage`."""
        return self.model.lifecycle.stage_ES.copy()

    @property
    def active_slot(self) -> Ints:
        """`[E]`: first slot with a live seed; `NO_SLOT` if there is none."""
        live_ES = IS_LIVE[self.model.lifecycle.stage_ES]
        return np.where(live_ES.any(axis=1), live_ES.argmax(axis=1), NO_SLOT).astype(np.int64)

    @property
    def train_loss(self) -> Tensor:
        """`[E]`: sum over this step's train batches so far."""
        return self.train.loss_E

    @property
    def train_correct(self) -> Tensor:
        """`[E]`: correct predictions on this step's train batches so far."""
        return self.train.correct_E

    @property
    def train_total(self) -> Ints:
        """`[E]`: predictions on this step's train batches so far."""
        return self.train.batches_E * self.train.predictions

    @property
    def val_loss(self) -> Tensor:
        """`[E]`: sum over the samples of this step's validation."""
        return self.val.loss_R[: self.members]

    @property
    def val_correct(self) -> Tensor:
        """`[E]`: correct predictions (for text: sum of 1 - loss / ln vocab)."""
        return self.val.merit_R[: self.members]

    @property
    def val_total(self) -> int:
        """Samples of this step's validation."""
        return self.val.samples

    # ---- accumulators ---------------------------------------------------------------------

    def init_accumulators(self) -> None:
        """Allocate the accumulators of an episode and of a step."""
        members, slots = self.members, len(self.model.slots)
        self.epoch_rewards = np.zeros(members, dtype=np.float64)
        self.counts = np.zeros((members, len(LifecycleOp)), dtype=np.int64)
        self.successes = np.zeros_like(self.counts)
        self.last_action = ActionSpec.wait(members)
        self.last_outcome = ActionOutcome.waited(members)
        self.train = TrainTotals.zeros(members, slots, self.device)
        self.val = RowTotals.zeros(members, self.device)

    def zero_accumulators(self) -> None:
        """Zero all accumulators, at the start of an episode."""
        self.epoch_rewards.fill(0.0)
        self.counts.fill(0)
        self.successes.fill(0)
        self.last_action = ActionSpec.wait(self.members)
        self.last_outcome = ActionOutcome.waited(self.members)
        self.train.zero_()
        self.val.zero_()

    def record_actions(self, actions: ActionSpec, outcome: ActionOutcome) -> None:
        """Count chosen and executed operations."""
        self.counts[self.env_idx, actions.op] += 1
        self.successes[self.env_idx, actions.op] += outcome.executed
        self.last_action, self.last_outcome = actions, outcome

    def settle_restarts(self, restarted_E: Bools) -> None:
        """Forget the learning curves of members that began anew; the policy remembers them."""
        self.governor.after_restarts(restarted_E)
        self.signal_tracker.reset(restarted_E)

    def reset_lstm_hidden(self, client: PolicyProtocol[Any], reset_E: Bools | None = None) -> None:
        """Reset the policy's state, of all members or the masked ones."""
        if reset_E is None:
            self.lstm_hidden = client.initial_state(self.members)
        elif reset_E.any():
            self.lstm_hidden = client.reset_state(self.lstm_hidden, reset_E)

    # ---- one member -----------------------------------------------------------------------

    def env(self, index: int) -> _EnvView:
        """Return a view of one member, for debugging and tests."""
        if not 0 <= index < self.members:
            raise EsperError(f"member {index}: valid are 0 to {self.members - 1}")
        return _EnvView(
            env_idx=index,
            device=self.device,
            seed_stage=tuple(SeedStage(s) for s in self.model.lifecycle.stage_ES[index]),
            active_slot=int(self.active_slot[index]),
            epoch_reward=float(self.epoch_rewards[index]),
            counts={op: int(self.counts[index, op]) for op in LifecycleOp},
            successes={op: int(self.successes[index, op]) for op in LifecycleOp},
        )
