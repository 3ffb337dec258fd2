"""The engine on a GPU: the CPU's numbers, both executors, no waiting but for the transfers."""

from __future__ import annotations

import contextlib
import os

import numpy as np
import pytest
import torch

import esper.tolaria.engine as engine_module
from engine_support import Diary, histories, random_policy, small_engine, small_task
from esper.tamiyo.baselines import StaticTopology, WaitPolicy
from esper.tolaria.transfer import fetch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def exact_cublas(monkeypatch):
    monkeypatch.setitem(os.environ, "CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def on_gpu(spec=None, listener=None, **config):
    settings = {"device": "cuda", "precision": "fp32", "profile": "exact"}
    return small_engine(spec, listener, **(settings | config))


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_three_steps_agree_with_the_cpu(executor):
    spec = small_task(episode_length=3, kernel_size=3)
    policy = StaticTopology.full("conv_light", ("r0c0", "r0c2"))
    gpu, cpu = on_gpu(spec, executor=executor), small_engine(spec, executor=executor)
    gpu.run_rollout(policy)
    cpu.run_rollout(policy)
    for name in ("train_loss_TE", "loss_TE", "score_loss_TE"):
        left, right = getattr(gpu.book, name), getattr(cpu.book, name)
        np.testing.assert_allclose(left, right, rtol=1e-3, err_msg=name)


@pytest.mark.parametrize("seed", [0, 1])
def test_vmap_and_loop_agree_over_a_whole_rollout(seed):
    diaries = []
    for executor in ("vmap", "loop"):
        diary = Diary()
        engine = on_gpu(listener=diary, executor=executor, seed=seed)
        engine.run_rollout(random_policy(seed))
        diaries.append((histories(engine.book), diary))
    (fused, fused_diary), (plain, plain_diary) = diaries
    for a, b in zip(fused_diary.records, plain_diary.records, strict=True):
        assert np.array_equal(a.decision.actions.op, b.decision.actions.op)
        assert np.array_equal(a.signals.slots.stage_ES, b.signals.slots.stage_ES)
    for name in ("train_loss_TE", "loss_TE", "score_loss_TE"):
        np.testing.assert_allclose(fused[name], plain[name], rtol=5e-3, err_msg=name)


@pytest.mark.parametrize("executor", ["vmap", "loop"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_exact_is_bit_reproducible(executor, precision):
    runs = []
    for _ in range(2):
        engine = on_gpu(executor=executor, precision=precision)
        engine.run_rollout(random_policy())
        runs.append(histories(engine.book))
    for name, values in runs[0].items():
        assert np.array_equal(values, runs[1][name], equal_nan=True), name


@contextlib.contextmanager
def sync_mode(mode: str):
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@pytest.mark.parametrize("placement", ["device", "stream"])
@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_a_step_waits_for_the_device_in_its_transfer_only(executor, placement, monkeypatch):
    """Growing with random actions; the policy decides on the host, so transfer 2 has no part."""
    copies = []

    def transfer(parts):
        copies.append(len(parts))
        with sync_mode("default"):
            return fetch(parts)

    monkeypatch.setattr(engine_module, "fetch", transfer)
    spec = small_task(episode_length=14)
    engine = on_gpu(spec, executor=executor, data_placement=placement)
    policy = random_policy(3, spec)
    engine.run_rollout(policy)  # kernels, banks and moments are set up
    engine.begin_episode(policy)
    copies.clear()
    with sync_mode("error"):
        for _ in range(spec.episode_length):
            engine._step_env(policy, cut=False)
            engine.step += 1
    assert len(copies) == spec.episode_length, "one copy a step"
    assert engine.env.model.lifecycle.births_ES.sum() > 0


def test_the_check_for_waiting_can_fail():
    with sync_mode("error"), pytest.raises(RuntimeError):
        torch.ones(3, device="cuda").sum().item()


def test_streamed_data_are_the_same_data():
    runs = []
    for placement in ("device", "stream"):
        engine = on_gpu(small_task(episode_length=4), data_placement=placement)
        assert engine.batches.placement == placement
        engine.run_rollout(WaitPolicy())
        runs.append(histories(engine.book))
    for name, values in runs[0].items():
        assert np.array_equal(values, runs[1][name], equal_nan=True), name


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_learns_what_float32_learns(precision):
    spec = small_task(episode_length=25, kernel_size=3, base_channels=4)
    losses = {}
    for chosen in ("fp32", precision):
        engine = on_gpu(spec, precision=chosen, profile="fast", executor="vmap")
        engine.run_rollout(StaticTopology.full("conv_light", ("r0c1",)))
        losses[chosen] = engine.book.train_loss_TE[-1]
        assert np.isfinite(engine.book.train_loss_TE[1:]).all()
    assert losses["fp32"].mean() < 1.9, "chance is 2.3"
    np.testing.assert_allclose(losses[precision].mean(), losses["fp32"].mean(), atol=0.15)


def test_memory_stays_constant_over_a_hundred_rounds():
    spec = small_task(episode_length=6)
    engine = on_gpu(spec)
    policy = random_policy(0, spec)
    used = []
    for _ in range(100):
        engine.run_rollout(policy)
        used.append(torch.cuda.memory_reserved())
    assert used[-1] <= used[30] + 2**24, "a quarter of a MiB a round"


def test_our_kernels_learn_what_torchs_learn():
    spec = small_task(episode_length=12, kernel_size=3, base_channels=4)
    losses = {}
    for kernels in ("own", "torch"):
        engine = on_gpu(spec, precision="bf16", executor="vmap", kernels=kernels)
        engine.run_rollout(StaticTopology.full("conv_heavy", ("r0c0", "r0c2")))
        losses[kernels] = engine.book.train_loss_TE[1:]
    np.testing.assert_allclose(losses["own"], losses["torch"], rtol=0.03)
    assert losses["own"][-1].mean() < losses["own"][0].mean()


def test_out_of_memory_says_what_to_lower():
    from support import refused

    spec = small_task(train=60_000, batch_size=50_000, base_channels=64, channels=3, size=32)
    line = refused(lambda: on_gpu(spec, members=512).run_rollout(WaitPolicy()))
    assert "out of memory on cuda with E=512 members and batch size B=50000" in line
