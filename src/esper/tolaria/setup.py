"""Choices made once before the first step: inputs, validation batch size, executor, graphs.

They affect speed and memory, and results only in the last bits.

Shape letters: E members, B batch.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Final

import torch
from torch import Tensor

from esper.device.graphs import CudaRecorder, GraphCache, reason_against_graphs
from esper.device.selection import parse_device
from esper.device.shards import join_shards
from esper.device.triton_support import can_use_kernels
from esper.kasmina.executors.choice import ExecutorChoice
from esper.kasmina.executors.loop import LoopExecutor
from esper.kasmina.ops.block_cpu import unsupported_reason as blocks_unsupported_reason
from esper.kasmina.ops.fused import input_buffer
from esper.kasmina.population import Population
from esper.leyline.compute import GraphMode, KernelName, Precision
from esper.tasks.spec import TaskSpec
from esper.tasks.task_data import TaskData
from esper.tolaria.data import SharedBatchIterator
from esper.tolaria.engine_config import EngineConfig
from esper.tolaria.env_state import ParallelEnvState
from esper.tolaria.executor_autotune import autotune_executor
from esper.tolaria.runtime import DTYPES, autocast

Buffers = tuple[Tensor, Tensor]
"""Inputs and targets of one train batch of all members."""

VAL_BATCH: Final = 512
MAX_VAL_BATCH: Final = 2048
VAL_IMAGES: Final = 2**16
"""Images per validation pass on a GPU, over all members."""
LARGE_BATCH: Final = 2**17
"""Numbers of a member's batch at a slot from which on a CPU loop is faster than vmap, whatever the
number of members; below it vmap is, for 4 members or more (docs/performance.md)."""

LOOP_PATIENCE: Final = 3
"""Batches that the loop executor computes with a plan before `auto` captures it: a capture costs
about as much time as its first replays gain."""


def choose_device(config: EngineConfig) -> torch.device:
    """Device of this process; each rank of executor `sharded` has its own.

    Raises if ranks were given different members, as `esper train ppo` does under torchrun.
    """
    device = parse_device(config.device)
    if config.executor != "sharded":
        return device
    shards = join_shards(device)
    shards.require_same("members (executor 'sharded' cuts them over ranks)", str(config.member_ids))
    return shards.device


def default_val_batch_size(members: int, device: torch.device) -> int:
    """Return the default validation batch size."""
    if device.type != "cuda":
        return VAL_BATCH
    return max(VAL_BATCH, min(MAX_VAL_BATCH, VAL_IMAGES // members))


def _input_dtype(population: Population, precision: Precision) -> torch.dtype:
    """Dtype of train inputs: fp32 for user hosts, whose first layer may not support half."""
    host = type(population.network.host.template)
    ours = host.__module__.startswith("esper.kasmina.")
    return DTYPES[precision if ours else "fp32"]


def make_train_iterator(
    spec: TaskSpec,
    data: TaskData,
    config: EngineConfig,
    population: Population,
    device: torch.device,
    precision: Precision,
) -> SharedBatchIterator:
    """Build the iterator over train batches."""
    return SharedBatchIterator(
        data.train.inputs,
        data.train.labels,
        config.members,
        spec.batch_size,
        spec.batches_per_step,
        config.seed,
        device,
        data.mean.tolist() or (0.0,),
        data.std.tolist() or (1.0,),
        spec.augmentation,
        config.data_placement,
        _input_dtype(population, precision),
        population.member_ids,
    )


def allocate_batch_buffers(batches: SharedBatchIterator, device: torch.device) -> Buffers | None:
    """Allocate fixed buffers for train batches on a GPU, as CUDA graphs need; None on a CPU."""
    if device.type != "cuda":
        return None
    x, target = next(batches.step(0))
    batches.reset(0)
    return input_buffer(x.shape, x.dtype, device), torch.zeros_like(target)


def prepare_executor(
    spec: TaskSpec,
    env: ParallelEnvState,
    batches: SharedBatchIterator,
    buffers: Buffers | None,
    config: EngineConfig,
    device: torch.device,
    precision: Precision,
) -> ExecutorChoice:
    """Run a first forward pass and choose the executor; on `auto` by time (`fast`) or by rule."""
    population = env.model
    x, target = next(batches.step(0, buffers))
    with autocast(device, precision), torch.no_grad():
        outputs = population.forward(x)
    spec.check_outputs(tuple(outputs.shape[2:]), tuple(target.shape[2:]))
    population.check_user_blueprints()
    assert population.choice is not None, "set by the first forward pass"
    kernels = _candidate_kernels(config, precision, x)
    on_cpu = x.device.type == "cpu"
    if on_cpu or config.kernels != "auto" or population.choice.executor.name == "vmap":
        population.choice.executor.kernels = kernels[0]
    chosen = config.executor == "auto" and population.choice.executor.name == "vmap"
    if chosen and config.profile == "exact" and on_cpu and _has_large_images(population, x):
        reason = "large images on a CPU; 'vmap' is for small ones"
        population.choice = ExecutorChoice(LoopExecutor(kernels[0]), reason)
    elif chosen and config.profile == "fast":
        replayed = reason_against_graphs(config.graphs, device) is None
        population.choice = autotune_executor(
            population,
            partial(_train_batch, env, x, target, device, precision),
            device,
            kernels,
            CudaRecorder(device) if replayed else None,
        )
    population.reset(0)
    batches.reset(0)
    return population.choice


def _has_large_images(population: Population, x: Tensor) -> bool:
    """Whether a member's batch at a slot is so large that vmap is slower on a CPU.

    The number of members is no part of it: under `exact` a member's numbers do not depend on it.
    """
    assert population.probe is not None, "set by the first forward pass"
    images = [shape for shape in population.probe.slot_shapes if len(shape) == 3]
    return any(x.shape[1] * math.prod(shape) >= LARGE_BATCH for shape in images)


def _candidate_kernels(
    config: EngineConfig, precision: Precision, x: Tensor
) -> tuple[KernelName, ...]:
    """Kernels to try with vmap, the preferred first: those asked for, or all that run here."""
    if config.kernels != "auto":
        return (config.kernels,)
    if precision != "fp32":
        return ("fused", "torch") if can_use_kernels(x) else ("own",)
    # The blocks of a CPU are compiled by its own compiler: not for `exact`.
    blocks = (
        x.device.type == "cpu" and config.profile == "fast" and blocks_unsupported_reason() is None
    )
    return ("fused",) if blocks else ("own",)


def _train_batch(
    env: ParallelEnvState, x: Tensor, target: Tensor, device: torch.device, precision: Precision
) -> None:
    with autocast(device, precision, cached=False):
        env.model.train_batch(x, target, env.scaler)


def make_graph_cache(
    mode: GraphMode, population: Population
) -> tuple[GraphCache | None, str | None]:
    """Return the graph cache, or None and the reason why graphs are off."""
    device = population.device
    executor = "vmap" if population.network.shards is None else "sharded"
    if population.choice is not None:
        executor = population.choice.executor.name
    problem = reason_against_graphs(mode, device, executor)
    if problem is not None:
        return None, problem
    reason = "requested" if mode == "on" else f"CUDA and {executor}"
    # A graph of the loop executor is valid for one plan, alphas included.
    patience = LOOP_PATIENCE if executor == "loop" and mode == "auto" else 1
    return GraphCache(CudaRecorder(device), reason=reason, patience=patience), None
