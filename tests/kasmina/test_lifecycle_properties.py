"""Random legal actions never break an invariant of the lifecycle; illegal ones change nothing."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.kasmina.lifecycle.gates import GateConfig
from esper.kasmina.lifecycle.lifecycle import Lifecycle, LifecycleConfig
from esper.leyline import AlphaCurve, BlendStyle, GateSignals, LifecycleOp, SeedStage
from esper.leyline.actions import ALPHA_SPEEDS, ALPHA_TARGETS, CLASSIC_OPS, TEMPOS, AlphaMode
from esper.leyline.errors import EsperError
from esper.leyline.signals import NO_BLUEPRINT
from esper.leyline.stages import TRANSITIONS

E, S, K = 3, 2, 3
OCCUPIED = [
    SeedStage.GERMINATED,
    SeedStage.TRAINING,
    SeedStage.BLENDING,
    SeedStage.HOLDING,
    SeedStage.FOSSILIZED,
]
WITHOUT_ALPHA = [
    s for s in SeedStage if s not in (SeedStage.BLENDING, SeedStage.HOLDING, SeedStage.FOSSILIZED)
]

configs = st.builds(
    LifecycleConfig,
    gates=st.builds(
        GateConfig,
        mode=st.sampled_from(["permissive", "strict"]),
        min_training_steps=st.integers(1, 3),
    ),
    auto_forward_g1=st.booleans(),
    auto_forward_g2=st.booleans(),
    auto_forward_g3=st.booleans(),
    min_prune_age=st.integers(0, 3),
    seed_budget=st.none() | st.integers(0, 2),
)


def state(life: Lifecycle) -> dict[str, np.ndarray]:
    return {k: v.copy() for k, v in vars(life).items() if isinstance(v, np.ndarray)}


def random_signals(rng: np.random.Generator) -> GateSignals:
    def values(*shape: int) -> np.ndarray:
        out = rng.uniform(-0.1, 1.5, shape).astype(np.float32)
        out[rng.random(shape) < 0.15] = np.nan
        out[rng.random(shape) < 0.05] = np.inf
        return out

    return GateSignals(values(E), values(E, S), values(E, S), values(E, S), values(E, S) * 0.1)


def act(life: Lifecycle, op: LifecycleOp, e: int, s: int, rng: np.random.Generator) -> None:
    curve = int(rng.choice(list(AlphaCurve)))
    if op is LifecycleOp.GERMINATE:
        style, tempo = int(rng.choice(list(BlendStyle))), int(rng.choice(TEMPOS))
        target = float(rng.choice(ALPHA_TARGETS))
        life.germinate([e], [s], [int(rng.integers(K))], style, tempo, target, curve)
    elif op is LifecycleOp.ADVANCE:
        life.advance([e], [s])
    elif op is LifecycleOp.SET_ALPHA_TARGET:
        speed = int(rng.choice(ALPHA_SPEEDS))
        life.set_alpha_target([e], [s], float(rng.choice(ALPHA_TARGETS)), speed, curve)
    elif op is LifecycleOp.PRUNE:
        life.prune([e], [s], int(rng.choice(ALPHA_SPEEDS)), curve)
    elif op is LifecycleOp.FOSSILIZE:
        life.fossilize([e], [s])


def check_invariants(life: Lifecycle) -> None:
    stage, alpha = life.stage_ES, life.alpha_ES
    occupied = np.isin(stage, OCCUPIED)
    assert np.array_equal(life.blueprint_ES != NO_BLUEPRINT, occupied), "a seed where one should be"
    assert ((alpha >= 0) & (alpha <= 1)).all()
    assert (alpha[np.isin(stage, WITHOUT_ALPHA)] == 0).all()
    assert (alpha[np.isin(stage, [SeedStage.HOLDING, SeedStage.FOSSILIZED])] == 1).all()
    ramping = life.mode_ES != AlphaMode.HOLD
    assert (stage[ramping] == SeedStage.BLENDING).all()
    assert (life.ramp_steps_left()[ramping] > 0).all()
    assert (life.ramp_steps_left()[~ramping] == 0).all()
    assert (stage[life.pruning_ES] == SeedStage.BLENDING).all()
    assert (life.mode_ES[life.pruning_ES] == AlphaMode.DOWN).all()
    budget = life.config.seed_budget
    assert (occupied.sum(axis=1) <= (S if budget is None else budget)).all()
    assert (life.age_ES[~occupied] == 0).all()
    cooling = np.isin(stage, [SeedStage.PRUNED, SeedStage.EMBARGOED, SeedStage.RESETTING])
    assert np.array_equal(life.cooldown_left() > 0, cooling)
    assert life.legal_ops()[..., LifecycleOp.WAIT].all()


def check_moves(before: np.ndarray, after: np.ndarray) -> None:
    """Every slot moved along the table, at most two edges at a time (a boundary may pass two)."""
    for a, b in zip(before.ravel(), after.ravel(), strict=True):
        one = TRANSITIONS[SeedStage(a)]
        two = {y for x in one for y in TRANSITIONS[x]}
        assert a == b or SeedStage(b) in one | two, f"{SeedStage(a).name} -> {SeedStage(b).name}"


@settings(max_examples=12)
@given(configs, st.integers(0, 2**32 - 1))
def test_random_legal_actions_keep_every_invariant(config, seed):
    rng = np.random.default_rng(seed)
    life = Lifecycle(E, ["r0c0", "r0c1"], np.ones((S, K), dtype=np.bool_), config)
    for _ in range(30):
        before = life.stage_ES.copy()
        rising = (life.mode_ES == AlphaMode.UP), life.alpha_ES.copy()
        falling = (life.mode_ES == AlphaMode.DOWN), life.alpha_ES.copy()
        life.begin_step()
        check_invariants(life)
        assert (life.alpha_ES >= rising[1])[rising[0]].all(), "up is monotone"
        assert (life.alpha_ES <= falling[1])[falling[0]].all(), "down is monotone"
        life.end_step(random_signals(rng))
        check_invariants(life)
        check_moves(before, life.stage_ES)
        for e in range(E):
            legal = np.argwhere(life.legal_ops()[e])
            s, op = legal[rng.integers(len(legal))]
            fossils = life.stage_ES == SeedStage.FOSSILIZED
            act(life, LifecycleOp(op), e, int(s), rng)
            check_invariants(life)
            assert (life.stage_ES[fossils] == SeedStage.FOSSILIZED).all(), "permanent"


@settings(max_examples=20)
@given(configs, st.integers(0, 2**32 - 1))
def test_illegal_actions_raise_one_line_and_change_nothing(config, seed):
    rng = np.random.default_rng(seed)
    life = Lifecycle(E, ["r0c0", "r0c1"], np.ones((S, K), dtype=np.bool_), config)
    for _ in range(25):
        life.begin_step()
        life.end_step(random_signals(rng))
        legal = life.legal_ops()
        illegal = np.argwhere(~legal[..., : len(CLASSIC_OPS)])
        for e, s, op in rng.permutation(illegal)[:6]:
            kept, signals = state(life), copy.deepcopy(life.signals)
            with pytest.raises(EsperError) as error:
                act(life, LifecycleOp(op), int(e), int(s), rng)
            assert "\n" not in str(error.value)
            assert "legal there now" in str(error.value)
            assert life.slots[s] in str(error.value)
            for name, value in state(life).items():
                np.testing.assert_array_equal(value, kept[name])
            assert life.signals == signals
        e, s, op = np.argwhere(legal)[rng.integers(legal.sum())]
        act(life, LifecycleOp(op), int(e), int(s), rng)


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_acting_on_many_members_equals_acting_on_each(seed):
    """One call with arrays leaves the same state as one call per member."""
    rng = np.random.default_rng(seed)
    config = LifecycleConfig(gates=GateConfig(min_training_steps=1))
    together = Lifecycle(E, ["r0c0", "r0c1"], np.ones((S, K), dtype=np.bool_), config)
    apart = Lifecycle(E, ["r0c0", "r0c1"], np.ones((S, K), dtype=np.bool_), config)
    for _ in range(20):
        signals = random_signals(rng)
        for life in (together, apart):
            life.begin_step()
            life.end_step(signals)
        op = LifecycleOp(rng.integers(1, len(CLASSIC_OPS)))
        s = int(rng.integers(S))
        members = np.flatnonzero(together.legal_ops()[:, s, op])
        if not members.size:
            continue
        state_of_rng = rng.bit_generator.state
        for e in members:
            rng.bit_generator.state = state_of_rng
            act(apart, op, int(e), s, rng)
        rng.bit_generator.state = state_of_rng
        if op is LifecycleOp.GERMINATE:
            curve = int(rng.choice(list(AlphaCurve)))
            style, tempo = int(rng.choice(list(BlendStyle))), int(rng.choice(TEMPOS))
            target = float(rng.choice(ALPHA_TARGETS))
            together.germinate(members, s, int(rng.integers(K)), style, tempo, target, curve)
        elif op is LifecycleOp.SET_ALPHA_TARGET:
            curve, speed = int(rng.choice(list(AlphaCurve))), int(rng.choice(ALPHA_SPEEDS))
            together.set_alpha_target(members, s, float(rng.choice(ALPHA_TARGETS)), speed, curve)
        elif op is LifecycleOp.PRUNE:
            curve = int(rng.choice(list(AlphaCurve)))
            together.prune(members, s, int(rng.choice(ALPHA_SPEEDS)), curve)
        elif op is LifecycleOp.ADVANCE:
            together.advance(members, s)
        else:
            together.fossilize(members, s)
        for name, value in state(together).items():
            np.testing.assert_array_equal(value, state(apart)[name], err_msg=name)
