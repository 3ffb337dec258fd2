"""A loss scale for each member: torch's law, and one member's overflow is nobody else's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.kasmina.training.losses import cross_entropy
from esper.kasmina.training.scaling import MemberScaler
from support import batch, make_population


class Law:
    """`torch.amp.GradScaler`'s law for one model, written out."""

    def __init__(self, scale: float, interval: int) -> None:
        self.scale, self.interval, self.good = scale, interval, 0

    def update(self, overflow: bool) -> None:
        if overflow:
            self.scale, self.good = self.scale * 0.5, 0
            return
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good = self.scale * 2.0, 0


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), max_size=30), st.integers(1, 4))
@settings(max_examples=50)
def test_every_member_follows_the_law_of_one(batches, interval):
    scaler = MemberScaler(3, torch.device("cpu"), interval)
    alone = [Law(2.0**16, interval) for _ in range(3)]
    for overflow in batches:
        scaler.update(torch.tensor(overflow))
        for law, found in zip(alone, overflow, strict=True):
            law.update(found)
        assert scaler.scale_E.tolist() == [law.scale for law in alone]


def test_the_law_is_grad_scalers():
    """The written-out law against torch's own, on gradients that overflow now and then."""
    theirs = torch.amp.GradScaler(
        "cpu", init_scale=64.0, growth_interval=3, growth_factor=2.0, backoff_factor=0.5
    )
    law = Law(64.0, 3)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for overflow in [False, False, False, True, False, True, True, False, False, False, False]:
        weight.grad = torch.full((1,), float("inf") if overflow else 1.0)
        theirs.scale(torch.ones(1))
        theirs.step(optimizer)
        theirs.update()
        law.update(overflow)
        assert theirs.get_scale() == law.scale


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_powers_of_two_change_no_bit_in_float32(executor):
    """Scaling and unscaling by 2**16 is exact where nothing overflows, seeds included."""
    plain, scaled = (make_population(members=3, executor=executor) for _ in range(2))
    scaler = MemberScaler(3, torch.device("cpu"))
    for population in (plain, scaled):
        population.germinate([0, 2], "r0c1", "conv_light")
        population.begin_step()
    for index in range(4):
        x, y = batch(3, index)
        a = plain.train_batch(x, y)
        b = scaled.train_batch(x, y, scaler)
        assert torch.equal(a.loss_E, b.loss_E)
        assert torch.equal(a.grad_norm_ES.nan_to_num(), b.grad_norm_ES.nan_to_num())
    assert torch.equal(plain.network.host.flat_EP, scaled.network.host.flat_EP)


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_an_overflow_skips_its_member_alone(executor):
    """Member 1's scale is too high for float32: it stands still, the others go on as ever."""
    plain, scaled = (make_population(members=3, executor=executor) for _ in range(2))
    for population in (plain, scaled):
        population.loss = lambda logits, target: 1000 * cross_entropy(logits, target)
        population.germinate([0, 1], "r0c0", "conv_light")
        population.begin_step()
    scaler = MemberScaler(3, torch.device("cpu"))
    scaler.scale_E[1] = 3e38
    x, y = batch(3, 0)
    before = {k: v.clone() for k, v in scaled.member(1).state_dict().items()}
    plain.train_batch(x, y)
    stats = scaled.train_batch(x, y, scaler)
    assert scaler.scale_E.tolist() == [65536.0, float(np.float32(3e38) * np.float32(0.5)), 65536.0]
    for name, value in scaled.member(1).state_dict().items():
        assert torch.equal(value, before[name]), name
    for member in (0, 2):
        for name, value in plain.member(member).state_dict().items():
            assert torch.equal(scaled.member(member).state_dict()[name], value), name
    assert stats.host_grad_norm_E[1] == 0, "an overflow a lower scale may cure is no fault"
    momentum = scaled.trainer.host_optimizer.state["host"]["momentum"]
    assert (momentum[1] == 0).all()
    assert (momentum[0] != 0).any()


def test_an_overflow_that_no_scale_cures_is_told():
    population = make_population(members=2, executor="loop")
    scaler = MemberScaler(2, torch.device("cpu"))
    scaler.scale_E.fill_(1.0)
    x, y = batch(2, 0)
    x[1] = float("nan")
    stats = population.train_batch(x, y, scaler)
    assert not torch.isfinite(stats.host_grad_norm_E[1])
    assert torch.isfinite(stats.host_grad_norm_E[0])
