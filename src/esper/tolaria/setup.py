"""What does an engine settle before its first step? Inputs, validation batch, executor, graphs.

Each choice is a rule or a short trial, made once, and says why where people are told of it. None of
them changes what is learnt, but for the last bits: only speed and memory depend on them.

Shape letters: E members, B batch.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import torch
from torch import Tensor

from esper.device.graphs import CudaRecorder, GraphCache, reason_against_graphs
from esper.device.triton_support import can_use_kernels
from esper.kasmina.executors.base import KernelName
from esper.kasmina.executors.choice import ExecutorChoice
from esper.kasmina.fused import input_buffer
from esper.kasmina.population import Population
from esper.leyline.compute import GraphMode, Precision
from esper.tasks.spec import TaskData, TaskSpec
from esper.tolaria.data import SharedBatchIterator
from esper.tolaria.engine_config import EngineConfig
from esper.tolaria.env_state import ParallelEnvState
from esper.tolaria.executor_trial import measure_executors
from esper.tolaria.runtime import NUMBER_TYPES, autocast

Buffers = tuple[Tensor, Tensor]
"""Room for the inputs and the targets of one train batch of all members."""

VAL_BATCH: Final = 512
LARGEST_VAL_BATCH: Final = 2048
VAL_IMAGES: Final = 2**16
"""Images of all members together in one pass on a GPU."""


def default_val_batch(members: int, device: torch.device) -> int:
    """Validation images computed at a time."""
    if device.type != "cuda":
        return VAL_BATCH
    return max(VAL_BATCH, min(LARGEST_VAL_BATCH, VAL_IMAGES // members))


def input_type(population: Population, precision: Precision) -> torch.dtype:
    """What train inputs are made in: a user's host may begin with what takes no half precision."""
    host = type(population.network.host.template)
    ours = host.__module__.startswith("esper.kasmina.")
    return NUMBER_TYPES[precision if ours else "fp32"]


def train_batches(
    spec: TaskSpec,
    data: TaskData,
    config: EngineConfig,
    population: Population,
    device: torch.device,
    precision: Precision,
) -> SharedBatchIterator:
    """Each member's own batches, in the type its host is fed with, from where the data lie."""
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
        input_type(population, precision),
    )


def batch_buffers(batches: SharedBatchIterator, device: torch.device) -> Buffers | None:
    """Where every train batch is written on a GPU, so that its graph finds it; else None."""
    if device.type != "cuda":
        return None
    x, target = next(batches.step(0))
    batches.reset(0)
    return input_buffer(x.shape, x.dtype, device), torch.zeros_like(target)


def settle_executor(
    spec: TaskSpec,
    env: ParallelEnvState,
    batches: SharedBatchIterator,
    buffers: Buffers | None,
    config: EngineConfig,
    device: torch.device,
    precision: Precision,
) -> ExecutorChoice:
    """Show the population its first input; on `auto` and `fast`, time the executors."""
    population = env.model
    x, target = next(batches.step(0, buffers))
    with autocast(device, precision), torch.no_grad():
        outputs = population.forward(x)
    spec.check_outputs(tuple(outputs.shape[2:]), tuple(target.shape[2:]))
    population.check_user_blueprints()
    assert population.choice is not None, "made when the first input came"
    if config.kernels != "auto":
        population.choice.executor.kernels = config.kernels
    measured = config.executor == "auto" and config.profile == "fast"
    if measured and population.choice.executor.name == "vmap":
        replayed = reason_against_graphs(config.graphs, device, "vmap") is None
        population.choice = measure_executors(
            population,
            partial(_train_batch, env, x, target, device, precision),
            device,
            kernels_on_trial(config, precision, x),
            CudaRecorder(device) if replayed else None,
        )
    population.reset(0)
    batches.reset(0)
    return population.choice


def kernels_on_trial(
    config: EngineConfig, precision: Precision, x: Tensor
) -> tuple[KernelName, ...]:
    """Whose kernels vmap is timed with: those asked for, or all that run here."""
    if config.kernels != "auto":
        return (config.kernels,)
    return ("own", "torch") if precision != "fp32" and can_use_kernels(x) else ("own",)


def _train_batch(
    env: ParallelEnvState, x: Tensor, target: Tensor, device: torch.device, precision: Precision
) -> None:
    with autocast(device, precision, cached=False):
        env.model.train_batch(x, target, env.scaler)


def settle_graphs(
    mode: GraphMode, device: torch.device, executor: str
) -> tuple[GraphCache | None, str | None]:
    """Where batches are captured, or None and what speaks against it."""
    problem = reason_against_graphs(mode, device, executor)
    if problem is not None:
        return None, problem
    reason = "requested" if mode == "on" else "CUDA and vmap"
    return GraphCache(CudaRecorder(device), reason=reason), None
