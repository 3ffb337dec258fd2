"""The context of the current round: draws it, applies it, and reports what policies may see.

Shape letters: E members, S slots, K blueprints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from esper.kasmina.costs.seed_costs import TrainingCosts, measure_training_costs
from esper.kasmina.lifecycle.caps import Caps, SeedCosts
from esper.kasmina.population import Population
from esper.leyline.actions import ActionHead, BlendStyle
from esper.leyline.arrays import Bools, Doubles, Ints
from esper.leyline.context import (
    Candidates,
    ContextSignals,
    ContextSpec,
    MemberContexts,
    MemberTerms,
    RoundContext,
)
from esper.leyline.errors import EsperError
from esper.leyline.prices import ScoreConstants
from esper.leyline.signals import SlotReports
from esper.leyline.stages import SeedStage
from esper.tasks.context_data import RoundData
from esper.tasks.contexts import (
    Chance,
    chance_of,
    draw_members,
    draw_round,
    require_contexts_fit,
    train_samples,
)
from esper.tasks.objectives import Objective
from esper.tasks.scoring import MAIN_PASSES, SHADOW_PASSES, added
from esper.tasks.spec import TaskSpec
from esper.tasks.task_data import TaskData
from esper.tolaria.compute_clock import ComputeClock

_ROUNDING = 1e-9
"""Tolerance for shares of the compute that should be equal."""


@dataclass(frozen=True, slots=True, eq=False)
class DrawLimits:
    """The host and the fullest topology, between which caps and budgets are drawn."""

    costs: SeedCosts
    fits_SK: Bools
    fullest_cost: float
    """Training cost of the fullest topology, relative to the host's."""


class ContextState:
    """Contexts of the members of one engine."""

    def __init__(
        self,
        spec: ContextSpec,
        task: TaskSpec,
        data: TaskData,
        population: Population,
        sample: Tensor,
        suffix_macs_S: Ints,
        context_ids: Ints,
        gates_allowed: bool = True,
        hidden_seed: int | None = None,
        objective: Objective | None = None,
    ) -> None:
        """`sample`: inputs `[B, ...]`; `context_ids`: numbers of the members in their draws.

        `gates_allowed`: seeds may get blend style GATE, which has parameters. `hidden_seed`: seed
        of what policies do not see of a round; None: the run's. `objective`: the task's own loss.
        """
        probe = population.probe
        assert probe is not None  # the engine runs a forward pass first
        require_contexts_fit(spec, task, data)
        self.spec, self.task, self.data, self.population = spec, task, data, population
        self.context_ids = context_ids
        self._constant_loss = None if objective is None else objective.constant_loss
        self._gates_allowed, self._hidden_seed = gates_allowed, hidden_seed
        sizes, network = population.seed_sizes, population.network
        self.costs = sizes.table(probe)
        self._receptive_SK = sizes.receptive_fields()
        copies_K = np.array([recipe.from_host for recipe in network.blueprints], dtype=np.bool_)
        self._copies_SK: Bools = network.fits_SK & copies_K
        if spec.clock == "compute":
            self.training_costs = measure_training_costs(network, probe, sample)
        else:  # the counting rule of the old score (TrainingFlops)
            macs_SK = self.costs.macs_SK
            self.training_costs = TrainingCosts(
                host=MAIN_PASSES * self.costs.host_macs,
                suffix_S=SHADOW_PASSES * suffix_macs_S,
                seed_SK=MAIN_PASSES * macs_SK,
                shadow_SK=MAIN_PASSES * macs_SK,
                frozen_SK=SHADOW_PASSES * macs_SK,
            )
        self._measure_candidates()
        fullest = self.training_costs.fullest(network.fits_SK)
        self.limits = DrawLimits(self.costs, network.fits_SK, fullest)
        """A comparison sets those of the whole task, so that all policies meet the same draws."""
        members = population.members
        self.clock: ComputeClock | None = None
        if spec.clock == "compute":
            self.clock = ComputeClock(members, task.batches_per_step, task.episode_length)
        self.terms: MemberTerms | None = None
        """Prices and caps of the next rounds; None: drawn."""
        self.round = RoundContext()
        self.members = MemberContexts.fixed(members)
        self.chance: Chance = chance_of(task, self.round, self._constant_loss)
        self.samples = len(data.train)
        """Training samples in use."""
        self.began_E: Ints = np.zeros(members, dtype=np.int64)
        """Step in which each member began, or began anew: its learning rates count from there."""

    def _measure_candidates(self) -> None:
        """Sizes of the seeds that could be grown, which are the same in every round."""
        costs = self.costs
        self._params_SK: Ints = costs.params_SK
        if self._gates_allowed:
            self._params_SK = self._params_SK + costs.gate_params_S[:, None]
        self._over_host_SK = self._params_SK / costs.host_params, costs.macs_SK / costs.host_macs
        """Parameters and MACs over the host's."""
        self._seed_cost_SK: Doubles = self.training_costs.seed_SK / self.training_costs.host
        """Training cost over the host's."""

    def begin_round(self, seed: int, round_index: int) -> bool:
        """Draw the contexts of a round; return whether its data differ from the last one's."""
        spec, life, limits = self.spec, self.population.lifecycle, self.limits
        hidden_seed = seed if self._hidden_seed is None else self._hidden_seed
        self.round = draw_round(
            spec, self.task, seed, round_index, limits.fullest_cost, hidden_seed
        )
        self.members = draw_members(
            spec, seed, round_index, self.context_ids, limits.costs, limits.fits_SK
        )
        capped = spec.capped > 0
        if self.terms is not None:
            self.members, capped = self._on_terms(self.terms), self.terms.capped
        life.action_space = spec.actions
        life.caps = None
        if capped:
            caps = self.members.params_cap_E, self.members.macs_cap_E
            life.caps = Caps(self.costs, *caps, gates_allowed=self._gates_allowed)
        self.chance = chance_of(self.task, self.round, self._constant_loss)
        self.samples = train_samples(self.task, self.data, self.round)
        if self.clock is not None:
            self.clock.reset(self.round.budget)
        self.began_E = np.zeros_like(self.began_E)
        self._data_seed, self._round_index = hidden_seed, round_index
        return spec.changes_data

    def _on_terms(self, terms: MemberTerms) -> MemberContexts:
        """The drawn contexts with given prices and caps."""
        given, members = len(terms.price_E), self.population.members
        if given != members:
            raise EsperError(f"prices and caps of {given} members for {members}: give one each")
        return replace(
            self.members,
            price_E=terms.price_E,
            params_cap_E=terms.params_cap_E,
            macs_cap_E=terms.macs_cap_E,
        )

    def round_data(self) -> RoundData:
        """The data as this round sees them."""
        return RoundData(self.data, self.round, self._data_seed, self._round_index)

    # ---- prices and costs ---------------------------------------------------------------------

    @property
    def constants(self) -> ScoreConstants:
        """The task's price of growth, before the members' factors."""
        return self.task.score

    def cost_E(self) -> Doubles:
        """Training cost of a batch now, relative to the host's."""
        life = self.population.lifecycle
        training_ES = np.asarray(life.stage_ES == SeedStage.TRAINING)
        return self.training_costs.relative(life.blueprint_ES, life.alpha_ES, training_ES)

    # ---- restarts -----------------------------------------------------------------------------

    def update_restartable(self, step: int) -> None:
        """After the training of a step: let members restart that have enough compute left."""
        passed_E = np.full(self.began_E.shape, (step + 1) / self.task.episode_length)
        left_E = 1.0 - (passed_E if self.clock is None else self.clock.share_E)
        enough_E = left_E >= self.spec.min_restart_left - _ROUNDING
        self.population.lifecycle.restartable_E = enough_E & self.spec.restarts

    def settle_restarts(self, step: int, restarted_E: Bools) -> None:
        """Count the learning rates of members that restarted after a step from the next one on."""
        self.began_E = np.where(restarted_E, step + 1, self.began_E)

    # ---- observations -------------------------------------------------------------------------

    def observe(self, spent_E: Doubles, slots: SlotReports) -> tuple[ContextSignals, Candidates]:
        """What a policy sees of the context; `spent_E`: share of the budget spent."""
        cost_E = self.cost_E()
        return self._signals(spent_E, cost_E), self._candidates(slots, cost_E)

    def _signals(self, spent_E: Doubles, cost_E: Doubles) -> ContextSignals:
        life, costs = self.population.lifecycle, self.costs
        params_E, macs_E = costs.reserved(life.blueprint_ES, life.style_ES)
        return ContextSignals(
            plans=self.spec.plans,
            restarts=self.spec.restarts,
            constants=self.constants,
            price_E=self.members.price_E,
            learning_rate_E=self.members.learning_rate_E,
            params_cap_E=self.members.params_cap_E,
            macs_cap_E=self.members.macs_cap_E,
            reserved_params_E=params_E,
            reserved_macs_E=macs_E,
            budget=self.round.budget,
            spent_E=spent_E,
            cost_E=cost_E,
            stopped_E=life.stopped_E.copy(),
            restarts_E=life.restarts_E.copy(),
            began_E=self.began_E,
            groups=self.chance.groups,
            chance_accuracy=self.chance.accuracy,
            chance_loss=self.chance.loss,
            train_samples=self.samples,
            host_params=costs.host_params,
            host_macs=costs.host_macs,
        )

    def _candidates(self, slots: SlotReports, cost_E: Doubles) -> Candidates:
        """Cost of every seed that could be grown now."""
        return Candidates(
            params_SK=self._params_SK,
            macs_SK=self.costs.macs_SK,
            receptive_SK=self._receptive_SK,
            copies_SK=self._copies_SK,
            fits_ESK=self.population.lifecycle.fits_ESK(),
            rent_ESK=self._added_rent(slots).astype(np.float32),
            budget_share_ESK=self._budget_share(cost_E).astype(np.float32),
        )

    def _added_rent(self, slots: SlotReports) -> Doubles:
        """Rent a seed would add at the member's price, without the rent of compute."""
        costs = self.costs
        params_E11 = added(slots.alpha_ES, slots.params_ES)[:, None, None] / costs.host_params
        macs_E11 = added(slots.alpha_ES, slots.macs_ES)[:, None, None] / costs.host_macs
        before = self.constants.rent(params_E11, macs_E11, 0.0)
        seed_params_SK, seed_macs_SK = self._over_host_SK
        after = self.constants.rent(params_E11 + seed_params_SK, macs_E11 + seed_macs_SK, 0.0)
        return self.members.price_E[:, None, None] * (after - before)

    def _budget_share(self, cost_E: Doubles) -> Doubles:
        """Share of a batch's compute that a seed would take."""
        seed_SK = self._seed_cost_SK
        return np.asarray(seed_SK / (cost_E[:, None, None] + seed_SK))


def gates_allowed(frozen: Sequence[tuple[ActionHead, int]]) -> bool:
    """Whether blend style GATE can be chosen, given frozen (head, index) pairs."""
    return all(head != ActionHead.STYLE or index == BlendStyle.GATE for head, index in frozen)
