"""Flat actions: one index for every composite action that can be legal, and no other."""

# ruff: noqa: E402  # what follows needs gymnasium

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium comes with the dev extra")

from esper.gym.flat_env import flat
from esper.leyline import PLANNED, ActionHead, EsperError, LifecycleOp
from esper.leyline.actions import HEADS_BY_OP
from esper.tamiyo.actions import parse_sampled_action
from esper.tamiyo.frozen_heads import read_frozen
from esper.tamiyo.scripted import legal_members
from gym_support import DRAWN, flat_env, play, tiny_env

FEW = {"style": "ADD", "alpha_curve": "LINEAR", "alpha_speed": 0, "alpha_target": 1.0}


def composites(env, member: int) -> set[tuple[int, ...]]:
    """Every legal combination of heads, tried one by one; unused heads are 0."""
    vector = env.unwrapped
    frozen = dict(vector.population.frozen_heads)
    sizes = vector.single_action_space.nvec.tolist()
    found = set()
    for op in LifecycleOp:
        choices = [
            range(size) if head in HEADS_BY_OP[op] else (0,)
            for head, size in zip(ActionHead, sizes, strict=True)
        ]
        choices[ActionHead.OP] = (int(op),)
        for head, choice in frozen.items():
            if head in HEADS_BY_OP[op]:
                choices[head] = (choice,)
        rows = np.array(list(product(*choices)))
        masks = vector.masks
        repeated = type(masks)(
            *(
                np.repeat(getattr(masks, name)[member : member + 1], len(rows), axis=0)
                if getattr(masks, name).ndim > 1
                else getattr(masks, name)
                for name in masks.__slots__
            )
        )
        legal = legal_members(repeated, parse_sampled_action(rows))
        found |= {tuple(row) for row in rows[legal].tolist()}
    return found


def test_legal_indices_are_exactly_the_legal_composite_actions():
    env = flat_env(2, DRAWN, length=6, frozen_heads=FEW)
    generator = np.random.default_rng(1)
    _, info = env.reset(seed=0)
    ops = set()
    for _ in range(8):
        for member in range(2):
            legal = np.flatnonzero(info["action_mask"][member])
            rows = {tuple(row) for row in env.actions.table_NA[legal].tolist()}
            assert len(rows) == len(legal), "no action has two indices"
            assert rows == composites(env, member)
            ops |= {row[0] for row in rows}
        chosen = [generator.choice(np.flatnonzero(row)) for row in info["action_mask"]]
        _, _, _, _, info = env.step(np.array(chosen))
    assert {LifecycleOp.WAIT, LifecycleOp.GERMINATE} <= ops


def test_index_and_heads_are_inverse():
    for contexts in (None, PLANNED):
        actions = tiny_env(1, contexts).actions
        every = np.arange(len(actions))
        assert actions.index(actions.heads(every)).tolist() == every.tolist()
        assert len({tuple(row) for row in actions.table_NA.tolist()}) == len(actions)
        assert actions.table_NA[0].tolist() == [0] * len(ActionHead), "WAIT is 0"
        offered = {LifecycleOp(op) for op in actions.table_NA[:, ActionHead.OP]}
        assert (LifecycleOp.PLANT in offered) == (contexts is not None)


def test_no_legal_action_is_vetoed_or_turned_into_wait():
    for contexts in (None, DRAWN):
        for step in play(flat_env(4, contexts, length=6), 3, 6, draws=5)[1:]:
            info = step[4]
            assert not info["illegal"].any()
            assert (info["executed"] | info["rolled_back"]).all()


def test_an_illegal_index_becomes_wait():
    env = flat_env(2)
    _, info = env.reset(seed=0)
    illegal = int(np.flatnonzero(info["action_mask"][0] == 0)[0])
    _, _, _, _, info = env.step(np.array([illegal, 0]))
    assert info["illegal"].tolist() == [True, False]


def test_plain_heads_leave_what_where_and_when():
    env = tiny_env(1, frozen_heads="plain")
    slots, blueprints = env.engine.env.model.lifecycle.fits_SK.shape
    fits = int(env.engine.env.model.lifecycle.fits_SK.sum())
    assert fits <= slots * blueprints
    # WAIT; GERMINATE; ADVANCE, SET_ALPHA_TARGET, PRUNE and FOSSILIZE in every slot
    assert len(env.actions) == 1 + fits + 4 * slots


def test_actions_are_described():
    env = tiny_env(1, PLANNED, frozen_heads="plain")
    names = env.task.slots, env.task.blueprints
    texts = [env.actions.describe(index, *names) for index in range(len(env.actions))]
    assert texts[0] == "WAIT"
    assert f"PLANT {names[0][0]} {names[1][0]}" in texts
    assert len(set(texts)) == len(texts)


def test_what_is_not_an_action_or_an_environment_is_refused_in_one_line():
    env = flat_env(2)
    env.reset(seed=0)
    count = len(env.actions)
    cases = (
        (lambda: env.step(np.array([0, count])), f"valid are 0 to {count - 1}"),
        (lambda: env.step(np.array([0])), "shape"),
        (lambda: env.step(np.array([0.0, 0.0])), "expected integers"),
        (lambda: flat(3), "environment of esper.gym"),
        (lambda: flat(gymnasium.make("CartPole-v1")), "environment of esper.gym"),
        (lambda: env.actions.index(np.full((1, 8), 99)), "99"),
    )
    for call, line in cases[:-1]:
        with pytest.raises(EsperError, match=line) as refused:
            call()
        assert "\n" not in str(refused.value)
    with pytest.raises(EsperError, match="no action"):
        env.actions.index(np.array([[LifecycleOp.PLANT, 0, 0, 0, 0, 0, 0, 0]]))


def test_frozen_heads_are_read_by_name():
    assert read_frozen({"style": "GATE", "blueprint": "b"}, ("a", "b")) == (
        (ActionHead.STYLE, 2),
        (ActionHead.BLUEPRINT, 1),
    )
