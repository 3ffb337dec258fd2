"""Construction of `TrainingSignals`, the observation of a policy, which is read-only.

Shape letters: E members, S slots.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from esper.kasmina.lifecycle.lifecycle import Lifecycle
from esper.kasmina.population import Population
from esper.leyline.actions import NO_SLOT
from esper.leyline.arrays import Doubles, Floats, Ints, read_only
from esper.leyline.masks import ActionMasks
from esper.leyline.payloads import StepPhase
from esper.leyline.signals import Counterfactuals, GovernorVerdicts, SlotReports, TrainingSignals
from esper.tamiyo.signals import TrackedSignals
from esper.tasks.scoring import added
from esper.tolaria.context_state import ContextState
from esper.tolaria.env_state import ParallelEnvState

DEAD_GRADIENT = 1e-10
"""Gradient norms up to this have health 0."""
HEALTHY_GRADIENT = 1e-4
"""Gradient norms from this on have health 1; logarithmic in between."""


class Observer:
    """Builds observations; keeps the latest contribution of each seed between measurements."""

    def __init__(self, env: ParallelEnvState, episode_length: int, context: ContextState) -> None:
        """The population must have run a forward pass, which determines the sizes at its slots."""
        population = env.model
        assert population.probe is not None  # the engine runs a forward pass first
        self.env, self.population = env, population
        self.episode_length = episode_length
        self.context = context
        network = population.network
        self._channels_S: Ints = np.array([s.channels for s in network.slots], dtype=np.int64)
        depth = [(slot.position + 1) / len(network.segments) for slot in network.slots]
        self._depth_S: Floats = np.array(depth, dtype=np.float32)
        sides = [_resolution(shape) for shape in population.probe.slot_shapes]
        self._resolution_S: Floats = np.array(sides, dtype=np.float32)
        self.reset()

    def reset(self) -> None:
        """Clear all contributions, at the start of an episode."""
        shape = self.population.lifecycle.stage_ES.shape
        self._births_ES = self.population.lifecycle.births_ES.copy()
        self._age_ES: Ints = np.full(shape, -1, dtype=np.int64)
        self._value_ES: Floats = np.full(shape, np.nan, dtype=np.float32)
        self._velocity_ES: Floats = np.full(shape, np.nan, dtype=np.float32)
        self._shapley_ES: Floats = np.full(shape, np.nan, dtype=np.float32)
        self._interaction_ES: Floats = np.full(shape, np.nan, dtype=np.float32)

    def update_contributions(self, found: Counterfactuals) -> None:
        """Store this step's counterfactuals; clears the values of removed seeds."""
        life = self.population.lifecycle
        gone_ES = (life.births_ES != self._births_ES) | ~life.occupied()
        self._births_ES = life.births_ES.copy()
        self._age_ES[gone_ES] = -1
        for values in (self._value_ES, self._velocity_ES, self._shapley_ES, self._interaction_ES):
            values[gone_ES] = np.nan
        self._age_ES[self._age_ES >= 0] += 1
        new_ES = np.isfinite(found.contribution_ES) & life.occupied()
        change_ES = (found.contribution_ES - self._value_ES) / np.maximum(self._age_ES, 1)
        self._velocity_ES[new_ES] = change_ES[new_ES]
        self._value_ES[new_ES] = found.contribution_ES[new_ES]
        self._shapley_ES[new_ES] = found.shapley_ES[new_ES]
        self._interaction_ES[new_ES] = found.interaction_ES[new_ES]
        self._age_ES[new_ES] = 0

    def observe(self, step: int, metrics: StepMetrics, plan_slot: int = NO_SLOT) -> TrainingSignals:
        """Build the observation of a step; call `update_contributions` first.

        `plan_slot`: the slot to decide on in the plan phase, which is before step 0.
        """
        env, population, life = self.env, self.population, self.population.lifecycle
        slots, clock = population.slot_reports(), self.context.clock
        elapsed_E = np.full(env.members, step / self.episode_length)
        spent_E = elapsed_E if clock is None else clock.share_E
        seen, candidates = self.context.observe(spent_E, slots)
        tracked: dict[str, Any] = {
            f.name: getattr(metrics.tracked, f.name) for f in fields(metrics.tracked)
        }
        gap_ES = life.signals.shadow_loss_ES - life.signals.host_loss_E[:, None]
        signals = TrainingSignals(
            round_index=population.round,
            step=step,
            episode_length=self.episode_length,
            train_loss_E=metrics.train_loss_E.astype(np.float32),
            val_loss_E=metrics.val_loss_E.astype(np.float32),
            val_accuracy_E=metrics.val_accuracy_E.astype(np.float32),
            **tracked,
            **_sizes(population, slots, life),
            last_op_E=env.last_action.op.astype(np.int8),
            last_slot_E=env.last_outcome.target_slot,
            last_executed_E=env.last_outcome.executed,
            governor_strikes_E=env.governor.strikes_E.copy(),
            rollbacks_E=env.governor.rollbacks_E.copy(),
            steps_since_snapshot_E=env.governor.steps_since_snapshot(step),
            slots=slots,
            contribution_age_ES=self._age_ES.copy(),
            contribution_velocity_ES=self._velocity_ES.copy(),
            shapley_ES=self._shapley_ES.copy(),
            interaction_ES=self._interaction_ES.copy(),
            grad_norm_ES=life.signals.grad_norm_ES.copy(),
            grad_health_ES=_gradient_health(life.signals.grad_norm_ES),
            shadow_gap_ES=gap_ES.astype(np.float32),
            channels_S=self._channels_S.copy(),
            depth_S=self._depth_S.copy(),
            resolution_S=self._resolution_S.copy(),
            activation_grad_ES=metrics.activation_grad_ES,
            train_accuracy_E=metrics.train_accuracy_E.astype(np.float32),
            context=seen,
            candidates=candidates,
            plan_slot=plan_slot,
        )
        return read_only(signals)


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """Loss and accuracy of a step, in training and on `val_control`."""

    train_loss_E: Doubles
    val_loss_E: Doubles
    val_accuracy_E: Doubles
    tracked: TrackedSignals
    """Histories, slopes, plateaus."""
    train_accuracy_E: Doubles
    activation_grad_ES: Floats
    """Norm of the loss gradient at each slot's activation; NaN if not measured."""


def _gradient_health(norm_ES: Floats) -> Floats:
    """Health from 0 (vanishing or non-finite) to 1; NaN where there is no measurement.

    >>> norms = np.array([[0.0, 1e-7, 1e-4, 3.0, np.inf, np.nan]], dtype=np.float32)
    >>> _gradient_health(norms).round(2).tolist()
    [[0.0, 0.5, 1.0, 1.0, 0.0, nan]]
    """
    alive_ES = np.isfinite(norm_ES) & (norm_ES > DEAD_GRADIENT)
    floor_ES = np.where(alive_ES, norm_ES, DEAD_GRADIENT)
    decades = np.log10(HEALTHY_GRADIENT / DEAD_GRADIENT)
    health_ES = np.clip(np.log10(floor_ES / DEAD_GRADIENT) / decades, 0.0, 1.0)
    return np.where(np.isnan(norm_ES), np.nan, health_ES).astype(np.float32)


def with_slots(
    signals: TrainingSignals, population: Population, slots: SlotReports, life: Lifecycle
) -> TrainingSignals:
    """Return the signals with slots and sizes of the population in this state of its lifecycle."""
    return read_only(replace(signals, slots=slots, **_sizes(population, slots, life)))


def _sizes(population: Population, slots: SlotReports, life: Lifecycle) -> dict[str, Any]:
    """Size of the seeds with alpha > 0 relative to the host, and the seed budget left."""
    probe = population.probe
    assert probe is not None  # checked by `Observer`
    params_E = (
        added(slots.alpha_ES, slots.params_ES) / population.network.host.parameters_per_member
    )
    macs_E = added(slots.alpha_ES, slots.macs_ES) / probe.host_macs
    return {
        "params_over_host_E": params_E.astype(np.float32),
        "macs_over_host_E": macs_E.astype(np.float32),
        "seed_budget_left_E": life.budget_left(),
    }


def _resolution(shape: tuple[int, ...]) -> float:
    """Resolution of an activation: side of an image, length of a sequence, 1 for a vector."""
    if len(shape) == 3:
        return float(np.sqrt(shape[1] * shape[2]))
    return float(shape[0]) if len(shape) == 2 else 1.0


@dataclass(frozen=True, slots=True, eq=False)
class ObservedStep:
    """A trained, validated and observed step, before its actions."""

    signals: TrainingSignals
    masks: ActionMasks
    verdicts: GovernorVerdicts
    counterfactuals: Counterfactuals
    train_accuracy_E: Doubles
    rows: int
    """Validation rows plus shadow rows of training."""
    phases: dict[StepPhase, float]
    """Host seconds per phase so far; the rest of the step adds to it."""
