"""Training of all members on the batches of one step.

Without a clock every member trains on all of them, in lockstep. With the compute clock each member
trains on as many as it can afford; in the others it is masked.

Shape letters: E members, S slots, M batches of a step, R the two learning rates, U distinct
beginnings.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from torch import Tensor

from esper.device.graphs import GraphCache
from esper.device.upload import upload
from esper.kasmina.activation_gradients import slot_gradient_norms
from esper.leyline.arrays import Bools, Doubles
from esper.tasks.spec import TaskSpec
from esper.tolaria.batch_ops import process_train_batch
from esper.tolaria.context_state import ContextState
from esper.tolaria.data import SharedBatchIterator
from esper.tolaria.env_state import ParallelEnvState

GRADIENT_SAMPLES: Final = 32
"""Samples of a train batch on which activation gradients are measured."""


class StepTrainer:
    """Trains the members of an engine, step by step."""

    def __init__(
        self,
        spec: TaskSpec,
        env: ParallelEnvState,
        batches: SharedBatchIterator,
        buffers: tuple[Tensor, Tensor] | None,
        context: ContextState,
        autocast: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        """`buffers`: tensors that every batch is written to, on a GPU."""
        self.spec, self.env, self.context = spec, env, context
        self.batches, self.buffers = batches, buffers
        self.graphs: GraphCache | None = None
        """Cache of captured train batches; None: run eagerly."""
        self.batches_run = 0
        """Batches of all members computed so far, for benchmarks."""
        self._autocast = autocast
        self._last: tuple[Tensor, Tensor] | None = None
        """The last batch of the step."""
        self._rates_RE: Doubles = np.zeros((2, env.members))
        """Learning rates of the last step."""

    def run(self, step: int) -> None:
        """Train on the batches of a step; call `population.begin_step` first."""
        env, population = self.env, self.env.model
        self._set_learning_rates(step)
        env.train.zero_()
        self._last = None
        batches, active_ME = self._next_batches(step)
        active = None if active_ME is None else upload(active_ME, population.device)
        for index, (x_EB, target_EB) in enumerate(batches):
            active_E = None if active_ME is None else active_ME[index]
            if active is not None:
                population.set_active(active[index])
            with self._autocast():
                process_train_batch(
                    population, x_EB, target_EB, env.train, env.scaler, self.graphs, active_E
                )
            self._last = x_EB, target_EB
            self.batches_run += 1
        population.set_active(None)
        population.lifecycle.trained_E |= env.train.batches_E > 0

    def activation_gradients(self, before_training: bool = False) -> Tensor | None:
        """Gradient norms `[E, S]` at the slots on the last batch; None if there was none.

        `before_training`: on the first batch of the episode.
        """
        batch = self._last
        if before_training:
            nothing_E = np.zeros(self.env.members, dtype=np.int64)
            batch = next(self.batches.batches(nothing_E, 1, self.buffers))
        if batch is None:
            return None
        x_EB, target_EB = (part[:, :GRADIENT_SAMPLES] for part in batch)
        with self._autocast():
            return slot_gradient_norms(self.env.model, x_EB, target_EB)

    def _next_batches(self, step: int) -> tuple[Iterator[tuple[Tensor, Tensor]], Bools | None]:
        """Batches of this step, and who trains on each of them `[M, E]`; None: everybody."""
        stopped_E, clock = self.env.model.lifecycle.stopped_E, self.context.clock
        if clock is not None:
            first_E = clock.trained_E.copy()
            batches_E = clock.advance(self.context.cost_E(), stopped_E)
            active_ME = np.arange(batches_E.max())[:, None] < batches_E
            if not len(active_ME):
                return iter(()), None
            return self.batches.batches(first_E, len(active_ME), self.buffers), active_ME
        if stopped_E.all():
            return iter(()), None
        batches = self.batches.step(step, self.buffers)
        if not stopped_E.any():
            return batches, None
        return batches, np.tile(~stopped_E, (self.spec.batches_per_step, 1))

    def _set_learning_rates(self, step: int) -> None:
        """Set the learning rates of this step; uploads them only if they change."""
        rates_RE = self._learning_rates(step)
        if step == 0 or not np.array_equal(rates_RE, self._rates_RE):
            self.env.model.set_rates(*rates_RE)
        self._rates_RE = rates_RE

    def _learning_rates(self, step: int) -> Doubles:
        """Host and seed rates `[R, E]`: the schedule over what was left when a member began."""
        began_U, place_E = np.unique(self.context.began_E, return_inverse=True)
        optim, length = self.spec.optim, self.spec.episode_length
        rates_UR = [optim.rates_at(step - began, length - began) for began in began_U.tolist()]
        return np.array(rates_UR)[place_E].T * self.context.members.learning_rate_E
