"""Trains and validates the candidates of a bracket in one population.

Shape letters: E members, S slots, B batch.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from esper.device.transfer import fetch
from esper.growing.batches import BatchSource
from esper.growing.measuring import score_rows
from esper.growing.metric_forms import Metric
from esper.growing.topologies import EMPTY, Topology, TopologySpace
from esper.kasmina.gates import gate_signals
from esper.kasmina.population import Population
from esper.kasmina.rows import whole_rows
from esper.leyline.actions import LifecycleOp
from esper.leyline.arrays import Bools, Doubles, Floats, Ints
from esper.leyline.stages import SeedStage
from esper.tolaria.batch_ops import TrainTotals, process_train_batch
from esper.tolaria.setup import make_graph_cache

WARM_UP: Final = 0.05
"""Share of a training run in which the learning rate rises to its full value."""
CHUNKS: Final = 100
"""Steps of a full training run: rates are set and ramps advance once per step."""

KEPT_NUMBERS: Final = 32_000_000
"""Numbers that a metric may keep of the outputs of all members that are validated at once."""

Ticker = Callable[[int], None]
"""Called with the number of batches of the current member after every chunk."""


@dataclass(frozen=True, slots=True, eq=False)
class Validation:
    """Samples on the device that networks are judged by."""

    inputs: Tensor
    targets: Tensor
    batch_size: int
    metric: Metric


def rate_share(batch: int, length: int) -> float:
    """Share of the full learning rate at a batch: a linear warm-up, then a cosine to 0.

    >>> rate_share(50, 1000), round(rate_share(999, 1000), 4)
    (1.0, 0.0)
    """
    warm = max(1, round(WARM_UP * length))
    if batch < warm:
        return (batch + 1) / (warm + 1)
    return 0.5 * (1.0 + math.cos(math.pi * (batch - warm) / max(1, length - warm)))


class BracketTrainer:
    """The members of one bracket: trained together, validated, halved and varied."""

    def __init__(
        self,
        population: Population,
        space: TopologySpace,
        batches: BatchSource,
        length: int,
        rate_E: Sequence[float],
        autocast: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """`length`: batches of a full training run; `rate_E`: learning rate of each member;
        `autocast`: context of training batches.
        """
        self.space, self.batches = space, batches
        self.length = length
        self.rate_E: Doubles = np.asarray(rate_E, dtype=np.float64)
        self.batch = 0
        """Batches trained on."""
        self.compute_E: Doubles = np.zeros(population.members)
        """Training compute so far, in batches of the bare host."""
        self._autocast = autocast
        self._use(population)

    def _use(self, population: Population) -> None:
        """Train this population from now on; its batches are captured where that is possible."""
        self.population = population
        members, slots = population.lifecycle.stage_ES.shape
        self._totals = TrainTotals.zeros(members, slots, population.device)
        self._graphs, _ = make_graph_cache("auto", population)

    def plant(self, topologies: Sequence[Topology]) -> None:
        """Plant a topology in each member, before training."""
        for slot in range(self.space.slots):
            held = [topology[slot] for topology in topologies]
            for name in sorted(set(held) - {EMPTY}):
                members = np.array([e for e, other in enumerate(held) if other == name])
                self.population.plant(members, slot, name, prunable=True)

    # ---- training -------------------------------------------------------------------------

    def train(self, until: int, tick: Ticker | None = None) -> None:
        """Train all members up to a number of batches."""
        chunk = max(1, self.length // CHUNKS)
        while self.batch < until:
            self._train_chunk(min(chunk, until - self.batch))
            if tick is not None:
                tick(self.batch)

    def _train_chunk(self, count: int) -> None:
        population, life = self.population, self.population.lifecycle
        population.begin_step()
        rates_E = self.rate_E * rate_share(self.batch, self.length)
        population.set_rates(rates_E, rates_E)
        incubating_ES = np.asarray(life.stage_ES == SeedStage.TRAINING)
        cost_E = self.space.training.relative(life.blueprint_ES, life.alpha_ES, incubating_ES)
        self._totals.zero_()
        for number in range(self.batch, self.batch + count):
            x, target = self.batches.batch(number)
            with self._autocast():
                process_train_batch(population, x, target, self._totals, graphs=self._graphs)
        self.batch += count
        self.compute_E += cost_E * count
        life.trained_E[:] = True
        # SYNC: one transfer per chunk, only while a seed is on its way into the network.
        if self._growing().any():
            totals = self._totals
            sums = fetch(
                {
                    "loss": totals.loss_E,
                    "shadow": totals.shadow_loss_ES,
                    "grad": totals.grad_norm_ES,
                }
            )
            measured = {name: (value / count).astype(np.float32) for name, value in sums.items()}
            certain_ES = np.ones(life.stage_ES.shape, dtype=np.float32)
            signals = gate_signals(
                life.stage_ES,
                population.trainer.training(),
                measured["loss"],
                measured["shadow"],
                measured["grad"],
                certain_ES,  # whether a seed is worth its place is judged by halving
                np.zeros_like(certain_ES),
            )
            population.end_step(signals)
            self._advance()

    def _growing(self) -> Bools:
        """`[E, S]`: seeds that are on their way into the network."""
        settled = (SeedStage.DORMANT, SeedStage.PLANTED, SeedStage.FOSSILIZED)
        return ~np.isin(self.population.lifecycle.stage_ES, [int(stage) for stage in settled])

    def _advance(self) -> None:
        """Blend seeds that are ready, and keep those that are blended."""
        legal_ESO = self.population.lifecycle.legal_ops()
        member_N, slot_N = np.nonzero(legal_ESO[..., LifecycleOp.ADVANCE])
        if member_N.size:
            self.population.advance(member_N, slot_N)
        blended_ES = self.population.lifecycle.stage_ES == SeedStage.HOLDING
        if blended_ES.any():  # from now on like a planted seed, which may be pruned later
            member_N, slot_N = np.nonzero(blended_ES)
            self.population.lifecycle.make_static(member_N, slot_N, SeedStage.PLANTED)

    # ---- validation -----------------------------------------------------------------------

    def validate(self, part: Validation) -> tuple[Doubles, Doubles]:
        """Score and loss `[E]` of the members; NaN where the loss is not finite."""
        everyone = np.arange(self.population.members)
        score_E, loss_E = self._validate_rows(part, everyone, self.population.lifecycle.alpha_ES)
        return np.where(np.isfinite(loss_E), score_E, np.nan), loss_E

    def without_each_seed(self, part: Validation) -> tuple[Ints, Ints, Doubles]:
        """Score of every member without each of its seeds: members, slots and scores `[N]`."""
        alpha_ES = self.population.lifecycle.alpha_ES
        member_N, slot_N = np.nonzero(alpha_ES > 0)
        if not member_N.size:
            return member_N, slot_N, np.zeros(0)
        alpha_NS = alpha_ES[member_N].copy()
        alpha_NS[np.arange(len(slot_N)), slot_N] = 0.0
        score_N, _ = self._validate_rows(part, member_N, alpha_NS)
        return member_N, slot_N, score_N

    def _validate_rows(
        self, part: Validation, member_R: Ints, alpha_RS: Floats
    ) -> tuple[Doubles, Doubles]:
        """Score over the whole part and loss `[R]` of members with given alphas."""
        # What the metric keeps of all rows fits into memory; that of all samples has to.
        size = max(1, KEPT_NUMBERS // (part.metric.numbers * len(part.targets)))
        some = [slice(first, first + size) for first in range(0, len(member_R), size)]
        found = [self._validate_some(part, member_R[rows], alpha_RS[rows]) for rows in some]
        scores, losses = zip(*found, strict=True)
        return np.concatenate(scores), np.concatenate(losses)

    def _validate_some(
        self, part: Validation, member_R: Ints, alpha_RS: Floats
    ) -> tuple[Doubles, Doubles]:
        population, rows = self.population, len(member_R)
        plan = population.plan_rows(whole_rows(member_R, alpha_RS))
        loss_R = torch.zeros(rows, dtype=torch.float64, device=population.device)
        kept = []
        for first in range(0, len(part.targets), part.batch_size):
            some = slice(first, first + part.batch_size)
            x, target = part.inputs[None, some], part.targets[None, some]
            with torch.no_grad():  # in float32, as plain networks are judged
                outputs = population.forward(x, plan)
            target_R = target.expand(rows, *target.shape[1:])
            kept.append(part.metric.keep(outputs.float(), target_R))
            loss_R += population.loss(outputs.float(), target_R) * target.shape[1]
        # SYNC: three transfers per validation.
        score_R = score_rows(part.metric, torch.cat(kept, dim=1).cpu(), part.targets.cpu())
        return score_R, (loss_R / len(part.targets)).cpu().numpy()

    # ---- halving and variations -----------------------------------------------------------

    def select(self, members: Ints) -> None:
        """Continue with these members only; a member given twice is copied."""
        self._use(self.population.select(members))
        self.rate_E = self.rate_E[members]
        self.compute_E = self.compute_E[members].copy()

    def prune(self, member: int, slot: int) -> None:
        """Remove a seed at once."""
        self.population.prune([member], slot)

    def germinate(self, member: int, slot: int, name: str) -> None:
        """Start a seed in an empty slot, which is blended in when it is ready."""
        self.population.germinate([member], slot, name)

    def settle(self) -> None:
        """Remove seeds that have not made it into the network, at the end of training."""
        member_N, slot_N = np.nonzero(self._growing() & self._removable())
        for member, slot in zip(member_N.tolist(), slot_N.tolist(), strict=True):
            self.population.prune([member], slot)

    def _removable(self) -> Bools:
        return np.asarray(self.population.lifecycle.legal_ops()[..., LifecycleOp.PRUNE])

    def topologies(self) -> list[Topology]:
        """What each member holds; seeds that are being removed are left out."""
        life = self.population.lifecycle
        held_ES = life.occupied() & ~life.pruning_ES
        names = self.space.blueprints
        return [
            tuple(names[kind] if held else EMPTY for kind, held in zip(kinds, helds, strict=True))
            for kinds, helds in zip(life.blueprint_ES.tolist(), held_ES.tolist(), strict=True)
        ]
