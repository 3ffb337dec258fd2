"""Contenders of the own-network benchmark: plain PyTorch and Esper on the same train batches.

Every contender trains on one fixed batch: data loading is not part of the comparison. All of them
use the same update rule without clipping; Esper measures gradient norms besides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from esper.kasmina import Population, PopulationConfig
from esper.kasmina.ops.kernel_scope import kernel_scope
from esper.kasmina.training.optim import OptimConfig
from esper.tolaria.batch_ops import TrainTotals, process_train_batch
from esper.tolaria.runtime import autocast, synchronize_device
from esper.tolaria.setup import make_graph_cache

PlainWay = Literal["eager", "graph", "compile"]
RATE = 0.01
MOMENTUM = 0.9


class Contender(Protocol):
    """Something that trains."""

    def train(self, batches: int) -> None:
        """Train on the batch this many times; need not wait for the device."""
        ...


@dataclass(frozen=True)
class Case:
    """A network and its batch."""

    name: str
    build: Callable[[], nn.Module]
    blueprint: str
    """Blueprint of the seed, in the middle slot."""
    x: Tensor
    """`[B, ...]`, on the CPU."""
    target: Tensor
    optimizer: Literal["sgd", "adamw"] = "sgd"


class Plain:
    """Plain PyTorch: channels last, autocast, the fused optimiser; several networks in turn."""

    def __init__(self, case: Case, device: torch.device, way: PlainWay, networks: int = 1) -> None:
        self.device, on_gpu = device, device.type == "cuda"
        self.x, self.target = case.x.to(device), case.target.to(device)
        self.models = [case.build().to(device).train() for _ in range(networks)]
        if self.x.ndim == 4:
            self.x = self.x.contiguous(memory_format=torch.channels_last)
            self.models = [_channels_last(m) for m in self.models]
        self.optimizers = [_optimizer(m, case.optimizer, on_gpu) for m in self.models]
        if way == "compile":
            self.models = [torch.compile(m) for m in self.models]  # type: ignore[misc]
        self.graph: torch.cuda.CUDAGraph | None = None
        if way == "graph":
            self._capture()

    def train(self, batches: int) -> None:
        for _ in range(batches):
            if self.graph is not None:
                self.graph.replay()
            else:
                self._batch()

    def _batch(self) -> None:
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            optimizer.zero_grad(set_to_none=True)
            with autocast(self.device, "auto", cached=False):
                logits = model(self.x)
                loss = F.cross_entropy(logits.flatten(0, -2), self.target.flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    def _capture(self) -> None:
        side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(3):
                self._batch()
        torch.cuda.current_stream(self.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._batch()
        self.graph = graph


def _channels_last(model: nn.Module) -> nn.Module:
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _optimizer(model: nn.Module, kind: str, on_gpu: bool) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    if kind == "adamw":
        return torch.optim.AdamW(
            parameters, RATE, weight_decay=0.0, fused=on_gpu, capturable=on_gpu
        )
    return torch.optim.SGD(parameters, RATE, MOMENTUM, fused=on_gpu)


class Grown:
    """A population, perhaps with one seed in TRAINING in each member."""

    def __init__(
        self,
        case: Case,
        device: torch.device,
        executor: Literal["vmap", "loop"],
        members: int = 1,
        seed: bool = False,
    ) -> None:
        self.device = device
        self.population = _population(case, device, executor, members, seed)
        expand = (members, *case.x.shape)
        self.x = case.x.to(device).expand(expand).contiguous()
        self.target = case.target.to(device).expand(members, *case.target.shape).contiguous()
        slots = len(self.population.slots)
        self.totals = TrainTotals.zeros(members, slots, self.population.device)
        with self._autocast(), torch.no_grad():
            self.population.forward(self.x[:, :2])  # picks the executor
        self.graphs, self.graphs_off = make_graph_cache("auto", self.population)

    def _autocast(self) -> AbstractContextManager[None]:
        return autocast(self.device, "auto", cached=False)

    def train(self, batches: int) -> None:
        for _ in range(batches):
            with self._autocast():
                process_train_batch(
                    self.population, self.x, self.target, self.totals, graphs=self.graphs
                )

    def line(self) -> str:
        """How it ran."""
        choice = self.population.choice
        assert choice is not None
        report = self.graphs_off if self.graphs is None else self.graphs.report().line()
        return f"executor {choice.executor.name}, graphs {report}"


def _population(
    case: Case, device: torch.device, executor: Literal["vmap", "loop"], members: int, seed: bool
) -> Population:
    optim = OptimConfig(kind=case.optimizer, momentum=MOMENTUM, weight_decay=0.0, clip_norm=None)
    config = PopulationConfig(executor=executor, optim=optim, host_lr=RATE, seed_lr=RATE)
    specs = case.build().injection_specs()  # type: ignore[operator]
    slot = specs[len(specs) // 2].slot_id
    population = Population(
        case.build, [slot], [case.blueprint], members, device=device, config=config
    )
    if seed:
        population.germinate(np.arange(members), slot, case.blueprint)
        population.begin_step()
    return population


def flops_ratio(case: Case) -> float:
    """Training FLOPs with one seed in TRAINING over those without, counted on the CPU."""
    device, counts = torch.device("cpu"), []
    for seed in (False, True):
        population = _population(case, device, "loop", 1, seed)
        x, target = case.x[None, :2], case.target[None, :2]
        with kernel_scope(torch_convolutions=True):
            population.train_batch(x, target)
            with FlopCounterMode(display=False) as counter:
                population.train_batch(x, target)
        counts.append(counter.get_total_flops())
    return float(counts[1] / counts[0])


def take_turns(
    contenders: Mapping[str, Contender], device: torch.device, rounds: int, batches: int
) -> dict[str, list[tuple[float, float]]]:
    """Milliseconds a batch (wall, CPU) of each contender in each round, interleaved."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            synchronize_device(device)
            began, cpu_began = perf_counter(), process_time()
            contender.train(batches)
            synchronize_device(device)
            wall, cpu = perf_counter() - began, process_time() - cpu_began
            found[name].append((1000 * wall / batches, 1000 * cpu / batches))
    return found
