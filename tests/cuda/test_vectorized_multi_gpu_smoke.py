"""Two engines on two GPUs in one process: each stays on its own, and both tell the same story."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cuda_support import assert_close, assert_same
from engine_support import Diary, histories, random_policy, small_engine, small_task

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
    pytest.mark.usefixtures("exact"),
]

SPEC = small_task(episode_length=6)
DEVICES = ("cuda:0", "cuda:1")


def engine_on(device: str, executor: str = "vmap", listener=None):
    settings = {"members": 3, "device": device, "executor": executor, "precision": "fp32"}
    return small_engine(SPEC, listener, **settings)


def tensors_of(engine) -> list[torch.Tensor]:
    """Everything large that an engine keeps."""
    population = engine.env.model
    network, trainer = population.network, population.trainer
    stores = (network.host, *network.banks.values(), *network.gates.values())
    moments = (trainer.host_optimizer.state, trainer.seed_optimizer.state)
    kept = [store.flat_EP for store in stores]
    kept += [value for state in moments for of_key in state.values() for value in of_key.values()]
    return [*kept, engine.batches.examples, engine.batches.targets]


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_two_engines_on_two_devices_agree(executor):
    """The same seed on the same kind of device, round after round in turn: the same numbers."""
    diaries = [Diary(), Diary()]
    engines = [engine_on(d, executor, diary) for d, diary in zip(DEVICES, diaries, strict=True)]
    for _ in range(2):
        books = []
        for engine in engines:
            engine.run_rollout(random_policy(0, SPEC))
            books.append(histories(engine.episode))
        assert_close(*books, rtol=1e-3, atol=1e-5)
    for left, right in zip(diaries[0].records, diaries[1].records, strict=True):
        assert np.array_equal(left.decision.actions.op, right.decision.actions.op)


def test_each_engine_keeps_to_its_device():
    for number, device in enumerate(DEVICES):
        engine = engine_on(device)
        engine.run_rollout(random_policy(0, SPEC))
        assert {tensor.device for tensor in tensors_of(engine)} == {torch.device(device)}
        assert torch.cuda.current_device() == 0, f"engine on device {number} moved the process"


def test_steps_may_alternate_between_devices():
    """Interleaved step by step, each is as it would be alone."""
    alone = engine_on(DEVICES[1])
    alone.run_rollout(random_policy(0, SPEC))
    policies = [random_policy(0, SPEC), random_policy(0, SPEC)]
    engines = [engine_on(device) for device in DEVICES]
    for engine, policy in zip(engines, policies, strict=True):
        engine.begin_episode(policy)
    for _ in range(SPEC.episode_length):
        for engine, policy in zip(engines, policies, strict=True):
            engine._step_env(policy, cut=False)
            engine.step += 1
    assert_same(histories(alone.episode), histories(engines[1].episode))
