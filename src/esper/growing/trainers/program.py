"""One run on one device: its network, its optimiser, and what a batch does to them."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from esper.device.bfloat16 import bfloat16_passes
from esper.device.graphs import Recording
from esper.growing.runs import How
from esper.growing.trainers.augment import NONE, Augmentation
from esper.growing.trainers.average import Average, named_state
from esper.growing.trainers.data import Batch, ResidentOrder, StreamReader
from esper.growing.trainers.determinism import tolerate_others
from esper.growing.trainers.draws import Generators, KeyedDraws, may_draw_on_host
from esper.growing.trainers.feeds import Feed, HostFeed, ResidentFeed
from esper.growing.trainers.job import Job, Outcome, Running
from esper.growing.trainers.kind import PLAIN, Kind, gather, laid_out
from esper.growing.trainers.optimizer_state import Kept, as_state
from esper.growing.trainers.task import Task
from esper.leyline.errors import EsperError
from esper.storage.atomic import write_atomic

POINTS: Final = 20
"""Points of the curve of a full run."""
CHECKED: Final = 256
"""Most batches after which the loss is looked at."""
NEARLY: Final = 0.9
"""Share of a run after which it is not judged any more before its end."""

OWN_STATE: Final = "optimizer/"
"""Before the names of what a user's optimiser keeps, in a checkpoint."""

Capture = Callable[[Callable[[], None]], Recording]
"""Captures work on the current CUDA stream without running it."""


class Program:
    """The training of a run: network, optimiser, batches and random numbers, and how far it is."""

    def __init__(
        self,
        job: Job,
        task: Task,
        kind: Kind = PLAIN,
        network: nn.Module | None = None,
        resume: bool = True,
    ) -> None:
        """`network`: what `job.build` made, if it was called before."""
        self.job, self.task, self.kind = job, task, kind
        self.recipe, self.device = job.recipe, task.device
        self.network = self.place(job.build if network is None else lambda: network)
        self.params = [p for p in self.optimised.parameters() if p.requires_grad]
        # A number that a capture reads is a tensor on the device.
        static = kind.captured or task.device.type == "cuda"
        rate = torch.tensor(job.recipe.lr, device=task.device) if static else job.recipe.lr
        self.optimizer = task.own.update(self.params, job.recipe, rate)
        self.batches = task.batches(job.recipe.batch_size, job.seed)
        self.trained = 0
        self.seconds = 0.0
        self.finite = True
        self.curve: list[tuple[int, float]] = []
        self.total = torch.zeros((), device=task.device)
        """Sum of the losses since the last point of the curve."""
        self._generators = Generators(job.seed, task.device)
        self._draws_on_host = not task.is_built_in or may_draw_on_host(self.network)
        site = kind.site
        self._draws = None if site is None else KeyedDraws(job.seed, site, task.device)
        name = job.recipe.augment
        self._augment = None if name == NONE else Augmentation(name, job.seed, task.device)
        self._loss = task.training_loss(job.recipe)
        self._rates = task.own.rates(job.recipe, self.optimizer)
        self._static_rates = torch.empty(0)
        self._curve_every = max(1, job.recipe.batches // POINTS)
        self._checked = min(self._curve_every, CHECKED)
        if resume:
            self.resume()
        self.average: Average | None = None
        if job.every:
            self.average = Average(self.place(job.build), self.network, job.recipe.batches)
        self._judged = time.monotonic()

    def place(self, build: Callable[[], nn.Module]) -> nn.Module:
        """The network where it is trained."""
        network = build().to(self.device)
        if self.kind.channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return network

    @property
    def optimised(self) -> nn.Module:
        """Whose parameters the optimiser changes."""
        return self.network

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
        """Train on the next batch, and look at the loss now and then."""
        self.step_eager()
        self.add_to_average()
        if self.due:
            self.note_loss(self.trained, float(self.total))  # SYNC: every 256 batches at most
            self.restart_total()

    def add_to_average(self) -> None:
        """After a batch: take its weights into the average, now and then."""
        if self.average is not None and self.trained % self.average.every == 0:
            self.average.add()

    def step_eager(self) -> None:
        """Train on the next batch."""
        number = self.trained
        values, targets = self._eager_batch(number)
        values = self._augmented(values, number)
        if self.kind.seeded:
            self._generators.begin(number, self._draws_on_host)
        self.set_rate(number)
        self.update(values, targets, number)
        self.trained = number + 1

    def _eager_batch(self, number: int) -> Batch:
        source = self.batches
        if self.device.type == "cpu":
            return source.batch(number)
        last = self.kind.channels_last
        if isinstance(source, ResidentOrder) and source.samples.targets.device.type == "cuda":
            index, samples = source.index(number), source.samples
            targets = samples.targets.index_select(0, index)
            return [gather(value, index, last) for value in samples.values], targets
        values, targets = source.batch(number)
        moved = [laid_out(v.to(self.device, non_blocking=True), last) for v in values]
        return moved, targets.to(self.device, non_blocking=True)

    def _augmented(self, values: list[Tensor], number: int | Tensor) -> list[Tensor]:
        return values if self._augment is None else [self._augment(values[0], number)]

    def make_feed(self) -> Feed:
        """Its batches at fixed addresses, from the next one on."""
        last, train = self.kind.channels_last, self.task.train
        if isinstance(train, StreamReader) or train.targets.device.type != self.device.type:
            feed: Feed = HostFeed(self.batches, self.device, last)
        else:
            recipe, seed = self.recipe, self.job.seed
            feed = ResidentFeed(train, recipe.batch_size, seed, recipe.batches, last)
        feed.begin(self.trained)
        self._static_rates = torch.tensor(self._rates, dtype=torch.float32).to(self.device)
        return feed

    def step_static(self, feed: Feed) -> None:
        """Train on the next batch of a feed: work at fixed addresses that can be captured.

        The caller counts the batch.
        """
        values, targets = feed.batch()
        values = self._augmented(values, feed.number_1)
        torch.index_select(self._static_rates, 0, feed.number_1, out=self.optimizer.lr.view(1))
        self.update(values, targets, feed.number_1)
        feed.advance()

    def record(self, feed: Feed, capture: Capture) -> Recording:
        """Capture a batch; the same batch ran before, as a warm-up."""
        self.optimizer.zero_grad()  # gradients are allocated by the capture
        return capture(lambda: self.step_static(feed))

    def set_rate(self, number: int) -> None:
        """Set the learning rate of a batch."""
        rate = self._rates[number]
        if isinstance(self.optimizer.lr, Tensor):
            self.optimizer.lr.fill_(rate)
        else:
            self.optimizer.lr = rate

    def update(self, values: list[Tensor], targets: Tensor, number: int | Tensor) -> None:
        """Forward, backward, clipping, optimiser; adds the loss to the total."""
        loss = self.forward(values, targets, number)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.total.add_(loss.detach())

    def forward(self, values: list[Tensor], targets: Tensor, number: int | Tensor) -> Tensor:
        """The loss of a batch, by the user's training step if there is one."""
        own, task = self.task.own, self.task
        with self.precision(), self._drawing(number):
            if own.train_step is not None:
                return own.loss(task.inputs, self.network, values, targets)
            outputs = task.outputs(self.network, values)
        return self.loss(outputs.float(), targets, number)

    def loss(self, outputs: Tensor, targets: Tensor, number: int | Tensor) -> Tensor:
        """The loss of a batch; where samples are mixed, of both their targets."""
        loss = self._loss(outputs, targets)
        if self._augment is None or not self._augment.mixes:
            return loss
        kept = self._augment.kept(number).to(loss.device).squeeze(0)
        return kept * loss + (1.0 - kept) * self._loss(outputs, targets.flip(0))

    def _drawing(self, number: int | Tensor) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext() if self._draws is None else self._draws.batch(number)

    @contextlib.contextmanager
    def precision(self) -> Iterator[None]:
        """Autocast, if the task asks for it."""
        if not self.task.amp:
            yield
            return
        kind = self.device.type
        # Casts are not cached: what is captured in a CUDA graph must make them again.
        with bfloat16_passes(kind), torch.autocast(kind, torch.bfloat16, cache_enabled=False):
            yield

    @property
    def due(self) -> bool:
        """Whether the loss is looked at after the last batch."""
        return self.trained % self._checked == 0 or self._is_point(self.trained)

    @property
    def until_due(self) -> int:
        """Batches until the loss is looked at, or the weights are."""
        left = self._checked - self.trained % self._checked
        point = self._curve_every - self.trained % self._curve_every
        if self.average is not None:
            left = min(left, self.average.every - self.trained % self.average.every)
        return min(left, point, self.recipe.batches - self.trained)

    def _is_point(self, number: int) -> bool:
        return number % self._curve_every == 0 or number >= self.recipe.batches

    def restart_total(self) -> None:
        """After a point of the curve the sum of losses starts again."""
        if self._is_point(self.trained):
            self.total.zero_()

    def note_loss(self, number: int, total: float) -> None:
        """The sum of losses after a batch: a run whose loss is not finite ended there."""
        if not self.finite:
            return
        if not math.isfinite(total):
            self.finite, self.trained = False, number
        if self._is_point(number) or not self.finite:
            self.curve.append((number, total / ((number - 1) % self._curve_every + 1)))

    # ---- its end --------------------------------------------------------------------------

    def how(self, trainer: str) -> How:
        """How it is computed by a trainer."""
        precision, kind = "bfloat16" if self.task.amp else "float32", self.kind
        note = "" if trainer == "captured" else kind.note
        return How(str(self.device), trainer, precision, kind.bitwise, note)

    @property
    def wants_judging(self) -> bool:
        """Whether it is time to judge it on the way."""
        every, done = self.job.every, self.trained / self.recipe.batches
        return 0 < every <= time.monotonic() - self._judged and done < NEARLY

    def judge_on_the_way(self, how: How) -> list[Outcome]:
        """Judge it by its average, and go on; none: the average is not worth it yet."""
        settled = self.average is not None and self.average.settled() is not None
        found = replace(self.outcome(how), under_way=True) if settled else None
        self._judged = time.monotonic()
        unfit = self.job.judged and found is not None and math.isnan(found.score)
        return [] if found is None or unfit else [found]

    def outcome(self, how: How) -> Outcome:
        """Judge it as it is: before its end by its average, if it has one."""
        averaged = None if self.done or self.average is None else self.average.settled()
        network = self.network if averaged is None else averaged
        self._generators.begin(self.recipe.batches)  # some networks draw in eval mode, too
        began, score, loss, finite = time.monotonic(), math.nan, math.nan, True
        if self.job.judged:
            with tolerate_others(self.device.type == "cuda"):  # metrics need not be deterministic
                score, loss, finite = self.task.judge(network)
        judging = time.monotonic() - began
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
            weights=self.weights() if averaged is None else _copied(averaged),
        )

    def weights(self) -> dict[str, Tensor]:
        """Its state dict, on the CPU."""
        return _cpu_weights(self.network)

    # ---- checkpoints ----------------------------------------------------------------------

    def resume(self) -> None:
        """Continue from its checkpoint, if there is one."""
        path = self.job.checkpoint
        if path is not None and path.exists():
            self.load(path)

    def save(self) -> None:
        """Write everything that a continued run needs, atomically."""
        if self.job.checkpoint is None:
            return
        tensors = {f"network.{n}": self.whole(v, v) for n, v in self.held().items()}
        for place, param in enumerate(self.params):
            for name, value in self.optimizer.held(param).items():
                tensors[f"optimizer.{place}.{name}"] = self.whole(value, param)
        kept = self.optimizer.kept().saved()
        tensors |= {f"{OWN_STATE}{name}": value for name, value in kept.items()}
        tensors["curve"] = torch.tensor(self.curve, dtype=torch.float64).reshape(-1, 2)
        tensors["total"] = self.total.detach().cpu().clone()
        tensors["position"] = torch.tensor([self.trained, self.seconds], dtype=torch.float64)
        self.write(self.job.checkpoint, tensors)

    def load(self, path: Path) -> None:
        """Continue from a checkpoint of the same run."""
        from safetensors import SafetensorError

        try:
            tensors = self.read(path)
            with torch.no_grad():
                for name, value in self.held().items():
                    value.copy_(self.part(tensors[f"network.{name}"], value))
            self.total.copy_(tensors["total"])
            trained, self.seconds = tensors["position"].tolist()
            curve = tensors["curve"].tolist()
            self._load_optimizer(tensors)
        except EsperError:
            raise
        except (SafetensorError, LookupError, RuntimeError, ValueError, OSError) as error:
            raise EsperError(
                f"{path}: not the state of this run ({str(error).splitlines()[0]}); remove the "
                f"file, and the run is trained from its start"
            ) from error
        self.trained, self.curve = int(trained), [(int(at), loss) for at, loss in curve]
        self.finite = all(math.isfinite(loss) for _, loss in self.curve)

    def _load_optimizer(self, tensors: Mapping[str, Tensor]) -> None:
        for place, param in enumerate(self.params):
            prefix = f"optimizer.{place}."
            names = [n.removeprefix(prefix) for n in tensors if n.startswith(prefix)]
            if names:
                held = {n: self.part(tensors[prefix + n], param) for n in names}
                self.optimizer.restore(param, {n: as_state(v, param) for n, v in held.items()})
        own = [name for name in tensors if name.startswith(OWN_STATE)]
        if own:
            kept = {name.removeprefix(OWN_STATE): tensors[name] for name in own}
            self.optimizer.put_back(Kept.of(kept))

    def held(self) -> dict[str, Tensor]:
        """Parameters and buffers by name, tied ones once; buffers that are not saved included."""
        return named_state(self.network)

    def whole(self, value: Tensor, of: Tensor) -> Tensor:
        """A value as it is saved; `of`: the parameter or buffer that it belongs to."""
        return value.detach().cpu().clone().contiguous()

    def part(self, whole: Tensor, of: Tensor) -> Tensor:
        """What this process holds of a saved value."""
        return whole.to(self.device)

    def write(self, path: Path, tensors: dict[str, Tensor]) -> None:
        """Write a checkpoint."""
        from safetensors.torch import save

        write_atomic(path, save(tensors))

    def read(self, path: Path) -> Mapping[str, Tensor]:
        """The tensors of a checkpoint."""
        from safetensors.torch import load_file

        return load_file(str(path))


def _cpu_weights(network: nn.Module) -> dict[str, Tensor]:
    """The state dict of a network, on the CPU."""
    state = network.state_dict()
    return {name: value.detach().cpu().contiguous() for name, value in state.items()}


def _copied(network: nn.Module) -> dict[str, Tensor]:
    """The same, as they are now: the network may change."""
    return {name: value.clone() for name, value in _cpu_weights(network).items()}
