"""What an engine settles at its start: each choice by its rule, with a reason that is true."""

from __future__ import annotations

import math
import os

import pytest
import torch
from torch import nn

from engine_support import small_engine
from esper.device.graphs import GraphCache
from esper.tolaria import setup
from esper.tolaria.engine_config import EngineConfig
from esper.tolaria.executor_autotune import autotune_executor
from esper.tolaria.setup import (
    _candidate_kernels,
    _input_dtype,
    allocate_batch_buffers,
    default_val_batch_size,
    make_graph_cache,
    prepare_executor,
)
from graph_support import Rerun, rerun_cache

CPU, GPU = torch.device("cpu"), torch.device("cuda")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def restored():
    """A profile is for the whole process: it goes with the test."""
    kept = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    yield
    torch.use_deterministic_algorithms(kept[0])
    torch.backends.cudnn.benchmark = kept[1]


def test_few_members_validate_more_images_at_a_time_on_a_gpu_only():
    sizes = [default_val_batch_size(members, GPU) for members in (1, 32, 64, 128, 1000)]
    assert sizes == [2048, 2048, 1024, 512, 512]
    assert default_val_batch_size(1, CPU) == 512


def test_only_hosts_of_our_own_are_fed_in_half_precision():
    population = small_engine().env.model
    assert _input_dtype(population, "bf16") is torch.bfloat16
    assert _input_dtype(population, "fp32") is torch.float32
    population.network.host.template = nn.Identity()
    assert _input_dtype(population, "bf16") is torch.float32


def test_a_cpu_has_no_buffers_for_batches():
    engine = small_engine()
    assert allocate_batch_buffers(engine.batches, CPU) is None


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_kernels_that_are_asked_for_are_the_only_ones_tried(precision):
    x = torch.zeros(1)
    for asked in ("own", "torch"):
        assert _candidate_kernels(EngineConfig(kernels=asked), precision, x) == (asked,)
    assert _candidate_kernels(EngineConfig(), precision, x) == ("own",), "one kind runs on a CPU"


@pytest.mark.parametrize("problem", [None, "no C compiler"])
def test_blocks_of_a_cpu_are_for_fast_float32_where_they_can_be_compiled(monkeypatch, problem):
    monkeypatch.setattr("esper.tolaria.setup.blocks_unsupported_reason", lambda: problem)
    x, fast = torch.zeros(1), EngineConfig(profile="fast")
    assert _candidate_kernels(fast, "fp32", x) == (("own",) if problem else ("fused",))
    assert _candidate_kernels(fast, "bf16", x) == ("own",)
    assert _candidate_kernels(EngineConfig(profile="exact"), "fp32", x) == ("own",)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_the_executor_of_a_cpu_gets_the_kernels_of_its_profile(monkeypatch, executor):
    monkeypatch.setattr("esper.tolaria.setup.blocks_unsupported_reason", lambda: None)
    for profile, kernels in (("fast", "fused"), ("exact", "own")):
        engine = small_engine(profile=profile, executor=executor)
        assert engine.env.model.choice.executor.kernels == kernels


@pytest.mark.parametrize(
    ("profile", "executor", "reason"),
    [("exact", "auto", "passed the vmap trial"), ("fast", "auto", "measured: "),
     ("fast", "loop", "requested"), ("fast", "vmap", "passed the vmap trial")],
)  # fmt: skip
def test_executors_are_timed_under_fast_and_auto_alone(profile, executor, reason):
    engine = small_engine(profile=profile, executor=executor)
    assert reason in engine.env.model.choice.reason


@pytest.mark.parametrize("members", [1, 3])
def test_large_images_on_a_cpu_are_for_loop_whatever_the_number_of_members(monkeypatch, members):
    engine = small_engine(members=members, executor="auto", profile="exact")
    assert engine.env.model.choice.executor.name == "vmap"
    batch = engine.batches.batch_size
    largest = max(math.prod(shape) for shape in engine.env.model.probe.slot_shapes)
    for limit, expected in ((batch * largest + 1, "vmap"), (batch * largest, "loop")):
        monkeypatch.setattr(setup, "LARGE_BATCH", limit)
        choice = small_engine(members=members, executor="auto", profile="exact").env.model.choice
        assert choice.executor.name == expected
    assert "large images" in choice.reason
    kept = small_engine(members=members, executor="vmap", profile="exact").env.model.choice
    assert kept.executor.name == "vmap"


def test_fused_blocks_are_preferred_where_kernels_run(monkeypatch):
    monkeypatch.setattr("esper.tolaria.setup.can_use_kernels", lambda x: True)
    x = torch.zeros(2, 3)
    assert _candidate_kernels(EngineConfig(), "bf16", x) == ("fused", "torch")
    assert _candidate_kernels(EngineConfig(kernels="fused"), "bf16", x) == ("fused",)


@pytest.mark.parametrize("kernels", ["own", "fused", "torch"])
def test_the_executor_that_runs_has_the_kernels_that_were_asked_for(kernels):
    for profile in ("exact", "fast"):
        engine = small_engine(profile=profile, kernels=kernels)
        assert engine.env.model.choice.executor.kernels == kernels


def test_a_trial_leaves_weights_and_data_as_they_were():
    engine = small_engine()
    fresh = engine.env.model.network.host.flat_EP.detach().clone()
    first, _ = next(engine.batches.step(0))
    config = EngineConfig(members=4, device="cpu", profile="fast")
    choice = prepare_executor(engine.spec, engine.env, engine.batches, None, config, CPU, "fp32")
    assert choice.reason.startswith("measured: vmap ")
    assert torch.equal(engine.env.model.network.host.flat_EP, fresh)
    assert torch.equal(next(engine.batches.step(0))[0], first)


def test_the_trial_replays_vmap_and_runs_loop_as_plans_that_change_would():
    """Replayed, loop wins without seeds, and captures at nearly every step once seeds come."""
    population, captured = small_engine().env.model, []

    class Told:
        def capture(self, work):
            captured.append(population.choice.executor.name)
            return self

        def replay(self):
            pass

    autotune_executor(population, lambda: None, CPU, recorder=Told())
    assert captured == ["vmap"]


def test_no_graphs_come_with_what_speaks_against_them():
    population = small_engine().env.model
    assert make_graph_cache("auto", population) == (
        None,
        "graphs are for CUDA devices, this is cpu",
    )
    assert make_graph_cache("off", population) == (None, "requested")


def test_graphs_tell_the_reason_of_their_owner():
    assert GraphCache(Rerun(), reason="CUDA").report().line().startswith("on (CUDA), ")
    assert rerun_cache().report().reason == "requested", "someone handed them over"


@pytest.mark.cuda
@needs_cuda
def test_on_a_gpu_engine_and_agent_have_each_a_reason_of_its_own(monkeypatch):
    monkeypatch.setitem(os.environ, "CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    from esper.simic.agent import PPOAgent
    from ppo_support import SPEC

    assert small_engine(device="cuda").graph_report().reason == "CUDA and vmap"
    assert small_engine(device="cuda", graphs="on").graph_report().reason == "requested"
    graphs = PPOAgent(SPEC, device="cuda").graphs
    assert graphs is not None
    assert graphs.report().reason == "CUDA"
