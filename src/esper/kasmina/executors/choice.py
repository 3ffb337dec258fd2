"""Which executor serves a host: vmap where it works, loop where it does not, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

from esper.kasmina.executors.base import Executor
from esper.kasmina.executors.loop import LoopExecutor
from esper.kasmina.executors.vmap import VmapExecutor
from esper.kasmina.lifecycle import Lifecycle
from esper.kasmina.network import StackedNetwork
from esper.kasmina.rows import make_plan, whole_rows
from esper.leyline.errors import EsperError

ExecutorName = Literal["auto", "vmap", "loop"]
EXECUTOR_NAMES: Final = ("auto", "vmap", "loop")


@dataclass(frozen=True, slots=True)
class ExecutorChoice:
    """The executor that runs, and the reason for it in words."""

    executor: Executor
    reason: str


def choose_executor(
    wanted: ExecutorName, network: StackedNetwork, life: Lifecycle, x: Tensor
) -> ExecutorChoice:
    """Take the wanted executor; `auto` is vmap if the host passes a small trial with it."""
    if wanted == "loop":
        return ExecutorChoice(LoopExecutor(), "asked for")
    problem = why_not_vmap(network, life, x)
    if problem is None:
        return ExecutorChoice(VmapExecutor(), "the host passed the vmap trial")
    host = type(network.host.template).__name__
    if wanted == "vmap":
        raise EsperError(
            f"{host} cannot run under executor 'vmap' ({problem}): use executor 'auto' or 'loop'"
        )
    return ExecutorChoice(LoopExecutor(), f"{host} cannot be vmapped: {problem}")


def why_not_vmap(network: StackedNetwork, life: Lifecycle, x: Tensor) -> str | None:
    """Run two rows of bare hosts both ways on two samples; None if vmap works and agrees.

    Nothing is left behind: buffers, gradients and random generators come out as they were.
    """
    member_R = np.arange(min(2, network.members))
    table = whole_rows(member_R, np.zeros((len(member_R), len(network.slots)), dtype=np.float32))
    plan = make_plan(table, life, network.device)
    kept = {name: value.clone() for name, value in network.host.fixed.items()}
    results = []
    devices = [network.device] if network.device.type == "cuda" else []
    executors: tuple[Executor, ...] = (VmapExecutor(), LoopExecutor())
    for executor in executors:
        try:
            with torch.random.fork_rng(devices=devices):
                out = executor.run(network, x[:, :2], plan, training=False)
                trained = executor.run(network, x[:, :2], plan, training=True)
                (grad,) = torch.autograd.grad(
                    trained.square().sum(), network.host.flat_EP, materialize_grads=True
                )
        except (RuntimeError, ValueError, NotImplementedError) as error:
            if executor.name == "loop":
                raise
            return " ".join(str(error).split("\n")[0].split()) or type(error).__name__
        finally:
            for name, value in kept.items():
                network.host.fixed[name].copy_(value)
        results.append((out.detach(), grad))
    (fused, _), (plain, _) = results
    if not torch.allclose(fused, plain, rtol=1e-2, atol=1e-3, equal_nan=True):
        return f"its outputs differ from the loop's by up to {(fused - plain).abs().max():.2g}"
    return None
