"""Same seed, same everything: history and agent, bit for bit, whoever watches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esper.leyline import TelemetryConfig, TelemetryLevel
from esper.nissa import MemorySink, TelemetryHub
from esper.simic.telemetry.listener import TelemetryListener
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


def test_another_seed_is_another_run():
    one, first = tiny_run(tiny_config(rounds=1, seed=0))
    two, second = tiny_run(tiny_config(rounds=1, seed=1))
    assert untimed(first) != untimed(second)
    assert not same_agents(one, two)


def test_telemetry_changes_nothing():
    level = TelemetryLevel.DEBUG
    silent, quiet = tiny_run(tiny_config(rounds=2))
    sink = MemorySink()
    with TelemetryHub([sink], level) as hub:
        ear = TelemetryListener(
            hub, TelemetryConfig(level), "cpu", 2, batches_per_step=1, batch_size=16
        )
        told, loud = tiny_run(tiny_config(rounds=2), listeners=[ear])
    assert len(sink.events) > 0
    assert untimed(quiet) == untimed(loud)
    assert same_agents(silent, told)


def test_nothing_leaks_into_the_global_generators():
    torch.manual_seed(7)
    np.random.seed(7)
    expected = torch.rand(3), np.random.rand(3)
    torch.manual_seed(7)
    np.random.seed(7)
    tiny_run(tiny_config(rounds=1))
    assert torch.equal(torch.rand(3), expected[0])
    assert np.array_equal(np.random.rand(3), expected[1])
