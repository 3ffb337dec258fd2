"""Same seed, same everything: history and agent, bit for bit, whoever watches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from loop_support import same_agents, tiny_config, tiny_run, untimed


@pytest.mark.parametrize(("executor", "pieces"), [("vmap", None), ("loop", 5)])
def test_same_seed_twice_is_bit_identical(executor, pieces):
    runs = []
    for disturbance in (1, 2):
        torch.manual_seed(disturbance)
        np.random.seed(disturbance)
        config = tiny_config(rounds=2, seed=4, executor=executor, rollout_steps=pieces)
        runs.append(tiny_run(config))
    (one, first), (two, second) = runs
    assert untimed(first) == untimed(second)
    assert same_agents(one, two)
    three, third = tiny_run(tiny_config(rounds=2, seed=5, executor=executor, rollout_steps=pieces))
    assert untimed(third) != untimed(first)
    assert not same_agents(one, three)


def test_nothing_leaks_into_the_global_generators():
    torch.manual_seed(7)
    np.random.seed(7)
    expected = torch.rand(3), np.random.rand(3)
    torch.manual_seed(7)
    np.random.seed(7)
    tiny_run(tiny_config(rounds=1))
    assert torch.equal(torch.rand(3), expected[0])
    assert np.array_equal(np.random.rand(3), expected[1])
