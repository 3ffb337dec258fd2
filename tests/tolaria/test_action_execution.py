"""Actions: carried out exactly where the lifecycle allows them, and the reason named elsewhere."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_support import Diary, random_policy, small_engine, small_task
from esper.kasmina import LifecycleConfig
from esper.kasmina.lifecycle.gates import GateConfig
from esper.leyline import LifecycleOp, SeedStage
from esper.leyline.actions import (
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    CLASSIC_OPS,
    HEAD_CHOICES,
    NO_SLOT,
    TEMPOS,
    ActionHead,
    ActionSpec,
    VetoReason,
)
from esper.tamiyo.masks import build_masks
from esper.tolaria.action_execution import action_vetoes, execute_actions
from support import bring_to, good_signals, make_population, refused


@cache
def some_signals():
    """An observation of three members and three slots, as `execute_actions` needs one."""
    diary = Diary()
    small_engine(small_task(episode_length=2), diary, members=3).run_rollout(random_policy())
    return diary.records[0].signals


def spec_of(heads: np.ndarray) -> ActionSpec:
    return ActionSpec(*heads.T.astype(np.int64))


def action(member: int, op: LifecycleOp, slot: int = 0, **heads: int) -> ActionSpec:
    """One member acts, the others wait."""
    actions = ActionSpec.wait(3)
    for name, value in {"op": op, "slot": slot, **heads}.items():
        getattr(actions, name)[member] = value
    return actions


def calm() -> np.ndarray:
    return np.zeros(3, dtype=bool)


def population_for_actions(**life):
    """Three members that have seen an input, so that MACs are known."""
    gates = GateConfig(min_training_steps=1)
    population = make_population(members=3, lifecycle=LifecycleConfig(gates=gates, **life))
    population.forward(torch.zeros(1, 2, 1, 8, 8))
    return population


def run(population, actions, rolled_back=None):
    back = calm() if rolled_back is None else rolled_back
    return execute_actions(population, actions, some_signals(), back)


HEADS = [
    len(HEAD_CHOICES[head]) if head in HEAD_CHOICES else (3 if head is ActionHead.SLOT else 4)
    for head in ActionHead
]


@given(st.data())
@settings(max_examples=25)
def test_carried_out_exactly_where_legal(data):
    """Random actions over random lives: no veto where the lifecycle says legal, a veto elsewhere,
    and what is carried out is never refused by the population."""
    population = population_for_actions(
        seed_budget=data.draw(st.sampled_from([None, 1, 2])),
        min_prune_age=data.draw(st.integers(0, 3)),
    )
    life = population.lifecycle
    for _ in range(data.draw(st.integers(1, 14))):
        heads = np.array([[data.draw(st.integers(0, n - 1)) for n in HEADS] for _ in range(3)])
        actions = spec_of(heads)
        e = np.arange(3)
        legal = life.legal_ops()[e, actions.slot, actions.op]
        misfit = (actions.op == LifecycleOp.GERMINATE) & ~life.fits_SK[
            actions.slot, actions.blueprint
        ]
        births = life.births_ES.copy()
        outcome = run(population, actions).outcome
        assert np.array_equal(outcome.executed, legal & ~misfit)
        germinated = outcome.executed & (actions.op == LifecycleOp.GERMINATE)
        assert (life.births_ES.sum(axis=1) - births.sum(axis=1) == germinated).all()
        population.begin_step()
        population.end_step(good_signals(population))


def put(population, member: int, slot: int, stage: SeedStage) -> None:
    bring_to(population, stage, [member], population.slots[slot])


VETOES = [
    (SeedStage.TRAINING, LifecycleOp.GERMINATE, {}, VetoReason.SLOT_NOT_DORMANT),
    (SeedStage.DORMANT, LifecycleOp.ADVANCE, {}, VetoReason.WRONG_STAGE),
    (SeedStage.HOLDING, LifecycleOp.ADVANCE, {}, VetoReason.WRONG_STAGE),
    (SeedStage.TRAINING, LifecycleOp.FOSSILIZE, {}, VetoReason.WRONG_STAGE),
    (SeedStage.FOSSILIZED, LifecycleOp.PRUNE, {}, VetoReason.WRONG_STAGE),
    (SeedStage.TRAINING, LifecycleOp.SET_ALPHA_TARGET, {}, VetoReason.WRONG_STAGE),
    (SeedStage.BLENDING, LifecycleOp.PRUNE, {}, VetoReason.RAMPING),
    (SeedStage.BLENDING, LifecycleOp.ADVANCE, {}, VetoReason.GATE_CLOSED),
    (SeedStage.GERMINATED, LifecycleOp.PRUNE, {}, VetoReason.TOO_YOUNG),
    (SeedStage.GERMINATED, LifecycleOp.WAIT, {}, VetoReason.NONE),
]


@pytest.mark.parametrize(("stage", "op", "life", "reason"), VETOES)
def test_the_reason_is_named(stage, op, life, reason):
    population = population_for_actions(**life)
    if stage is SeedStage.GERMINATED:
        population.germinate(1, 0, "conv_light")
    elif stage is not SeedStage.DORMANT:
        put(population, 1, 0, stage)
    assert population.lifecycle.stage_ES[1, 0] == stage
    before = population.slot_reports()
    outcome = run(population, action(1, op)).outcome
    assert [VetoReason(v) for v in outcome.veto] == [VetoReason.NONE, reason, VetoReason.NONE]
    if reason is not VetoReason.NONE:
        assert population.slot_reports() == before, "a vetoed action changes nothing"
        assert (outcome.target_slot[1], outcome.stage_before[1]) == (0, stage)
        assert outcome.stage_after[1] == stage


def test_budget_and_misfit_are_named():
    population = population_for_actions(seed_budget=0)
    germinate = action(2, LifecycleOp.GERMINATE, 1, blueprint=1)
    assert action_vetoes(population, germinate, calm())[2] == VetoReason.BUDGET_SPENT
    population = population_for_actions()
    population.lifecycle.fits_SK[1, 1] = False
    assert action_vetoes(population, germinate, calm())[2] == VetoReason.BLUEPRINT_MISFIT


def test_a_closed_gate_keeps_a_seed_on_probation():
    population = population_for_actions()
    put(population, 0, 2, SeedStage.HOLDING)
    poor = good_signals(population)
    poor.contribution_ES[:] = -0.1
    population.begin_step()
    population.end_step(poor)
    outcome = run(population, action(0, LifecycleOp.FOSSILIZE, 2)).outcome
    assert outcome.veto[0] == VetoReason.GATE_CLOSED


def test_a_rolled_back_member_is_left_alone():
    population = population_for_actions()
    back = np.array([True, False, False])
    actions = action(0, LifecycleOp.GERMINATE, 1, blueprint=1)
    actions.op[1] = LifecycleOp.GERMINATE
    outcome = run(population, actions, back).outcome
    assert [VetoReason(v).name for v in outcome.veto] == ["GOVERNOR", "NONE", "NONE"]
    assert population.lifecycle.stage_ES[0, 1] == SeedStage.DORMANT
    assert outcome.target_slot.tolist() == [1, 0, NO_SLOT]
    waiting = run(population, ActionSpec.wait(3), back).outcome
    assert waiting.executed.all(), "waiting is always possible"


def test_every_head_reaches_the_population():
    """Choices are indices; what arrives is what they stand for."""
    population = population_for_actions()
    run(population, action(1, LifecycleOp.GERMINATE, 2, blueprint=2, style=1, tempo=2,
                           alpha_target=1, alpha_curve=3))  # fmt: skip
    life = population.lifecycle
    assert life.blueprint_ES[1, 2] == 2
    assert life.style_ES[1, 2] == 1
    assert life.curve_ES[1, 2] == 3
    assert life.tempo_ES[1, 2] == TEMPOS[2]
    assert life.target_ES[1, 2] == np.float32(ALPHA_TARGETS[1])
    put(population, 0, 0, SeedStage.HOLDING)
    run(population, action(0, LifecycleOp.SET_ALPHA_TARGET, 0, alpha_target=0, alpha_speed=2,
                           alpha_curve=1))  # fmt: skip
    assert life.stage_ES[0, 0] == SeedStage.BLENDING
    assert (life.target_ES[0, 0], life.ramp_total_ES[0, 0]) == (ALPHA_TARGETS[0], ALPHA_SPEEDS[2])
    assert life.curve_ES[0, 0] == 1
    put(population, 2, 1, SeedStage.HOLDING)
    run(population, action(2, LifecycleOp.PRUNE, 1, alpha_speed=3, alpha_curve=2))
    assert life.pruning_ES[2, 1]
    assert life.ramp_total_ES[2, 1] == ALPHA_SPEEDS[3]
    assert life.curve_ES[2, 1] == 2


def test_the_result_shows_what_stands_and_what_is_legal_afterwards():
    population = population_for_actions()
    result = run(population, action(1, LifecycleOp.GERMINATE, 0, blueprint=1))
    assert result.post_action_slot_reports.stage_ES[1, 0] == SeedStage.GERMINATED
    assert result.post_action_signals.seed_budget_left_E.tolist() == [3, 2, 3]
    mask = result.post_action_masks.slot_EOS[:, LifecycleOp.GERMINATE]
    assert mask.tolist() == [[True] * 3, [False, True, True], [True] * 3]


def test_the_result_stays_what_it_was_when_it_is_read_later():
    """Signals and masks are computed when they are read, of the state after the actions."""
    population = population_for_actions()
    life = population.lifecycle
    result = run(population, action(1, LifecycleOp.GERMINATE, 0, blueprint=1))
    slots, masks = population.slot_reports(), build_masks(life.legal_ops(), life.fits_ESK())
    for member in (0, 2):
        population.begin_step()
        population.end_step(good_signals(population))
        run(population, action(member, LifecycleOp.GERMINATE, 1, blueprint=1))
    assert population.slot_reports() != slots
    assert result.sizes() == {"E": 3, "S": 3}
    assert result.post_action_slot_reports == slots
    assert result.post_action_masks == masks
    assert result.post_action_signals.seed_budget_left_E.tolist() == [3, 2, 3]
    assert replace(result) == result == pickle.loads(pickle.dumps(result))
    with pytest.raises(AttributeError, match="no attribute 'post_action'"):
        _ = result.post_action


def test_wrong_sizes_are_refused():
    population = population_for_actions()
    assert "2 actions for 3 members" in refused(lambda: run(population, ActionSpec.wait(2)))
    wild = action(1, LifecycleOp.GERMINATE, 0, blueprint=40)
    assert "member 1: blueprint 40, but there are" in refused(lambda: run(population, wild))


def test_an_operation_is_refused_with_the_reason_that_vetoes_it():
    """Random operations over random lives: done where nothing speaks against it, else refused by
    name; every reason of the lifecycle occurs."""
    population = population_for_actions(seed_budget=1, min_prune_age=8)
    life, rng, seen = population.lifecycle, np.random.default_rng(5), set()
    operations = [op for op in CLASSIC_OPS if op is not LifecycleOp.WAIT]
    extra = {LifecycleOp.GERMINATE: ("conv_light",), LifecycleOp.SET_ALPHA_TARGET: (0.5,)}
    for turn in range(240):
        if turn % 30 == 0:
            life.reset()  # what is permanent leaves nothing to ask for
        e, s = (int(rng.integers(n)) for n in life.stage_ES.shape)
        op = operations[rng.integers(len(operations))]
        reason = VetoReason(life.veto(op)[e, s])
        seen.add(reason)
        before = life.version

        def ask(op=op, e=e, s=s) -> None:
            getattr(population, op.name.lower())([e], s, *extra.get(op, ()))

        if reason is VetoReason.NONE:
            ask()
        else:
            assert reason.name in refused(ask)
            assert life.version == before
        population.begin_step()
        population.end_step(good_signals(population))
    assert seen == {VetoReason.NONE, VetoReason.SLOT_NOT_DORMANT, VetoReason.BUDGET_SPENT,
                    VetoReason.WRONG_STAGE, VetoReason.RAMPING, VetoReason.TOO_YOUNG,
                    VetoReason.GATE_CLOSED}  # fmt: skip
