"""The random policy: uniform over what is allowed, nothing else, and the same whatever E is."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chisquare

from esper.leyline import (
    ActionHead,
    ActionMasks,
    LifecycleOp,
    PolicyDecision,
    SeedStage,
    TrainingSignals,
)
from esper.leyline.actions import CLASSIC_OPS, NO_SLOT
from esper.tamiyo import RandomPolicy, build_masks
from esper.tamiyo.actions import HEAD_USED_OA
from payload_support import build
from support import make_population
from tamiyo_support import Drive, choices_of

SLOTS, KINDS = 3, 4
ONE_OF_EACH = {"slot_ids": ("a", "b", "c"), "blueprints": ("k", "l", "m", "n")}


def fits_of(members: int) -> np.ndarray:
    """Slot 1 takes two blueprints only, the others all."""
    fits = np.ones((members, SLOTS, KINDS), dtype=np.bool_)
    fits[:, 1, :2] = False
    return fits


def any_masks(members: int, seed: int = 0) -> ActionMasks:
    """Some operations legal here, others there; slot 1 takes two blueprints only."""
    legal = np.random.default_rng(seed).random((members, SLOTS, len(LifecycleOp))) < 0.4
    return build_masks(legal, fits_of(members), {ActionHead.TEMPO: 1})


def same_for_all(members: int) -> ActionMasks:
    """Every member may do what member 0 may: one distribution, many draws."""
    one = any_masks(1, seed=2)
    return replace(
        one,
        op_EO=np.repeat(one.op_EO, members, axis=0),
        slot_EOS=np.repeat(one.slot_EOS, members, axis=0),
        blueprint_ESK=np.repeat(one.blueprint_ESK, members, axis=0),
    )


def act(masks: ActionMasks, seed: int = 0, round_index: int = 0, step: int = 0) -> PolicyDecision:
    facts = {"round_index": round_index, "step": step, "episode_length": 1000, "plan_slot": NO_SLOT}
    obs = build(TrainingSignals, facts | ONE_OF_EACH, E=len(masks.op_EO), S=SLOTS)
    return RandomPolicy(seed).act(obs, masks, None)[0]


def assert_uniform(choices: np.ndarray, allowed: np.ndarray) -> None:
    """Chi-square at a fixed seed: allowed choices equally often, the others never."""
    counts = np.bincount(choices, minlength=len(allowed))
    assert counts[~allowed].sum() == 0
    if allowed.sum() > 1:
        assert chisquare(counts[allowed]).pvalue > 1e-3


def test_operations_are_uniform():
    masks = same_for_all(20_000)
    assert 2 < masks.op_EO[0].sum() < len(LifecycleOp)
    assert_uniform(act(masks).actions.op, masks.op_EO[0])


@pytest.mark.parametrize("op", [op for op in LifecycleOp if op is not LifecycleOp.WAIT])
def test_later_heads_are_uniform_given_earlier_ones(op: LifecycleOp):
    members = 20_000
    legal = np.zeros((members, SLOTS, len(LifecycleOp)), dtype=np.bool_)
    legal[:, [0, 1], op] = True
    masks = build_masks(legal, fits_of(members))
    actions = act(masks, seed=5).actions
    chosen = actions.op == op
    assert_uniform(actions.slot[chosen], masks.slot_EOS[0, op])
    for slot in (0, 1):
        here = np.flatnonzero(chosen & (actions.slot == slot))
        allowed = choices_of(masks, actions, int(here[0]))
        for head in (ActionHead.BLUEPRINT, *list(ActionHead)[3:]):
            if HEAD_USED_OA[op, head]:
                assert_uniform(actions.of(head)[here], allowed[head])


def test_heads_members_and_steps_are_independent():
    """Pairs of draws fill all cells equally: of two heads, two members, two steps, two rounds."""
    legal = np.zeros((20_000, SLOTS, len(LifecycleOp)), dtype=np.bool_)
    legal[..., LifecycleOp.WAIT : LifecycleOp.ADVANCE] = True
    masks = build_masks(legal, np.ones((20_000, SLOTS, KINDS), dtype=np.bool_))
    actions = act(masks).actions
    grown = actions.op == LifecycleOp.GERMINATE
    pairs = {
        "heads": actions.slot[grown] * KINDS + actions.blueprint[grown],
        "members": actions.op[:-1:2] * 2 + actions.op[1::2],
        "steps": actions.op * 2 + act(masks, step=1).actions.op,
        "rounds": actions.op * 2 + act(masks, round_index=1).actions.op,
        "seeds": actions.op * 2 + act(masks, seed=1).actions.op,
    }
    for name, cells in pairs.items():
        assert chisquare(np.bincount(cells)).pvalue > 1e-3, name


def test_never_masked_in_many_draws():
    """1e5 member-draws; everything the masks allow in slot and operation does occur."""
    members, steps = 1000, 100
    masks = any_masks(members)
    member = np.arange(members)
    seen = np.zeros_like(masks.slot_EOS)
    for step in range(steps):
        actions = act(masks, step=step).actions
        placed = actions.op != LifecycleOp.WAIT
        assert masks.op_EO[member, actions.op].all()
        assert masks.slot_EOS[member, actions.op, actions.slot][placed].all()
        grown = actions.op == LifecycleOp.GERMINATE
        assert masks.blueprint_ESK[member, actions.slot, actions.blueprint][grown].all()
        assert (actions.tempo[grown] == 1).all()
        seen[member[placed], actions.op[placed], actions.slot[placed]] = True
    seen[:, LifecycleOp.WAIT] = masks.slot_EOS[:, LifecycleOp.WAIT]
    assert (seen == masks.slot_EOS).mean() > 0.99


def test_members_do_not_depend_on_how_many_there_are():
    eight = any_masks(8)
    one = replace(
        eight,
        op_EO=eight.op_EO[:1],
        slot_EOS=eight.slot_EOS[:1],
        blueprint_ESK=eight.blueprint_ESK[:1],
    )
    for step in range(50):
        alone, among = act(one, step=step), act(eight, step=step)
        for head in ActionHead:
            assert alone.actions.of(head)[0] == among.actions.of(head)[0]
        assert (alone.head_confidence_EA[0] == among.head_confidence_EA[0]).all()


def test_same_draw_twice_is_the_same():
    masks = any_masks(16)
    first, again, other = act(masks, seed=9), act(masks, seed=9), act(masks, seed=10)
    assert first == again
    assert first != other


def test_probabilities_are_those_of_the_draw():
    """Confidence of each head against a count of its allowed choices, member by member."""
    masks = any_masks(200)
    decision = act(masks, step=3)
    actions = decision.actions
    assert decision.op_probability_EO.sum(axis=1) == pytest.approx(1.0)
    for e in range(200):
        legal = masks.op_EO[e]
        assert decision.op_probability_EO[e] == pytest.approx(legal / legal.sum())
        allowed = choices_of(masks, actions, e)
        for head in ActionHead:
            counts = HEAD_USED_OA[actions.op[e], head]
            expected = 1 / allowed[head].sum() if counts else 1.0
            assert decision.head_confidence_EA[e, head] == pytest.approx(expected)
    assert np.isnan(decision.value_E).all()


def test_heads_that_do_not_count_are_valid():
    """Slot and blueprint are indices the host has, even for WAIT."""
    actions = act(any_masks(500)).actions
    assert actions.slot.max() < SLOTS
    assert actions.blueprint.max() < KINDS


def test_random_life_of_a_population_is_always_legal():
    population = make_population(4)
    drive = Drive(RandomPolicy(seed=1), population).run(150)
    passing = {SeedStage.GERMINATED, SeedStage.PRUNED}  # left before anyone acts
    assert set(np.unique(drive.stages)) == set(SeedStage) - passing - {SeedStage.PLANTED}
    ops = np.stack([actions.op for actions in drive.actions])
    assert set(np.unique(ops)) == set(CLASSIC_OPS)
