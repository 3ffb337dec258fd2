"""Policies and engines for tests of contexts: given plans, given actions at given steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from engine_support import small_engine, small_task
from esper.leyline import (
    PLANNED,
    ActionSpec,
    ContextSpec,
    LifecycleOp,
    PolicyDecision,
    Range,
    RewardComponentsTelemetry,
)
from esper.leyline.records import PlanRecord
from esper.tolaria.engine import VectorizedEngine

EMPTY = -1


@dataclass
class Planner:
    """Plants a given topology `[E, S]` and acts at given steps: step -> (op, member, slot)."""

    topology_ES: np.ndarray
    actions: Mapping[int, Sequence[tuple[LifecycleOp, int, int]]] = field(default_factory=dict)
    seen: list[Any] = field(default_factory=list)

    def initial_state(self, members: int) -> None:
        return None

    def reset_state(self, policy_state: None, reset_E: np.ndarray) -> None:
        return None

    def act(self, obs: Any, masks: Any, policy_state: None) -> tuple[PolicyDecision, None]:
        self.seen.append((obs, masks))
        made = ActionSpec.wait(len(masks.op_EO))
        if obs.planning:
            kind_E = self.topology_ES[:, obs.plan_slot]
            op_E = np.where(kind_E == EMPTY, LifecycleOp.WAIT, LifecycleOp.PLANT)
            made = replace(
                made,
                op=op_E.astype(np.int64),
                slot=np.full(len(op_E), obs.plan_slot),
                blueprint=np.maximum(kind_E, 0),
            )
        else:
            for op, member, slot in self.actions.get(obs.step, ()):
                made.op[member], made.slot[member] = op, slot
        return PolicyDecision.deterministic(made), None

    def store(self, inputs: Any, terminal_E: np.ndarray) -> RewardComponentsTelemetry:
        change_E = np.nan_to_num(inputs.score_E - inputs.score_before_E)
        return RewardComponentsTelemetry.of({"score": change_E}, inputs.members)

    def update(self, rollout: Any) -> None:
        return None


@dataclass
class PlanDiary:
    """A listener that keeps the records of plan phase and steps."""

    plans: list[PlanRecord] = field(default_factory=list)
    records: list[Any] = field(default_factory=list)
    slot_events: list[Any] = field(default_factory=list)

    def on_round_start(self, round_index: int, members: int) -> None: ...

    def on_slot_events(self, round_index: int, step: int, payload: Any) -> None:
        self.slot_events.append(payload)

    def on_plan(self, record: PlanRecord) -> None:
        self.plans.append(record)

    def on_step(self, record: Any) -> None:
        self.records.append(record)

    def on_round_end(self, rollout: Any) -> None: ...


def planned_engine(
    context: ContextSpec = PLANNED, members: int = 3, **config: Any
) -> VectorizedEngine:
    """A small engine with a plan phase and a compute clock, exact."""
    task = {
        name: config.pop(name) for name in ("episode_length", "batches_per_step") if name in config
    }
    plain = small_task(**({"episode_length": 5} | task))
    # Rates that differ, so that a seed trained at the wrong one is noticed.
    optim = replace(plain.optim, seed_lr=plain.optim.host_lr / 4)
    spec = replace(plain, context=context, optim=optim)
    return small_engine(spec, members=members, profile="exact", **config)


def fixed_budget(runs: float, **changes: Any) -> ContextSpec:
    """`PLANNED` with another budget."""
    return replace(PLANNED, budget=Range(runs, runs), **changes)


def member_tensors(engine: VectorizedEngine, member: int) -> dict[str, torch.Tensor]:
    """All values of one member, by name: host and seeds it holds, with moments."""
    population = engine.env.model
    life, out = population.lifecycle, {"host": population.network.host.flat_EP[member].detach()}
    for name, value in population.trainer.host_optimizer.state["host"].items():
        out[f"host {name}"] = value[member]
    for (s, k), bank in population.network.banks.items():
        if life.blueprint_ES[member, s] == k:
            out[f"seed {s} {k}"] = bank.flat_EP[member].detach()
            for name, value in population.trainer.seed_optimizer.state[s, k].items():
                out[f"seed {s} {k} {name}"] = value[member]
    return out
