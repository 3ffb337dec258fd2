"""What tests on a GPU share: small engines there, their numbers, and a watch for what waits.

Every shape that is new is compiled for once, so tests take the same few members and sizes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from engine_support import small_engine, small_task
from esper.device.transfer import fetch
from esper.kasmina import Population
from esper.leyline.protocols import EngineListener, PolicyProtocol
from esper.tasks.spec import TaskSpec
from esper.tolaria import measurements
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.runtime import set_profile

DEVICE = torch.device("cuda")
NEEDS_CUDA = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SHORT = small_task(episode_length=8)
"""Long enough for seeds to come, blend in and go under random actions."""


@pytest.fixture
def exact():
    """Profile `exact`, and afterwards torch's own settings."""
    set_profile("exact", torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = False


def engine_on_gpu(
    spec: TaskSpec = SHORT, listener: EngineListener | None = None, **config: Any
) -> VectorizedEngine:
    """Three members in float32, exact; graphs are captured where vmap computes."""
    settings = {"members": 3, "device": "cuda", "precision": "fp32", "profile": "exact"}
    return small_engine(spec, listener, **(settings | config))


@contextlib.contextmanager
def sync_mode(mode: str) -> Iterator[None]:
    """What torch does within it when the device is waited for: `default`, `warn`, `error`."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def watched_episode(engine: VectorizedEngine, policy: PolicyProtocol[Any]) -> int:
    """An episode in which waiting is an error but in transfers; how many transfers its steps took.

    The policy must decide on the host.
    """
    transfers = 0

    def transfer(parts: dict[str, Tensor]) -> dict[str, Any]:
        nonlocal transfers
        transfers += 1
        with sync_mode("default"):
            return fetch(parts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurements, "fetch", transfer)
        engine.begin_episode(policy)
        transfers = 0
        with sync_mode("error"):
            for _ in range(engine.spec.episode_length):
                engine._step_env(policy, cut=False)
                engine.step += 1
    engine.step = 0
    return transfers


def assert_same(left: Mapping[str, Any], right: Mapping[str, Any]) -> None:
    """Arrays or tensors, name by name, bit for bit; NaN is NaN."""
    assert left.keys() == right.keys()
    for name in left:
        one, two = torch.as_tensor(left[name]), torch.as_tensor(right[name])
        assert one.shape == two.shape, name
        same = (one == two) | (one.isnan() & two.isnan())
        assert bool(same.all()), f"{name}: {int((~same).sum())} of {same.numel()} differ"


def assert_close(
    left: Mapping[str, Any], right: Mapping[str, Any], rtol: float, atol: float = 0.0
) -> None:
    """Arrays or tensors, name by name; NaN is NaN."""
    assert left.keys() == right.keys()
    for name in left:
        one, two = torch.as_tensor(left[name]), torch.as_tensor(right[name])
        torch.testing.assert_close(one, two, rtol=rtol, atol=atol, equal_nan=True, msg=name)


def state_of(population: Population) -> dict[str, Tensor]:
    """Copies of all weights, buffers and moments."""
    network, trainer = population.network, population.trainer
    stores = {"host": network.host}
    stores |= {str(key): bank for key, bank in network.banks.items()}
    stores |= {f"gate {key}": gate for key, gate in network.gates.items()}
    out = {name: store.flat_EP.detach().clone() for name, store in stores.items()}
    for name, store in stores.items():
        out |= {f"{name}/{part}": value.clone() for part, value in store.fixed.items()}
    for optimizer in (trainer.host_optimizer, trainer.seed_optimizer):
        for key, moments in optimizer.state.items():
            out |= {f"{key} {part}": value.clone() for part, value in moments.items()}
    return out
