"""What controllers see of a step: measurements, histories, slots and limits in one struct.

Shape letters: E members, S slots.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from esper.kasmina.population import Population
from esper.leyline.actions import ActionOutcome, ActionSpec
from esper.leyline.arrays import Doubles, Floats, Ints
from esper.leyline.errors import EsperError
from esper.leyline.signals import Counterfactuals, SlotReports, TrainingSignals
from esper.tamiyo.signals import TrackedSignals
from esper.tasks.scoring import added

DEAD_GRADIENT = 1e-10
"""A gradient norm at or below this has health 0 ..."""
HEALTHY_GRADIENT = 1e-4
"""... and one at or above this has health 1; logarithmic between them."""


class Observer:
    """Puts together what controllers see, and remembers what was measured at earlier steps."""

    def __init__(self, population: Population, episode_length: int) -> None:
        """`population` must have seen an input: sizes at its slots come from there."""
        if population.probe is None:
            raise EsperError("observations need sizes at the slots: give the population an input")
        self.population = population
        self.episode_length = episode_length
        network = population.network
        self._channels_S: Ints = np.array([s.channels for s in network.slots], dtype=np.int64)
        depth = [(slot.position + 1) / len(network.segments) for slot in network.slots]
        self._depth_S: Floats = np.array(depth, dtype=np.float32)
        sides = [_side(shape) for shape in population.probe.slot_shapes]
        self._resolution_S: Floats = np.array(sides, dtype=np.float32)
        self.reset()

    def reset(self) -> None:
        """Start an episode: nothing measured."""
        shape = self.population.lifecycle.stage_ES.shape
        self._births_ES = self.population.lifecycle.births_ES.copy()
        self._age_ES: Ints = np.full(shape, -1, dtype=np.int64)
        self._value_ES: Floats = np.full(shape, np.nan, dtype=np.float32)
        self._velocity_ES: Floats = np.full(shape, np.nan, dtype=np.float32)
        self._shapley_ES: Floats = np.full(shape, np.nan, dtype=np.float32)
        self._interaction_ES: Floats = np.full(shape, np.nan, dtype=np.float32)

    def note(self, found: Counterfactuals) -> None:
        """Take in this step's counterfactuals; what belongs to a seed that is gone is forgotten."""
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

    def observe(self, step: int, measured: Measured, standing: Standing) -> TrainingSignals:
        """The observation of a step; `note` comes before it."""
        population, life = self.population, self.population.lifecycle
        slots = population.slot_reports()
        tracked: dict[str, Any] = {
            f.name: getattr(measured.tracked, f.name) for f in fields(measured.tracked)
        }
        gap_ES = life.signals.shadow_loss_ES - life.signals.host_loss_E[:, None]
        acted_E = standing.last_outcome.target_slot
        return TrainingSignals(
            round_index=population.round,
            step=step,
            episode_length=self.episode_length,
            train_loss_E=measured.train_loss_E.astype(np.float32),
            val_loss_E=measured.val_loss_E.astype(np.float32),
            val_accuracy_E=measured.val_accuracy_E.astype(np.float32),
            **tracked,
            **_sizes(population, slots),
            last_op_E=standing.last_action.op.astype(np.int8),
            last_slot_E=acted_E,
            last_executed_E=standing.last_outcome.executed,
            governor_strikes_E=standing.strikes_E,
            rollbacks_E=standing.rollbacks_E,
            steps_since_snapshot_E=standing.steps_since_snapshot_E,
            slots=slots,
            contribution_age_ES=self._age_ES.copy(),
            contribution_velocity_ES=self._velocity_ES.copy(),
            shapley_ES=self._shapley_ES.copy(),
            interaction_ES=self._interaction_ES.copy(),
            grad_norm_ES=life.signals.grad_norm_ES.copy(),
            grad_health_ES=gradient_health(life.signals.grad_norm_ES),
            shadow_gap_ES=gap_ES.astype(np.float32),
            channels_S=self._channels_S.copy(),
            depth_S=self._depth_S.copy(),
            resolution_S=self._resolution_S.copy(),
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """What a step measured on `val_control` and in training."""

    train_loss_E: Doubles
    val_loss_E: Doubles
    val_accuracy_E: Doubles
    tracked: TrackedSignals
    """Histories, slopes, plateaus."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How members stand with the last action and with the governor."""

    last_action: ActionSpec
    last_outcome: ActionOutcome
    strikes_E: Ints
    rollbacks_E: Ints
    steps_since_snapshot_E: Ints


def gradient_health(norm_ES: Floats) -> Floats:
    """0 dead or not finite .. 1 healthy; NaN where nothing was measured.

    >>> norms = np.array([[0.0, 1e-7, 1e-4, 3.0, np.inf, np.nan]], dtype=np.float32)
    >>> gradient_health(norms).round(2).tolist()
    [[0.0, 0.5, 1.0, 1.0, 0.0, nan]]
    """
    alive_ES = np.isfinite(norm_ES) & (norm_ES > DEAD_GRADIENT)
    floor_ES = np.where(alive_ES, norm_ES, DEAD_GRADIENT)
    decades = np.log10(HEALTHY_GRADIENT / DEAD_GRADIENT)
    health_ES = np.clip(np.log10(floor_ES / DEAD_GRADIENT) / decades, 0.0, 1.0)
    return np.where(np.isnan(norm_ES), np.nan, health_ES).astype(np.float32)


def with_slots(signals: TrainingSignals, population: Population) -> TrainingSignals:
    """The same measurements, with the slots as they stand now."""
    slots = population.slot_reports()
    return replace(signals, slots=slots, **_sizes(population, slots))


def _sizes(population: Population, slots: SlotReports) -> dict[str, Any]:
    """What seeds that would be exported now add to the host, and how many more may grow."""
    probe = population.probe
    assert probe is not None  # `Observer` refuses a population without one
    params_E = (
        added(slots.alpha_ES, slots.params_ES) / population.network.host.parameters_per_member
    )
    macs_E = added(slots.alpha_ES, slots.macs_ES) / probe.host_macs
    return {
        "params_over_host_E": params_E.astype(np.float32),
        "macs_over_host_E": macs_E.astype(np.float32),
        "params_over_budget_E": np.zeros(population.members, dtype=np.float32),
        "macs_over_budget_E": np.zeros(population.members, dtype=np.float32),
        "seed_budget_left_E": population.lifecycle.budget_left(),
    }


def _side(shape: tuple[int, ...]) -> float:
    """Side of one sample's activation: pixels of an image, tokens of a text, 1 for a vector."""
    if len(shape) == 3:
        return float(np.sqrt(shape[1] * shape[2]))
    return float(shape[0]) if len(shape) == 2 else 1.0
