"""Cooldown, ramps, prune-by-ramp and retarget under the real loop: exact step counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esper.kasmina import LifecycleConfig
from esper.kasmina.lifecycle.alpha import ramp_alpha
from esper.kasmina.lifecycle.gates import GateConfig
from esper.leyline import AlphaCurve, BlendStyle, GateSignals, LifecycleOp, SeedStage
from esper.leyline.actions import ALPHA_SPEEDS, TEMPOS, AlphaMode
from support import batch, bring_to, good_signals, make_population, pass_step

S1 = 1  # slot r0c1


def stage(population, member=0, slot=S1) -> SeedStage:
    return SeedStage(population.lifecycle.stage_ES[member, slot])


def alpha(population, member=0, slot=S1) -> float:
    return float(population.lifecycle.alpha_ES[member, slot])


def ramped(curve: AlphaCurve, done: int | np.ndarray, total: int) -> np.ndarray:
    """Alpha after some steps of a ramp from 0 to 1."""
    steps = np.atleast_1d(done)
    ends = np.zeros(steps.shape, np.float32), np.ones(steps.shape, np.float32)
    curves = np.full(steps.shape, curve, dtype=np.int8)
    return ramp_alpha(*ends, curves, steps, np.full(steps.shape, total))


@pytest.mark.parametrize("curve", list(AlphaCurve))
def test_curves_are_monotone_and_exact_at_both_ends(curve):
    values = ramped(curve, np.arange(101), 100)
    assert values[0] == 0.0
    assert values[-1] == 1.0
    assert (np.diff(values) >= 0).all()
    np.testing.assert_allclose(values[50], 0.5, atol=1e-6)
    np.testing.assert_allclose(values + values[::-1], 1.0, atol=1e-6)


def test_curves_have_their_closed_form():
    np.testing.assert_allclose(ramped(AlphaCurve.LINEAR, 1, 4), 0.25)
    np.testing.assert_allclose(
        ramped(AlphaCurve.COSINE, 1, 4), (1 - np.cos(np.pi / 4)) / 2, rtol=1e-6
    )
    for curve, k in (
        (AlphaCurve.SIGMOID_6, 6),
        (AlphaCurve.SIGMOID_12, 12),
        (AlphaCurve.SIGMOID_24, 24),
    ):

        def sigmoid(z: float) -> float:
            return 1 / (1 + np.exp(-z))

        low, high = sigmoid(-k / 2), sigmoid(k / 2)
        expected = (sigmoid(k * (0.25 - 0.5)) - low) / (high - low)
        np.testing.assert_allclose(ramped(curve, 1, 4), expected, rtol=1e-5)


def test_a_seed_incubates_in_the_step_after_its_germination():
    population = make_population()
    population.germinate([0], "r0c1", "conv_light")
    assert stage(population) is SeedStage.GERMINATED
    population.begin_step()
    assert stage(population) is SeedStage.TRAINING
    assert stage(population, member=1) is SeedStage.DORMANT


def test_without_auto_forward_every_stage_waits_for_advance():
    config = LifecycleConfig(
        gates=GateConfig(min_training_steps=2), auto_forward_g1=False, auto_forward_g3=False
    )
    population = make_population(lifecycle=config)
    population.germinate([0], "r0c1", "conv_light")
    assert not population.lifecycle.legal_ops()[0, S1, LifecycleOp.ADVANCE], "G1: the next step"
    pass_step(population)
    assert stage(population) is SeedStage.GERMINATED
    population.advance([0], "r0c1")
    for _ in range(2):
        assert not population.lifecycle.legal_ops()[0, S1, LifecycleOp.ADVANCE], "G2: too early"
        pass_step(population)
    population.advance([0], "r0c1")
    for _ in range(3):
        assert not population.lifecycle.legal_ops()[0, S1, LifecycleOp.ADVANCE], "G3: alpha below 1"
        pass_step(population)
    assert stage(population) is SeedStage.BLENDING
    population.advance([0], "r0c1")
    assert stage(population) is SeedStage.HOLDING


def test_auto_forward_needs_no_controller():
    config = LifecycleConfig(gates=GateConfig(min_training_steps=2), auto_forward_g2=True)
    population = make_population(lifecycle=config)
    population.germinate([0], "r0c1", "conv_light", tempo=3)
    seen = []
    for _ in range(6):
        pass_step(population)
        seen.append(stage(population).name)
    assert seen == ["TRAINING", "BLENDING", "BLENDING", "BLENDING", "HOLDING", "HOLDING"]


@pytest.mark.parametrize("curve", list(AlphaCurve))
@pytest.mark.parametrize("tempo", TEMPOS)
def test_first_blend_takes_its_tempo_and_is_monotone(tempo, curve):
    population = make_population()
    bring_to(population, SeedStage.BLENDING, [0], "r0c1", tempo=tempo, curve=curve)
    seen = [alpha(population)]
    assert seen == [0.0]
    for done in range(1, tempo + 1):
        population.begin_step()
        seen.append(alpha(population))
        np.testing.assert_allclose(seen[-1], ramped(curve, done, tempo)[0], rtol=1e-6)
        assert stage(population) is SeedStage.BLENDING
        population.end_step(good_signals(population))
    assert seen[-1] == 1.0
    assert all(a < 1.0 for a in seen[:-1])
    assert seen == sorted(seen)
    assert stage(population) is SeedStage.HOLDING


@pytest.mark.parametrize("speed", ALPHA_SPEEDS)
@pytest.mark.parametrize("target", [0.5, 0.7])
def test_retarget_below_one_leaves_holding_and_comes_back(target, speed):
    population = make_population()
    bring_to(population, SeedStage.HOLDING, [0], "r0c1")
    population.set_alpha_target([0], "r0c1", target, speed)
    assert stage(population) is SeedStage.BLENDING
    seen = [alpha(population)]
    for _ in range(speed):
        assert not population.lifecycle.legal_ops()[0, S1, LifecycleOp.SET_ALPHA_TARGET]
        pass_step(population)
        seen.append(alpha(population))
    assert seen[-1] == np.float32(target)
    assert seen == sorted(seen, reverse=True)
    assert population.lifecycle.mode_ES[0, S1] == AlphaMode.HOLD
    pass_step(population)
    assert alpha(population) == np.float32(target)
    assert stage(population) is SeedStage.BLENDING
    population.set_alpha_target([0], "r0c1", 1.0, speed)
    for _ in range(max(speed, 1)):
        assert stage(population) is SeedStage.BLENDING
        pass_step(population)
    assert stage(population) is SeedStage.HOLDING
    assert alpha(population) == 1.0


@pytest.mark.parametrize("speed", ALPHA_SPEEDS[:3])
@pytest.mark.parametrize(
    ("start", "executor"), [(SeedStage.BLENDING, "vmap"), (SeedStage.HOLDING, "loop")]
)
def test_prune_by_ramp_freezes_the_seed_then_removes_it(start, speed, executor):
    population = make_population(executor=executor)
    target = 0.5 if start is SeedStage.BLENDING else 1.0
    bring_to(population, start, [0, 2], "r0c1", alpha_target=target, tempo=3)
    for _ in range(3):
        pass_step(population, train=True)
    assert stage(population) is start
    bank = population.network.banks[S1, 1].flat_EP
    frozen = bank.detach().clone()
    population.prune([0], "r0c1", speed=speed, curve=AlphaCurve.COSINE)
    seen = [alpha(population)]
    for step in range(1, speed + 1):
        assert stage(population) is SeedStage.BLENDING, "still part of the member"
        assert not population.lifecycle.legal_ops()[0, S1, LifecycleOp.PRUNE], "already going"
        population.begin_step()
        assert (stage(population) is SeedStage.PRUNED) == (step == speed)
        population.train_batch(*batch(3, seed=step))
        seen.append(alpha(population))
        assert torch.equal(bank.detach()[0], frozen[0]), "frozen while it fades"
        assert not torch.equal(bank.detach()[2], frozen[2]), "its neighbour trains on"
        if step < speed:
            population.end_step(good_signals(population))
    assert alpha(population) == 0.0
    assert seen == sorted(seen, reverse=True)
    assert stage(population) is SeedStage.PRUNED


def test_an_incubating_seed_is_removed_at_once():
    population = make_population()
    bring_to(population, SeedStage.TRAINING, [0], "r0c1")
    pass_step(population)
    population.prune([0], "r0c1", speed=8)
    assert stage(population) is SeedStage.PRUNED


@pytest.mark.parametrize("by", ["prune", "force_remove"])
def test_cooldown_is_one_five_one_steps(by):
    population = make_population()
    bring_to(population, SeedStage.HOLDING, [0], "r0c1")
    pass_step(population)
    if by == "prune":
        population.prune([0], "r0c1", speed=0)
    else:
        population.lifecycle.force_remove(np.ones((3, 3), dtype=np.bool_))
    seen = []
    for left in range(7, 0, -1):
        assert population.lifecycle.cooldown_left()[0, S1] == left
        assert not population.lifecycle.legal_ops()[0, S1, LifecycleOp.GERMINATE]
        seen.append(stage(population).name)
        pass_step(population, train=True)
    assert seen == ["PRUNED"] + ["EMBARGOED"] * 5 + ["RESETTING"]
    assert stage(population) is SeedStage.DORMANT
    assert population.lifecycle.legal_ops()[0, S1, LifecycleOp.GERMINATE]


def test_min_prune_age_is_counted_in_steps():
    config = LifecycleConfig(gates=GateConfig(min_training_steps=1), min_prune_age=3)
    population = make_population(lifecycle=config)
    population.germinate([0], "r0c1", "norm")
    for _ in range(3):
        assert not population.lifecycle.legal_ops()[0, S1, LifecycleOp.PRUNE]
        pass_step(population)
    assert population.lifecycle.legal_ops()[0, S1, LifecycleOp.PRUNE]


def test_seed_budget_counts_permanent_seeds():
    config = LifecycleConfig(gates=GateConfig(min_training_steps=1), seed_budget=2)
    population = make_population(lifecycle=config)
    bring_to(population, SeedStage.FOSSILIZED, [0], "r0c0")
    assert population.lifecycle.budget_left().tolist() == [1, 2, 2]
    population.germinate([0], "r0c1", "norm")
    legal = population.lifecycle.legal_ops()[..., LifecycleOp.GERMINATE]
    assert not legal[0].any()
    assert legal[1:].all()


def with_signal(population, **changes: float) -> GateSignals:
    from dataclasses import replace

    signals = good_signals(population)
    return replace(signals, **{k: np.full_like(getattr(signals, k), v) for k, v in changes.items()})


@pytest.mark.parametrize(
    ("mode", "changes", "opens"),
    [
        ("permissive", {}, True),
        ("permissive", {"grad_norm_ES": np.nan}, False),
        ("permissive", {"grad_norm_ES": np.inf}, False),
        ("permissive", {"grad_norm_ES": 0.0}, False),
        ("permissive", {"shadow_loss_ES": np.nan}, False),
        ("permissive", {"shadow_loss_ES": np.inf, "host_loss_E": np.inf}, False),
        ("permissive", {"shadow_loss_ES": 1.4}, True),
        ("permissive", {"shadow_loss_ES": 1.6}, False),
        ("strict", {"shadow_loss_ES": 1.0}, True),
        ("strict", {"shadow_loss_ES": 1.01}, False),
    ],
)
def test_gate_2(mode, changes, opens):
    config = LifecycleConfig(gates=GateConfig(mode=mode, min_training_steps=1))
    population = make_population(lifecycle=config)
    population.germinate([0], "r0c1", "norm")
    population.begin_step()
    population.end_step(with_signal(population, **changes))
    assert population.lifecycle.legal_ops()[0, S1, LifecycleOp.ADVANCE] == opens


@pytest.mark.parametrize(
    ("mode", "changes", "opens"),
    [
        ("permissive", {}, True),
        ("permissive", {"contribution_ES": np.nan}, False),
        ("permissive", {"contribution_se_ES": np.nan}, False),
        ("permissive", {"contribution_ES": 0.02, "contribution_se_ES": 0.03}, False),
        ("permissive", {"contribution_ES": -0.2}, False),
        ("permissive", {"contribution_ES": 0.004, "contribution_se_ES": 0.001}, True),
        ("strict", {"contribution_ES": 0.004, "contribution_se_ES": 0.001}, False),
        ("strict", {"contribution_ES": 0.006, "contribution_se_ES": 0.001}, True),
    ],
)
def test_gate_5(mode, changes, opens):
    config = LifecycleConfig(gates=GateConfig(mode=mode, min_training_steps=1))
    population = make_population(lifecycle=config)
    bring_to(population, SeedStage.BLENDING, [0], "r0c1", tempo=3)
    population.lifecycle.signals = GateSignals.unmeasured(3, 3)
    for _ in range(3):
        population.begin_step()
        population.end_step(with_signal(population, **changes))
    assert stage(population) is SeedStage.HOLDING
    assert population.lifecycle.legal_ops()[0, S1, LifecycleOp.FOSSILIZE] == opens


def test_a_new_seed_inherits_no_measurement():
    population = make_population()
    bring_to(population, SeedStage.HOLDING, [0], "r0c1")
    pass_step(population)
    assert population.lifecycle.signals.contribution_ES[0, S1] == np.float32(0.2)
    population.prune([0], "r0c1")
    for _ in range(7):
        population.begin_step()
        population.end_step(GateSignals.unmeasured(3, 3))
    population.germinate([0], "r0c1", "norm", style=BlendStyle.GATE)
    assert np.isnan(population.lifecycle.signals.contribution_ES[0, S1])
