"""Choice of the executor: vmap if the host supports it, otherwise loop."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from esper.device.rng import forked_rng
from esper.device.streams import any_stream
from esper.device.upload import to_device, upload
from esper.kasmina.executors.base import Executor
from esper.kasmina.executors.loop import LoopExecutor
from esper.kasmina.executors.vmap import VmapExecutor, vmap_module
from esper.kasmina.layers.random_layers import RowStreams, row_draws
from esper.kasmina.lifecycle.lifecycle import Lifecycle
from esper.kasmina.rows.rows import make_plan, member_rows, whole_rows
from esper.kasmina.stacked.network import StackedNetwork
from esper.leyline.compute import ExecutorName
from esper.leyline.errors import EsperError


@dataclass(frozen=True, slots=True)
class ExecutorChoice:
    """An executor, and why it was chosen."""

    executor: Executor
    reason: str


def choose_executor(
    wanted: ExecutorName, network: StackedNetwork, life: Lifecycle, x: Tensor
) -> ExecutorChoice:
    """Return the requested executor; `auto` is vmap if the host passes a small trial."""
    if wanted == "loop":
        return ExecutorChoice(LoopExecutor(), "requested")
    if wanted == "sharded":
        return _choose_sharded(network, life, x)
    problem = _vmap_failure(network, life, x)
    if problem is None:
        return ExecutorChoice(VmapExecutor(), "the host passed the vmap trial")
    host = type(network.host.template).__name__
    if wanted == "vmap":
        raise EsperError(
            f"{host} cannot run under executor 'vmap' ({problem}): use executor 'auto' or 'loop'"
        )
    return ExecutorChoice(LoopExecutor(), f"{host} cannot be vmapped: {problem}")


def _choose_sharded(network: StackedNetwork, life: Lifecycle, x: Tensor) -> ExecutorChoice:
    """Return the sharded executor; raises if the outputs of a sample depend on others.

    Batch norms do so in training, and are computed over all ranks.
    """
    from esper.kasmina.executors.sharded import ShardedExecutor

    executor, shards = ShardedExecutor(), network.shards
    assert shards is not None, "a sharded population has a sharded network"
    plan = make_plan(member_rows(life), life, network.device)
    # Every rank computes all samples it gets: the same pair in its share, once with others between.
    pair = torch.cat([x[:, :1], x[:, -1:]], dim=1)
    alone = torch.cat([pair[:, :1]] * shards.size, dim=1)
    mixed = torch.cat([pair] * shards.size, dim=1)
    with torch.no_grad():
        one = executor.run(network, alone, plan, training=False)[:, :1].float()
        among = executor.run(network, mixed, plan, training=False)[:, :1].float()
    coarse = torch.is_autocast_enabled(network.device.type)
    if not torch.allclose(one, among, rtol=1e-2, atol=5e-2 if coarse else 1e-3, equal_nan=True):
        raise EsperError(
            f"{type(network.host.template).__name__} cannot run under executor 'sharded': its "
            f"output for a sample depends on the other samples of the batch, of which every rank "
            f"computes a share; use executor 'loop'"
        )
    ranks = "1 rank" if shards.size == 1 else f"{shards.size} ranks"
    return ExecutorChoice(executor, f"requested, on {ranks}")


def seed_vmap_failure(network: StackedNetwork, slot: int, blueprint: int) -> str | None:
    """Run two rows of a bank on small activations; return why vmap fails, or None."""
    bank = network.bank(slot, blueprint)
    members_G = upload(np.array([0, network.members - 1]), network.device)
    h = to_device(network.sample_activation(slot), network.device)
    state = bank.gather(members_G, None) | bank.gather_fixed(members_G)
    try:
        bank.template.train()
        draws = row_draws(bank.site, RowStreams(members_G), slice(2))
        with forked_rng(0, network.device), torch.no_grad(), draws:
            vmap_module(bank.template, state, torch.stack([h, h]), 0)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, NotImplementedError) as error:
        return _first_line(error)
    return None


def _vmap_failure(network: StackedNetwork, life: Lifecycle, x: Tensor) -> str | None:
    """Run two rows of hosts without seeds with both executors; return why vmap fails, or None.

    Buffers, gradients and random generators are left unchanged.
    """
    member_R = np.arange(min(2, network.members))
    table = whole_rows(member_R, np.zeros((len(member_R), len(network.slots)), dtype=np.float32))
    plan = make_plan(table, life, network.device)
    kept = {name: value.clone() for name, value in network.host.fixed.items()}
    key_R = upload(member_R, network.device) if network.draws else None
    results = []
    with torch.inference_mode(False):  # the first call may come from inference mode
        sample = torch.cat(
            [x[:, :1], x[:, -1:]], dim=1
        ).clone()  # two: norms over a batch need them
    executors: tuple[Executor, ...] = (VmapExecutor(), LoopExecutor())
    for executor in executors:
        try:
            with forked_rng(0, network.device), torch.inference_mode(False), any_stream():
                out = executor.run(network, sample.clone(), plan, training=False)
                trained = executor.run(network, sample.clone(), plan, True, key_R)
                if trained.requires_grad:  # False if the whole host is frozen
                    torch.autograd.grad(
                        trained.square().sum(), network.host.flat_EP, materialize_grads=True
                    )
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, NotImplementedError) as error:
            if executor.name == "loop":
                raise
            return _first_line(error)
        finally:
            for name, value in kept.items():
                network.host.fixed[name].copy_(value)
        outs = [out, trained] if key_R is not None and network.repeatable else [out]
        results.append([o.detach().float() for o in outs])  # autocast may change the dtype
    coarse = torch.is_autocast_enabled(network.device.type)  # 8 or 11 bits of mantissa
    atol = 5e-2 if coarse else 1e-3
    for fused, plain in zip(*results, strict=True):
        if not torch.allclose(fused, plain, rtol=1e-2, atol=atol, equal_nan=True):
            return f"its outputs differ from the loop's by up to {(fused - plain).abs().max():.2g}"
    return None


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split("\n")[0].split()) or type(error).__name__
