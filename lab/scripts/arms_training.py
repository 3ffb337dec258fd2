"""Trains a network of a problem of the duel with the step of grow's trainers, and what arms add.

On a GPU a batch is captured and replayed, where the trainers would do so.
"""

from __future__ import annotations

import contextlib
import copy
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

from duel_contenders import count, widest
from duel_problems import Part, Problem
from esper.device.graphs import Recording
from esper.device.rng import forked_rng
from esper.device.streams import any_stream
from esper.growing.recipes import RATES, TRANSFORMER_RATE, WEIGHT_DECAY, choose_batch_size
from esper.growing.runs import Recipe
from esper.growing.trainers.augment import NONE, Augmentation
from esper.growing.trainers.average import named_state
from esper.growing.trainers.data import Samples
from esper.growing.trainers.determinism import deterministic_kernels, tolerate_others
from esper.growing.trainers.job import Job
from esper.growing.trainers.kind import PLAIN, Kind
from esper.growing.trainers.kinds import Kinds
from esper.growing.trainers.lanes import CudaMachine
from esper.growing.trainers.program import Capture, Program
from esper.growing.trainers.task import Task
from esper.kasmina.tracing import Inputs

HALF_LIVES: Final = 50
"""Of the moving average, in a run."""
MOMENTS: Final = 20
"""Weights that `swa` averages, and batches from which it estimates BatchNorm's statistics."""
TIMED: Final = 1.0
"""Most seconds of the timing that tells how many batches fit; it does not count."""


@dataclass(frozen=True, slots=True)
class Held(Recipe):
    """A recipe whose rate is held from a share of the run on."""

    since: float = 1.0
    share: float = 0.0
    """Of the peak rate; 0: the rate stays as it is then."""

    def rate(self, batch: int) -> float:
        """Learning rate at a batch."""
        first = round(self.since * self.batches)
        if batch >= first and self.share:
            return self.share * self.lr
        return Recipe.rate(self, min(batch, first))


class Average:
    """An average of the weights and float buffers of a network."""

    def __init__(self, network: nn.Module) -> None:
        self._values = _floats(network)
        self._held = [value.clone() for value in self._values]

    @torch.no_grad()
    def add(self, weight: float) -> None:
        """Move it towards the weights as they are."""
        torch._foreach_lerp_(self._held, self._values, weight)

    def network(self, of: nn.Module) -> nn.Module:
        """A copy of the network with the averaged weights."""
        made = copy.deepcopy(of)
        for value, held in zip(_floats(made), self._held, strict=True):
            value.copy_(held)
        return made


def _floats(network: nn.Module) -> list[Tensor]:
    return [value.detach() for value in named_state(network).values() if value.is_floating_point()]


class Taught(nn.Module):
    """Outputs of a student, and beside them those of its teacher."""

    def __init__(self, student: nn.Module, teach: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.student, self._teach = student, teach

    def forward(self, x: Tensor, known: Tensor | None = None) -> Tensor:
        """`known`: outputs of the teacher, where they were computed before."""
        return torch.cat([self.student(x), self._teach(x) if known is None else known], -1)


def loss_of(outputs: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Cross-entropy; with a temperature half of it, and half the divergence from the teacher."""
    outputs, targets = outputs.flatten(0, -2), targets.flatten()
    if not temperature:
        return F.cross_entropy(outputs, targets)
    student, teacher = outputs.chunk(2, -1)
    soft, wanted = (F.log_softmax(one / temperature, -1) for one in (student, teacher))
    divergence = F.kl_div(soft, wanted, reduction="batchmean", log_target=True)
    return 0.5 * F.cross_entropy(student, targets) + 0.5 * temperature**2 * divergence


@torch.no_grad()
def outputs_of(network: nn.Module, x: Tensor) -> Tensor:
    """Outputs in eval mode, without a gradient."""
    return network.eval()(x)  # type: ignore[no-any-return]


class Run:
    """A training under way; by replays of its captured batch, where its kind can be captured."""

    def __init__(self, program: Program, capture: Capture | None, half_life: float) -> None:
        """`half_life`: batches, of a moving average; 0: none."""
        self.program = program
        self._recording: Recording | None = None
        self.average = Average(program.network) if half_life else None
        self._weight = 1.0 - 0.5 ** (1.0 / half_life) if half_life else 0.0
        if capture is not None and program.kind.captured:
            self._feed = feed = program.make_feed()
            feed.ready(0)
            self._with_average(partial(program.step_static, feed))  # warms up, and counts
            program.trained = 1
            self._recording = program.record(
                feed, lambda work: capture(partial(self._with_average, work))
            )

    def _with_average(self, work: Callable[[], None]) -> None:
        work()
        if self.average is not None:
            self.average.add(self._weight)

    def step(self) -> None:
        """Train on the next batch."""
        if self._recording is None:
            self._with_average(self.program.step_eager)
            return
        self._feed.ready(self.program.trained)
        self._recording.replay()
        self.program.trained += 1

    def close(self) -> nn.Module:
        """Free the graph and its memory; the network as it is."""
        _wait(self.program.device)
        if isinstance(self._recording, torch.cuda.CUDAGraph):
            self._recording.reset()
        self.program.optimizer.zero_grad()
        return self.program.network


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Pace(NamedTuple):
    """How a kind of network trains: seconds until its first batch is done, and of each other."""

    kind: Kind
    start: float
    batch: float


class Trained(NamedTuple):
    """A network at the end of an arm, the same without averaging, and batches."""

    network: nn.Module
    last: nn.Module
    batches: int


@dataclass(eq=False)
class Bench:
    """One problem with one seed: all that arms have in common."""

    problem: Problem
    parts: list[Part]
    seed: int
    seconds: float
    device: torch.device
    paces: dict[tuple[object, ...], Pace]
    """Measured once for all seeds, so that arms that cost the same train as long."""
    began: float = 0.0

    def __post_init__(self) -> None:
        self.x, self.y = (part.to(self.device) for part in self.parts[0])
        if self.device.type == "cuda" and self.x.dim() == 4:
            self.x = self.x.contiguous(memory_format=torch.channels_last)
        _wait(self.device)
        self._machine = CudaMachine(self.device, 1) if self.device.type == "cuda" else None
        self._capture = None if self._machine is None else self._machine.capture
        self.width = widest(self.problem, self.problem.depths[0])
        levels = self.problem.augments
        self.augment = levels[-2] if len(levels) > 1 else NONE
        self.captured = True

    def now(self) -> float:
        """On a CPU, seconds that this thread computed: others may use the machine as well."""
        return time.thread_time() if self.device.type == "cpu" else time.monotonic()

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """The settings of grow's trainers, on a stream that can be captured."""
        lane = contextlib.nullcontext() if self._machine is None else self._machine.on(0)
        with forked_rng(0, self.device), deterministic_kernels(self.device), any_stream(), lane:
            yield

    def task(self, known: Tensor | None, taught: bool) -> Task:
        """Data and loss; `known`: outputs of the teacher for all samples."""
        values = [self.x] if known is None else [self.x, known]
        inputs = Inputs.of(Taught(nn.Identity(), nn.Identity()), tuple(v[:2].cpu() for v in values))
        loss = partial(loss_of, temperature=(2.0 if self.problem.tokens else 4.0) * taught)
        samples, amp = Samples(values, self.y), self.device.type == "cuda"
        metric: Any = None  # the task judges nothing here
        return Task(inputs, samples, samples, loss, metric, self.device, amp)

    def recipe(self, batches: int, since: float = 1.0, share: float = 0.0) -> Recipe:
        """What all arms have in common."""
        rate, size = RATES["adamw"], choose_batch_size(None, len(self.x))
        return Held("adamw", TRANSFORMER_RATE if self.problem.tokens else rate,
                    WEIGHT_DECAY["adamw"], 1.0, size, batches, augment=self.augment, since=since,
                    share=share)  # fmt: skip

    def train(self, width: int, seed: int, until: float, *, ema: bool = False, swa: bool = False,
              since: float = 1.0, share: float = 0.0, teacher: nn.Module | None = None
              ) -> Trained:  # fmt: skip
        """Train a network so that the arm has then taken so many seconds."""

        def build() -> nn.Module:
            with forked_rng(seed):
                made = self.problem.make(width, self.problem.depths[0])
            return made if teacher is None else Taught(made, partial(outputs_of, teacher))

        with self.computing():
            known = None
            if teacher is not None and self.augment == NONE:
                known = torch.cat(
                    [outputs_of(teacher, x).float() for x in torch.split(self.x, 1024)]
                )
            task, job = self.task(known, teacher is not None), partial(Job, 0, build, seed=seed)
            key = (self.problem.name, width, ema, 0 if teacher is None else count(teacher))
            if key not in self.paces:
                stopped = self.now()
                self.paces[key] = self._measure(job(recipe=self.recipe(2000)), task, ema)
                self.began += self.now() - stopped  # the clock stood still
            kind, start, batch = self.paces[key]
            left = self.began + until - self.now() - start - (MOMENTS / 2 * batch if swa else 0.0)
            batches = max(MOMENTS, int(left / batch))
            program = Program(job(recipe=self.recipe(batches, since, share)), task, kind)
            with tolerate_others(not kind.bitwise):
                run = Run(program, self._capture, batches / HALF_LIVES if ema else 0.0)
                mean = self._advance(run, batches, since if swa else 1.0)
            last, average = run.close(), mean or run.average
            found = last if average is None else average.network(last)
            if mean is not None:
                self._estimate(found, program)
            _wait(self.device)
        self.captured = kind.captured
        if isinstance(found, Taught):
            found = last = found.student
        return Trained(found, last, batches)

    def _advance(self, run: Run, batches: int, since: float) -> Average | None:
        """Train to the end; the mean of the weights at some moments from a share of the run on."""
        mean, seen, span = None, 0, (1.0 - since) * batches
        while run.program.trained < batches:
            run.step()
            passed = run.program.trained - since * batches
            if span and passed >= span * (seen + 1) / MOMENTS - 1e-6:
                mean, seen = mean or Average(run.program.network), seen + 1
                mean.add(1.0 / seen)
        return mean

    def _measure(self, job: Job, task: Task, ema: bool) -> Pace:
        """Time some batches of a run that is thrown away."""
        kind, slices, each = PLAIN, list[float](), 5
        if self._capture is not None:
            kind, each = Kinds(task, self._capture).of(job.build(), job), 50
        with tolerate_others(not kind.bitwise):
            began = self.now()
            run = Run(Program(job, task, kind), self._capture, 100.0 if ema else 0.0)
            run.step()
            _wait(self.device)
            start = now = self.now()
            while len(slices) < 3 or now - start < min(TIMED, 0.1 * self.seconds):
                for _ in range(each):
                    run.step()
                _wait(self.device)
                slices.append(self.now() - now)
                now = self.now()
            run.close()
        return Pace(kind, start - began, statistics.median(slices) / each)

    def _estimate(self, network: nn.Module, program: Program) -> None:
        """Estimate the statistics of BatchNorm again."""
        norms = [part for part in network.modules() if isinstance(part, _BatchNorm)]
        for part in norms:
            part.reset_running_stats()
            part.momentum = None  # the mean of all batches
        augment = Augmentation(self.augment, self.seed, self.device)
        source = program.task.batches(program.recipe.batch_size, self.seed)
        network.train()
        for number in range(MOMENTS if norms else 0):
            (x,), _ = source.batch(number)
            with torch.no_grad(), program.precision():
                network(x if self.augment == NONE else augment(x, number))
