"""One run on one device: its network, its optimiser, and what a batch does to them."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from esper.device.bfloat16 import bfloat16_passes
from esper.growing.runs import How, Recipe
from esper.growing.trainers.job import Job, Outcome, Running
from esper.growing.trainers.task import Task
from esper.leyline.errors import EsperError
from esper.leyline.streams import GOLDEN, stream_seed
from esper.storage.atomic import write_atomic

MOMENTUM: Final = 0.9
"""Of SGD."""
POINTS: Final = 20
"""Points of the curve of a full run."""


def make_optimizer(
    network: nn.Module, recipe: Recipe, device: torch.device
) -> torch.optim.Optimizer:
    """The optimiser of a recipe; on a GPU its rate is a tensor, so that it can be captured."""
    cuda = device.type == "cuda"
    params = [p for p in network.parameters() if p.requires_grad]
    lr: Any = torch.tensor(recipe.lr, device=device) if cuda else recipe.lr
    decay = recipe.weight_decay
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(params, lr=lr, momentum=MOMENTUM, weight_decay=decay, fused=True)
    return torch.optim.AdamW(params, lr=lr, weight_decay=decay, fused=True, capturable=cuda)


class Program:
    """A run under way."""

    def __init__(self, job: Job, task: Task) -> None:
        self.job, self.task = job, task
        self.recipe, self.device = job.recipe, task.device
        self.network = job.build().to(task.device)
        self.params = [p for p in self.network.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(self.network, job.recipe, task.device)
        self.batches = task.batches(job.recipe.batch_size, job.seed)
        self.trained = 0
        self.seconds = 0.0
        self.finite = True
        self.curve: list[tuple[int, float]] = []
        self.draws = Generators(job.seed, task.device)
        self._every = max(1, job.recipe.batches // POINTS)
        if job.checkpoint is not None and job.checkpoint.exists():
            self.load(job.checkpoint)

    @property
    def done(self) -> bool:
        """Whether there is nothing left to train."""
        return not self.finite or self.trained >= self.recipe.batches

    @property
    def running(self) -> Running:
        """Where it is."""
        return Running(self.job.number, self.trained, self.recipe.batches)

    # ---- training -------------------------------------------------------------------------

    def run_eager(self) -> None:
        """Train on the next batch."""
        number = self.trained
        values, targets = self.batches.batch(number)
        self.draws.begin(number)
        self.set_rate(number)
        loss = self.update(values, targets)
        self.draws.end()
        self.trained = number + 1
        if self.trained % self._every == 0 or self.done:
            self.note_loss(float(loss))  # SYNC: 20 times a run

    def set_rate(self, number: int) -> None:
        """Set the learning rate of a batch."""
        rate = self.recipe.rate(number)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def update(self, values: list[Tensor], targets: Tensor) -> Tensor:
        """Forward, backward, clipping, optimiser; returns the loss, detached."""
        with self._precision():
            outputs = self.task.outputs(self.network, values)
        loss = self.task.loss(outputs.float(), targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.recipe.clip:
            nn.utils.clip_grad_norm_(self.params, self.recipe.clip, foreach=True)
        self.optimizer.step()
        return loss.detach()

    @contextlib.contextmanager
    def _precision(self) -> Iterator[None]:
        if not self.task.amp:
            yield
            return
        kind = self.device.type
        # Casts are not cached: what is captured in a CUDA graph must make them again.
        with bfloat16_passes(kind), torch.autocast(kind, torch.bfloat16, cache_enabled=False):
            yield

    def note_loss(self, loss: float) -> None:
        """Keep a point of the curve; a run whose loss is not finite is over."""
        self.finite = self.finite and math.isfinite(loss)
        self.curve.append((self.trained, loss))

    # ---- its end --------------------------------------------------------------------------

    def outcome(self, how: How) -> Outcome:
        """Judge it as it is."""
        began = time.monotonic()
        score, loss, finite = self.task.judge(self.network)
        judging = time.monotonic() - began
        weights = {name: value.detach().cpu() for name, value in self.network.state_dict().items()}
        return Outcome(
            number=self.job.number,
            trained=self.trained,
            finite=self.finite and finite,
            score=score if self.finite else math.nan,
            loss=loss,
            curve=tuple(self.curve),
            seconds=self.seconds,
            judging=judging,
            how=how,
            weights=weights,
        )

    # ---- checkpoints ----------------------------------------------------------------------

    def save(self) -> None:
        """Write everything that a continued run needs, atomically."""
        from safetensors.torch import save

        if self.job.checkpoint is None:
            return
        tensors = {f"network.{n}": v for n, v in _named_state(self.network).items()}
        for place, param in enumerate(self.params):
            for name, value in self.optimizer.state.get(param, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{place}.{name}"] = value
        curve = torch.tensor(self.curve, dtype=torch.float64).reshape(-1, 2)
        tensors["curve"] = curve
        tensors["position"] = torch.tensor([self.trained, self.seconds], dtype=torch.float64)
        whole = {n: v.detach().cpu().clone().contiguous() for n, v in tensors.items()}
        write_atomic(self.job.checkpoint, save(whole))

    def load(self, path: Path) -> None:
        """Continue from a checkpoint of the same run."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            tensors = load_file(str(path))
            own = _named_state(self.network)
            with torch.no_grad():
                for name, value in own.items():
                    value.copy_(tensors[f"network.{name}"])
            trained, self.seconds = tensors["position"].tolist()
            curve = tensors["curve"].tolist()
        except (SafetensorError, KeyError, RuntimeError, ValueError, OSError) as error:
            raise EsperError(
                f"{path}: not the state of this run ({str(error).splitlines()[0]}); remove the "
                f"file, and the run is trained from its start"
            ) from error
        self.trained, self.curve = int(trained), [(int(at), loss) for at, loss in curve]
        self.finite = all(math.isfinite(loss) for _, loss in self.curve)
        for place, param in enumerate(self.params):
            prefix = f"optimizer.{place}."
            held = {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}
            if held:
                steps_on_cpu = self.device.type == "cpu"
                self.optimizer.state[param] = {
                    n: v if n == "step" and steps_on_cpu else v.to(self.device)
                    for n, v in held.items()
                }


def _named_state(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, tied ones once; buffers that are not saved included."""
    return dict((*network.named_parameters(), *network.named_buffers()))


class Generators:
    """The global generators that a network may draw from, seeded for each batch of a run.

    What is drawn depends on the run and the number of the batch alone.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = stream_seed(seed, "run", "draws")
        self._torch = [torch.default_generator]
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            self._torch.append(torch.cuda.default_generators[index])
        self.host_draws: bool | None = None
        """Whether it draws from Python's or numpy's generators; None: not known yet."""

    def begin(self, number: int) -> None:
        """Seed them for a batch."""
        seed = (self._seed + number * GOLDEN) % 2**63
        for generator in self._torch:
            generator.manual_seed(seed)
        if self.host_draws is not False:
            random.seed(seed)
            np.random.seed(seed % 2**32)
            self._before = _host_state()

    def end(self) -> None:
        """Find out, after the first batch, which of them are used."""
        if self.host_draws is None:
            self.host_draws = _host_state() != self._before


def _host_state() -> tuple[object, ...]:
    """State of Python's and numpy's generators."""
    return random.getstate(), str(np.random.get_state(legacy=False))
