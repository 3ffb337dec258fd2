"""The engine on a GPU: the CPU's numbers, both executors, no waiting but for the transfers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cuda_support import (
    NEEDS_CUDA,
    SHORT,
    assert_close,
    assert_same,
    engine_on_gpu,
    sync_mode,
    watched_episode,
)
from engine_support import Diary, histories, random_policy, small_engine, small_task
from esper.tamiyo.baselines import StaticTopology, WaitPolicy
from support import refused

pytestmark = [*NEEDS_CUDA, pytest.mark.usefixtures("exact")]

LOSSES = ("train_loss_TE", "loss_TE", "score_loss_TE")
LEARNING = small_task(episode_length=25, kernel_size=3, base_channels=4)


def losses(engine) -> dict[str, np.ndarray]:
    return {name: getattr(engine.episode, name).copy() for name in LOSSES}


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_three_steps_agree_with_the_cpu(executor):
    spec = small_task(episode_length=3, kernel_size=3)
    policy = StaticTopology(dict.fromkeys(("r0c0", "r0c2"), "conv_light"))
    gpu = engine_on_gpu(spec, executor=executor)
    cpu = small_engine(spec, members=3, executor=executor)
    for engine in (gpu, cpu):
        engine.run_rollout(policy)
    assert_close(losses(gpu), losses(cpu), rtol=1e-3)


@pytest.mark.parametrize("seed", [0, 1])
def test_vmap_and_loop_agree_over_a_whole_rollout(seed):
    diaries = []
    for executor in ("vmap", "loop"):
        diary = Diary()
        engine = engine_on_gpu(listener=diary, executor=executor, seed=seed)
        engine.run_rollout(random_policy(seed))
        diaries.append((losses(engine), diary))
    (fused, fused_diary), (plain, plain_diary) = diaries
    for a, b in zip(fused_diary.records, plain_diary.records, strict=True):
        assert np.array_equal(a.decision.actions.op, b.decision.actions.op)
        assert np.array_equal(a.signals.slots.stage_ES, b.signals.slots.stage_ES)
    assert_close(fused, plain, rtol=5e-3)


@pytest.mark.parametrize("executor", ["vmap", "loop"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_exact_is_bit_reproducible(executor, precision):
    """Eager; with graphs in `test_graphs_cuda.py`."""
    runs = []
    for _ in range(2):
        engine = engine_on_gpu(executor=executor, precision=precision, graphs="off")
        engine.run_rollout(random_policy())
        runs.append(histories(engine.episode))
    assert_same(*runs)


@pytest.mark.parametrize("placement", ["device", "stream"])
@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_a_step_waits_for_the_device_in_its_transfer_only(executor, placement):
    """Growing with random actions; with graphs in `test_graphs_cuda.py`."""
    engine = engine_on_gpu(executor=executor, data_placement=placement, graphs="off")
    policy = random_policy(3, SHORT)
    engine.run_rollout(policy)  # kernels, banks and moments are set up
    assert watched_episode(engine, policy) == SHORT.episode_length, "one copy a step"
    assert engine.env.model.lifecycle.births_ES.sum() > 0


def test_the_check_for_waiting_can_fail():
    with sync_mode("error"), pytest.raises(RuntimeError):
        torch.ones(3, device="cuda").sum().item()


@pytest.fixture(scope="module")
def learnt_in_float32() -> np.ndarray:
    return learnt("fp32")


def learnt(precision: str) -> np.ndarray:
    """The train loss `[E]` at the end of an episode with a seed."""
    engine = engine_on_gpu(LEARNING, precision=precision, profile="fast", executor="vmap")
    engine.run_rollout(StaticTopology(dict.fromkeys(("r0c1",), "conv_light")))
    assert np.isfinite(engine.episode.train_loss_TE[1:]).all()
    return engine.episode.train_loss_TE[-1].copy()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_learns_what_float32_learns(precision, learnt_in_float32):
    assert learnt_in_float32.mean() < 1.9, "chance is 2.3"
    np.testing.assert_allclose(learnt(precision).mean(), learnt_in_float32.mean(), atol=0.15)


def test_our_kernels_learn_what_torchs_learn():
    spec = small_task(kernel_size=3, base_channels=4)
    found = {}
    for kernels in ("own", "torch"):
        engine = engine_on_gpu(spec, precision="bf16", executor="vmap", kernels=kernels)
        engine.run_rollout(StaticTopology(dict.fromkeys(("r0c0", "r0c2"), "conv_heavy")))
        found[kernels] = engine.episode.train_loss_TE[1:]
    np.testing.assert_allclose(found["own"], found["torch"], rtol=0.03)
    assert found["own"][-1].mean() < found["own"][0].mean()


def test_out_of_memory_says_what_to_lower():
    """The inputs alone would take 200 GB."""
    spec = small_task(train=8192, batch_size=8192, channels=3, size=32)
    line = refused(lambda: engine_on_gpu(spec, members=2048).run_rollout(WaitPolicy()))
    assert "out of memory on cuda with E=2048 members and batch size B=8192" in line
