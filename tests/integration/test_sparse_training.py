"""Only some members grow: to the others it is as if none did, to the growers as if all did."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from engine_support import CALM, Diary, histories, small_engine, small_task
from esper.leyline import LifecycleOp, SeedStage
from esper.tamiyo.baselines import WaitPolicy
from growth_support import SomeGrow

MEMBERS = 5
GROWERS, WAITERS = [0, 3], [1, 2, 4]
SPEC = small_task(episode_length=10)
SPEC = dataclasses.replace(SPEC, optim=dataclasses.replace(SPEC.optim, clip_norm=0.01))
"""Gradients are clipped at every step, so that a clip that looks at others would show."""


def run(policy, executor: str = "loop", rounds: int = 2):
    """An engine after some episodes, what it wrote down of each, and its diary."""
    diary = Diary()
    engine = small_engine(SPEC, diary, members=MEMBERS, executor=executor, seed=1, governor=CALM)
    books = []
    for _ in range(rounds):
        engine.run_rollout(policy)
        books.append(histories(engine.episode))
    return engine, books, diary


def state_of(engine, members: list[int]) -> dict[str, torch.Tensor]:
    """Hosts and their optimiser state, these members' rows."""
    population = engine.env.model
    found = {"weights": population.network.host.flat_EP.detach()}
    found |= population.network.host.fixed
    found |= population.trainer.host_optimizer.state["host"]
    return {name: value[members] for name, value in found.items()}


@pytest.fixture(scope="module")
def some():
    return run(SomeGrow(GROWERS, SPEC))


@pytest.fixture(scope="module")
def none():
    return run(WaitPolicy())


def test_growers_grow_and_waiters_do_not(some):
    engine, _, diary = some
    births_ES = engine.env.model.lifecycle.births_ES
    assert (births_ES[GROWERS].sum(axis=1) > 0).all()
    assert (births_ES[WAITERS] == 0).all()
    blended = np.max([r.signals.slots.alpha_ES for r in diary.records], axis=0)
    assert (blended[GROWERS].max(axis=1) > 0).any(), "something is blended in, not only incubated"
    for record in diary.records:
        assert (record.signals.slots.stage_ES[WAITERS] == SeedStage.DORMANT).all()
        assert (record.decision.actions.op[WAITERS] == LifecycleOp.WAIT).all()


def test_waiters_are_bit_identical_to_members_of_a_run_that_never_grows(some, none):
    for grown, plain in zip(some[1], none[1], strict=True):
        for name, values in grown.items():
            assert np.array_equal(values[:, WAITERS], plain[name][:, WAITERS], equal_nan=True), name
    left, right = (state_of(engine, WAITERS) for engine, _, _ in (some, none))
    for name, value in left.items():
        assert torch.equal(value, right[name]), name


def test_growers_are_not(some, none):
    left, right = (state_of(engine, GROWERS) for engine, _, _ in (some, none))
    assert not torch.equal(left["weights"], right["weights"])


def test_growers_are_bit_identical_whether_others_grow_or_not(some):
    everyone, books, _ = run(SomeGrow(range(MEMBERS), SPEC))
    assert (everyone.env.model.lifecycle.births_ES[WAITERS].sum(axis=1) > 0).all()
    for grown, other in zip(some[1], books, strict=True):
        for name, values in grown.items():
            assert np.array_equal(values[:, GROWERS], other[name][:, GROWERS], equal_nan=True), name
    left, right = (state_of(engine, GROWERS) for engine in (some[0], everyone))
    for name, value in left.items():
        assert torch.equal(value, right[name]), name


def test_what_waiters_are_paid_and_shown_does_not_depend_on_growers(some, none):
    """No reward is asked for by waiting alone, so the score the reward is made of is compared."""
    for grown, plain in zip(some[2].records, none[2].records, strict=True):
        for name in ("score_E", "score_before_E"):
            left, right = (getattr(r.reward_inputs, name)[WAITERS] for r in (grown, plain))
            assert np.array_equal(left, right), name
        for name in ("train_loss_E", "val_loss_E", "val_accuracy_E", "params_over_host_E"):
            left, right = (getattr(r.signals, name)[WAITERS] for r in (grown, plain))
            assert np.array_equal(left, right), name


def test_waiters_agree_under_vmap(none):
    _, books, _ = run(SomeGrow(GROWERS, SPEC), executor="vmap")
    for grown, plain in zip(books, none[1], strict=True):
        for name in ("train_loss_TE", "loss_TE", "score_loss_TE"):
            np.testing.assert_allclose(
                grown[name][:, WAITERS], plain[name][:, WAITERS], atol=1e-5, err_msg=name
            )


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_rows_are_paid_for_by_those_who_need_them(executor):
    """Shadow and counterfactual rows come with seeds: none without, and few where few grow."""
    mean = {}
    spec = small_task(episode_length=6, batches_per_step=1)
    for name, who in (("none", ()), ("some", GROWERS), ("all", range(MEMBERS))):
        diary = Diary()
        engine = small_engine(spec, diary, members=MEMBERS, executor=executor, seed=1)
        engine.run_rollout(SomeGrow(who, spec))
        mean[name] = np.mean([record.rows for record in diary.records])
    assert mean["none"] == MEMBERS
    assert MEMBERS < mean["some"] < mean["all"]
