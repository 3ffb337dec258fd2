"""The closed loop plants its plan, prunes what does not pay, stops on flat curves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from call_support import differences, warm_calls
from esper.kasmina import Population
from esper.kasmina.lifecycle.caps import Caps
from esper.leyline import LifecycleOp, ScoreConstants, SeedStage
from esper.leyline.context import Candidates
from esper.leyline.signals import NO_BLUEPRINT, TrainingSignals
from esper.tolaria.plan_phase import plan_masks
from esper_lab.audit.closed_loop import ClosedLoop, ClosedLoopConfig
from heuristic_support import worth
from support import CNN_BLUEPRINTS, make_population, refused
from tamiyo_support import Drive, fixed_context, masks_of, observe

PRUNE, STOP, WAIT = LifecycleOp.PRUNE, LifecycleOp.STOP, LifecycleOp.WAIT
NORM, LIGHT, HEAVY, ATTENTION = range(4)
C_P = 0.1
LENGTH = 40
SIZES = {"params": (10, 50, 400, 200), "macs": (20, 500, 4000, 2000), "cost": (0.1, 0.5, 4.0, 2.0)}
"""Of the blueprints, in every slot; the host has 100 parameters and 1000 MACs."""


class Doubling(ClosedLoop):
    """Sees seeds with as many parameters as the host has: the price of the only one is C_P."""

    def act(self, obs, masks, policy_state):
        held_ES = obs.slots.blueprint_ES != NO_BLUEPRINT
        slots = replace(obs.slots, params_ES=np.where(held_ES, 100, 0))
        over_E = np.where(slots.alpha_ES > 0, slots.params_ES, 0).sum(axis=1) / 100
        context = replace(obs.context, constants=ScoreConstants(C_P, 0.0, 0.0))
        over_E = over_E.astype(np.float32)
        seen = replace(obs, slots=slots, params_over_host_E=over_E, context=context)
        return super().act(seen, masks, policy_state)


def config(**changes: Any) -> ClosedLoopConfig:
    return replace(ClosedLoopConfig(prune_from=0.25, stops=False, prune_speed=0), **changes)


def candidates_of(population: Population, cost_E: np.ndarray) -> Candidates:
    members, slots = population.members, len(population.slots)
    shape = (members, slots, len(CNN_BLUEPRINTS))
    cost_K = np.array(SIZES["cost"])
    share_ESK = np.broadcast_to(cost_K / (cost_E[:, None, None] + cost_K), shape).astype(np.float32)
    sizes = (np.tile(SIZES[name], (slots, 1)) for name in ("params", "macs"))
    zeros_SK = np.zeros(shape[1:], dtype=np.float32)
    fits_ESK = population.lifecycle.fits_ESK()
    return Candidates(*sizes, zeros_SK, zeros_SK > 0, fits_ESK, 0 * share_ESK, share_ESK)


def planned(policy: ClosedLoop, population: Population, **context: Any) -> Any:
    """Let a policy plan all slots; returns its state."""
    life = population.lifecycle
    state = policy.initial_state(population.members)
    life.action_space, life.planning = "full", True
    for slot in range(len(population.slots)):
        held_ES = life.blueprint_ES
        sizes = {name: (held_ES != NO_BLUEPRINT) * np.array(SIZES[name])[held_ES] for name in SIZES}
        facts = {
            "plans": True,
            "reserved_params_E": 100.0 + sizes["params"].sum(axis=1),
            "reserved_macs_E": 1000.0 + sizes["macs"].sum(axis=1),
            "cost_E": 1.0 + sizes["cost"].sum(axis=1),
        }
        seen = fixed_context(population.members, **(facts | context))
        obs = observe(
            population,
            0,
            plan_slot=slot,
            context=seen,
            candidates=candidates_of(population, seen.cost_E),
        )
        masks = plan_masks(life.legal_ops(), life.fits_ESK(), slot, {})
        decision, state = policy.act(obs, masks, state)
        for member in np.flatnonzero(decision.actions.op == LifecycleOp.PLANT):
            kind = int(decision.actions.blueprint[member])
            population.plant(int(member), slot, kind, prunable=True)
    life.planning = False
    return state


def wanting(*kinds: int, members: int = 1) -> np.ndarray:
    return np.tile(np.array(kinds, dtype=np.int64), (members, 1))


def driven(policy: ClosedLoop, population: Population, contribution: float) -> Drive:
    state = planned(policy, population)
    drive = Drive(policy, population, worth(contribution))
    drive.state = state
    return drive


# ---- plan --------------------------------------------------------------------------------------


def test_the_plan_is_planted_from_an_array_or_a_function():
    wanted = np.array([[NORM, NO_BLUEPRINT, HEAVY], [NO_BLUEPRINT] * 3])
    asked: list[int] = []

    def plan(obs: TrainingSignals) -> np.ndarray:
        asked.append(obs.plan_slot)
        return wanted

    for given in (wanted, plan):
        population = make_population(2)
        planned(ClosedLoop(given), population)
        assert population.lifecycle.blueprint_ES.tolist() == wanted.tolist()
    assert asked == [0], "once an episode"


def test_fill_takes_the_largest_seeds_that_caps_and_budget_allow():
    population = make_population(4)
    none = np.inf
    params_cap_E = np.array([none, 100.0 + 3 * 50, 100.0 + 10, none])
    macs_cap_E = np.array([none, none, none, 1000.0 + 500])
    planned(
        ClosedLoop("fill"),
        population,
        params_cap_E=params_cap_E,
        macs_cap_E=macs_cap_E,
        budget=99.0,
    )
    assert population.lifecycle.blueprint_ES.tolist() == [
        [HEAVY] * 3,
        [LIGHT] * 3,
        [NO_BLUEPRINT, NO_BLUEPRINT, NORM],
        [NORM, NORM, NORM],
    ], "every slot has an equal share; what is left goes to the next"
    small = make_population(1)
    planned(ClosedLoop("fill"), small, budget=3.0)
    assert small.lifecycle.blueprint_ES.tolist() == [[LIGHT] * 3], "it trains on a host run"


def test_what_exceeds_a_cap_is_not_planted():
    population = make_population(2)
    costs = population.seed_sizes
    size = costs.params(0, LIGHT)
    table = costs.table(population.probe or probed(population))
    cap_E = np.array([table.host_params + size, np.inf])
    population.lifecycle.caps = Caps(table, cap_E, np.full(2, np.inf), gates_allowed=False)
    planned(ClosedLoop(wanting(LIGHT, LIGHT, LIGHT, members=2)), population)
    assert (population.lifecycle.blueprint_ES >= 0).sum(axis=1).tolist() == [1, 3]


def probed(population: Population) -> Any:
    import torch

    population.forward(torch.zeros(population.members, 2, 1, 8, 8))
    return population.probe


@pytest.mark.parametrize("plan", [np.zeros((2, 3), dtype=np.int64), np.full((1, 3), 4), np.ones(3)])
def test_a_plan_of_the_wrong_shape_or_kind_is_one_line(plan):
    population = make_population(1)
    assert "blueprint indices -1 to 3" in refused(lambda: planned(ClosedLoop(plan), population))


def test_wrong_settings_are_one_line():
    assert "fil" in refused(lambda: ClosedLoop("fil"))  # type: ignore[arg-type]
    for name, value in (("patience", 0), ("window", 0), ("prune_from", 1.5), ("prune_speed", 4)):
        assert name in refused(lambda n=name, v=value: ClosedLoopConfig(**{n: v}))


# ---- prune -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("contribution", "price", "pruned"),
    [(0.05, 0.4, False), (0.05, 0.6, True), (0.15, 1.0, False), (0.15, 2.0, True), (-0.1, 0, True)],
)
def test_a_seed_is_pruned_if_it_contributes_less_than_its_rent(contribution, price, pruned):
    population = make_population(1)
    policy = Doubling(wanting(NO_BLUEPRINT, NORM, NO_BLUEPRINT), config(patience=2))
    drive = driven(policy, population, contribution)
    drive.run(20, context=fixed_context(1, price_E=np.array([price])), episode_length=LENGTH)
    assert drive.did(PRUNE) == ([(LENGTH // 4 - 1, 1)] if pruned else [])


def test_patience_is_over_measurements_in_a_row():
    population = make_population(1)
    policy = Doubling(wanting(NORM, NO_BLUEPRINT, NO_BLUEPRINT), config(patience=3, prune_from=0.0))
    drive = driven(policy, population, 0.05)
    for step in range(12):
        drive.signals = worth(0.15 if step % 3 == 2 else 0.05)
        drive.run(1, episode_length=LENGTH)
    assert drive.did(PRUNE) == [], "it earns its rent now and then"
    old = np.full((1, 3), 4)
    drive.signals = worth(0.05)
    drive.run(6, episode_length=LENGTH, contribution_age_ES=old)
    assert drive.did(PRUNE) == [], "the same measurement counts once"
    drive.run(3, episode_length=LENGTH)
    assert drive.did(PRUNE) == [(20, 0)]


def test_one_seed_goes_at_a_time_the_least_useful_first():
    population = make_population(1)
    policy = Doubling(wanting(NORM, NORM, NORM), config(patience=2, prune_from=0.0))
    drive = driven(policy, population, 0.0)

    def signals(population: Population) -> Any:
        made = worth(0.0)(population)
        return replace(made, contribution_ES=np.array([[0.02, -0.05, 0.5]], dtype=np.float32))

    drive.signals = signals
    drive.run(12, episode_length=LENGTH)
    assert drive.did(PRUNE) == [(1, 1), (3, 0)], "the others are measured again without it"
    assert population.lifecycle.stage_ES[0, 2] == SeedStage.PLANTED, "what pays is kept"


def test_above_a_cap_the_least_useful_seed_goes_at_once():
    population = make_population(2)
    policy = Doubling(wanting(NORM, NORM, NORM, members=2), config())
    drive = driven(policy, population, 0.5)
    context = fixed_context(
        2, params_cap_E=np.array([100.0, 500.0]), reserved_params_E=np.array([130.0, 130.0])
    )
    drive.run(1, context=context, episode_length=LENGTH)
    assert (drive.did(PRUNE, 0), drive.did(PRUNE, 1)) == ([(0, 0)], [])


# ---- STOP --------------------------------------------------------------------------------------


def ends(accuracy: list[float], loss: list[float] | None = None, **changes: Any) -> int:
    """Steps trained with these curves; as many as there are without a STOP."""
    population = make_population(1)
    life = population.lifecycle
    life.action_space = "full"
    life.trained_E[:] = True
    settings = {"stop_from": 0.0, "window": 2} | changes.pop("config", {})
    policy = ClosedLoop(wanting(*[NO_BLUEPRINT] * 3), ClosedLoopConfig(**settings))
    context = fixed_context(1, ScoreConstants(c_f=0.01), budget=4.0, **changes)
    state = policy.initial_state(1)
    for step, value in enumerate(accuracy):
        facts = {"val_accuracy_E": np.array([value], dtype=np.float32), "context": context}
        facts["val_loss_E"] = np.array([loss[step] if loss else 1.0], dtype=np.float32)
        obs = observe(population, step, episode_length=len(accuracy), **facts)
        decision, state = policy.act(obs, masks_of(population), state)
        if decision.actions.op[0] == STOP:
            return step + 1
        assert decision.actions.op[0] == WAIT
    return len(accuracy)


def test_training_stops_where_the_curve_is_flat():
    flat = [0.1, 0.3, 0.5, 0.6, *[0.65] * 16]
    rising = np.linspace(0.1, 0.9, 20).tolist()
    assert ends(flat) == 8, "when four flat steps were seen"
    assert ends(flat, config={"window": 3}) == 10, "six"
    assert ends(rising) == 20
    assert ends(flat, config={"stops": False}) == 20
    assert ends(flat, config={"stop_from": 0.75}) == 15
    slow = np.linspace(0.5, 0.51, 20).tolist()
    assert ends(slow, price_E=np.array([4.0])) == 4, "0.001 in two steps, at 0.016"
    assert ends(slow, price_E=np.array([0.1])) == 20, "at 0.0004"


def test_training_does_not_stop_in_a_dip():
    dipping = [0.6, 0.6, 0.6, 0.5, 0.6, *[0.0] * 5]
    assert ends(dipping) == 5, "when it is no longer below the mean of the window"


def test_training_does_not_stop_while_the_loss_falls():
    flat, falling = [0.6] * 12, np.linspace(2.0, 1.0, 12).tolist()
    assert ends(flat) == 4
    assert ends(flat, falling) == 12
    assert ends(flat, [*falling[:6], *[1.5] * 6]) == 10, "when four flat steps were seen"


def test_a_rollback_forgets_what_was_measured():
    policy = ClosedLoop("fill")
    state = policy.initial_state(2)
    state = replace(state, accuracy_EW=np.ones_like(state.accuracy_EW))
    after = policy.reset_state(state, np.array([True, False]))
    assert np.isnan(after.accuracy_EW[0]).all()
    assert (after.accuracy_EW[1] == 1).all()


def test_deciding_for_more_members_takes_not_one_python_call_more():
    def step(members: int) -> Callable[[], object]:
        population = make_population(members)
        policy = Doubling(wanting(NORM, LIGHT, NORM, members=members), config(stops=True))
        drive = driven(policy, population, 0.0).run(3)
        obs = observe(population, 200)
        return lambda: policy.act(obs, masks_of(population), drive.state)

    few = warm_calls(step(2))
    assert few
    assert not differences(few, warm_calls(step(20)))
