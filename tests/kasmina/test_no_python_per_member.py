"""Under vmap, training and validating more members takes not one Python call more."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from call_support import differences, python_calls
from esper.kasmina import Population
from esper.leyline import BlendStyle, SeedStage
from support import batch, bring_to, make_population


def grown(members: int, executor: str = "vmap") -> Population:
    """The same mix of seeds whatever E is: each kind lives in a share of the members."""
    population = make_population(members, executor)
    half = list(range(members // 2))
    rest = list(range(members // 2, members))
    bring_to(population, SeedStage.FOSSILIZED, half, "r0c0", "conv_light", style=BlendStyle.GATE)
    bring_to(population, SeedStage.HOLDING, rest, "r0c0", "attention", style=BlendStyle.MULTIPLY)
    bring_to(population, SeedStage.BLENDING, half, "r0c1", "conv_heavy", tempo=8)
    bring_to(population, SeedStage.TRAINING, rest, "r0c2", "norm")
    population.begin_step()
    return population


def one_step(population: Population) -> Callable[[], object]:
    """What a step does: clock, train batches, validation of members and of chosen rows, plans."""
    x, y = batch(population.members)
    shared_x, shared_y = batch(1, seed=5)
    off = np.zeros((population.members, 3), dtype=np.float32)

    def work() -> None:
        population.lifecycle.version += 1  # as after a controller's action: plans are rebuilt
        population.begin_step()
        for _ in range(2):
            population.train_batch(x, y)
        population.evaluate(x, y)
        population.evaluate(shared_x, shared_y, alpha_RS=off)
        population.lifecycle.legal_ops()

    return work


def test_calls_at_4_members_equal_calls_at_32():
    few, many = grown(4), grown(32)
    one_step(few)(), one_step(many)()  # warm: caches, first-use allocations
    calls_few, calls_many = python_calls(one_step(few)), python_calls(one_step(many))
    assert not differences(calls_few, calls_many)
    assert calls_few.total() > 1000, "the watch saw the work"


def test_the_count_would_notice_a_loop():
    """The same count under the loop executor grows with the members."""
    few, many = grown(4, "loop"), grown(8, "loop")
    one_step(few)(), one_step(many)()
    assert python_calls(one_step(many)).total() > 1.5 * python_calls(one_step(few)).total()


@pytest.mark.parametrize("members", [4, 32])
def test_germinating_many_members_is_one_call_each_kind(members):
    """Fresh values for all members come from one draw per parameter."""
    population = make_population(members)
    population.germinate([0], "r0c1", "conv_heavy")
    others = np.arange(1, members)
    calls = python_calls(lambda: population.germinate(others, "r0c1", "conv_heavy"))
    draws = [n for name, n in calls.items() if name.endswith("Draw.sample")]
    assert draws == [2], "two convolutions, whatever the number of members"


def test_nothing_waits_for_the_device_in_a_train_batch():
    """No `.item()`, `.tolist()`, `.cpu()` or `.numpy()` of a tensor while a batch is trained."""
    population = grown(4)
    work = one_step(population)
    work()
    names = python_calls(lambda: population.train_batch(*batch(4))).keys()
    waits = ("TensorBase.item", "TensorBase.tolist", "TensorBase.cpu", "TensorBase.numpy")
    assert not [n for n in names if n.removeprefix("c:") in waits or "synchronize" in n]
    assert any("torch" in n for n in names)
    assert torch.is_tensor(population.network.host.flat_EP)
