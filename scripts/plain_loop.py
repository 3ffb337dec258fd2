"""Baseline for steps without seeds: plain torch modules trained in a loop.

The same hosts as plain modules (`to_plain`), each with a torch optimizer, the same number of
batches and validation samples, all in fp32 whatever the engines use. No telemetry, policy or
governor: the minimum of a script without Esper. It alternates with the timed engines, so that
background load hits both.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter, process_time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina.population import Population
from esper.leyline.errors import EsperError
from esper.tasks.spec import OptimSettings, TaskSpec
from esper.tasks.task_data import TaskData, TaskPart
from esper.tolaria.runtime import synchronize_device
from timed_engine import StepTimings


class PlainLoop:
    """Plain hosts trained one after the other."""

    def __init__(self, population: Population, spec: TaskSpec, data: TaskData) -> None:
        """Copies the population's weights. `data`: with the validation samples to use."""
        if data.kind == "tokens":
            raise EsperError(f"task {spec.name}: the plain loop is for images and vectors")
        self.spec, self.device = spec, population.network.device
        members = range(population.members)
        self.hosts = [population.member(e).to_plain().train() for e in members]
        self.optimizers = [_optimizer(host, spec.optim) for host in self.hosts]
        self._train = self._on_device(data.train)
        self._validation = [self._on_device(part) for part in (data.val_control, data.val_score)]
        shape = (-1, *[1] * (len(spec.input_shape) - 1))
        self._mean = torch.from_numpy(data.mean).float().view(shape).to(self.device)
        self._std = torch.from_numpy(data.std).float().view(shape).to(self.device)
        self._order = torch.Generator().manual_seed(0)

    def _on_device(self, part: TaskPart) -> tuple[Tensor, Tensor]:
        inputs, labels = (torch.from_numpy(array) for array in (part.inputs, part.labels))
        return inputs.to(self.device), labels.to(self.device)

    def time_steps(self, steps: int) -> StepTimings:
        """Time steps of all hosts."""
        each = []
        synchronize_device(self.device)
        cpu_began = process_time()
        for _ in range(steps):
            began = perf_counter()
            for host, optimizer in zip(self.hosts, self.optimizers, strict=True):
                self._step(host, optimizer)
            synchronize_device(self.device)
            each.append(perf_counter() - began)
        cpu, hosts = process_time() - cpu_began, steps * len(self.hosts)
        return StepTimings(sum(each), cpu, tuple(each), {}, {}, hosts, hosts)

    def _step(self, host: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Training batches, then both validation parts."""
        count, clip = self.spec.batch_size, self.spec.optim.clip_norm
        inputs, labels = self._train
        for _ in range(self.spec.batches_per_step):
            chosen = torch.randint(len(inputs), (count,), generator=self._order).to(self.device)
            loss = F.cross_entropy(host(self._normalised(inputs[chosen])), labels[chosen])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            if clip is not None:
                nn.utils.clip_grad_norm_(host.parameters(), clip)
            optimizer.step()
        with torch.no_grad():
            for images, targets in self._validation:
                for first in range(0, len(images), count):
                    part = slice(first, first + count)
                    logits = host(self._normalised(images[part]))
                    logits.argmax(dim=-1).eq(targets[part]).sum()

    def _normalised(self, inputs: Tensor) -> Tensor:
        return (inputs.float() - self._mean) / self._std


def _optimizer(host: nn.Module, settings: OptimSettings) -> torch.optim.Optimizer:
    """The task's update rule as a torch optimizer."""
    parameters: Sequence[nn.Parameter] = list(host.parameters())
    if settings.kind == "adamw":
        return torch.optim.AdamW(
            parameters,
            settings.host_lr,
            settings.betas,
            settings.eps,
            settings.weight_decay,
        )
    return torch.optim.SGD(
        parameters,
        settings.host_lr,
        settings.momentum,
        weight_decay=settings.weight_decay,
        nesterov=settings.nesterov,
    )
