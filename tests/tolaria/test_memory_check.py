"""A population that cannot fit is refused before any of it is built."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from esper.device.memory import free_bytes
from esper.tasks.registry import get_task_spec
from esper.tolaria import EngineConfig, VectorizedEngine, memory_check
from esper.tolaria.memory_check import input_bytes, require_memory
from support import refused

CPU = torch.device("cpu")
SPEC = get_task_spec("synthetic")


@pytest.fixture(scope="module")
def data():
    return SPEC.load()


def test_what_is_free_here_is_known_and_plausible():
    assert 2**26 < free_bytes(CPU) < 2**50


@pytest.mark.parametrize(
    "large",
    [
        {"batch_size": 10**9},
        {"batches_per_step": 10**9},
        {"episode_length": 10**10},
    ],
    ids=lambda it: next(iter(it)),
)
def test_what_cannot_fit_is_refused_with_what_it_takes_and_what_is_free(large, data):
    spec = replace(SPEC, **large)
    line = refused(lambda: require_memory(spec, data, 1000, CPU, "--evaluation-envs"))
    assert "out of memory on cpu with E=1000 members" in line
    assert "GiB is free" in line
    assert "lower --evaluation-envs" in line


def test_an_engine_asks_before_it_builds(data):
    spec = replace(SPEC, episode_length=10**6)
    config = EngineConfig(members=10**6, device="cpu")
    assert "out of memory" in refused(lambda: VectorizedEngine(spec, config, data=data))


def test_no_more_is_counted_than_an_engine_holds(data, monkeypatch):
    """What is counted as a lower bound is there, byte for byte, in an engine that runs."""
    spec = replace(SPEC, batch_size=16, batches_per_step=2, episode_length=5)
    engine = VectorizedEngine(spec, EngineConfig(members=3, device="cpu"), data=data)
    batches, episode = engine.batches, engine.episode
    order_EMB = batches._make_order(0, 2)
    x, _ = next(batches.step(0))
    held = x.nbytes + batches._all_rows_EB.nbytes
    histories = [value for value in vars(episode).values() if getattr(value, "ndim", 0) == 2]
    exact = 2 * batches._epochs[0].nbytes + order_EMB.nbytes + sum(h.nbytes for h in histories)
    assert input_bytes(spec, 3) <= held
    needed = exact + input_bytes(spec, 3)
    monkeypatch.setattr(memory_check, "_ALWAYS_ALLOWED", 0)
    monkeypatch.setattr(memory_check, "free_bytes", lambda _: needed)
    require_memory(spec, data, 3, CPU)
    monkeypatch.setattr(memory_check, "free_bytes", lambda _: needed - 1)
    assert "out of memory" in refused(lambda: require_memory(spec, data, 3, CPU))
