"""Training of the arms of `compare_twin.py`.

Shape letters: E members, B batch, C H W.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor, nn

from esper.kasmina import (
    BlueprintRegistry,
    OptimConfig,
    Population,
    PopulationConfig,
    ResNetHost,
)
from esper.kasmina.blueprints.registry import Blueprint
from esper.kasmina.hosts.resnet import BasicBlock, NormName
from esper.kasmina.layers.layers import LayerScale
from esper.leyline.statistics import paired_difference
from esper.tasks.cifar_files import CifarFiles
from esper.tasks.data_locations import locate_data
from esper.tasks.statistics import channel_statistics
from esper.tasks.synthetic_images import SyntheticImages
from esper.tasks.task_data import TaskData, TaskPart
from esper.tolaria.batch_ops import TrainTotals, process_train_batch
from esper.tolaria.data import SharedBatchIterator
from esper.tolaria.device_info import describe_device
from esper.tolaria.runtime import autocast, choose_precision, parse_device
from esper.tolaria.setup import make_graph_cache

if TYPE_CHECKING:
    from compare_twin import CompareTwin

CLASSES: Final = 10
WARM_UP: Final = 0.05
"""Share of training in which the rate rises."""
CHUNK: Final = 10
"""Batches at one learning rate."""
TEST_BATCH: Final = 1000


class FreshBlock(nn.Module):
    """A block of the stage with fresh weights, at the scale at which a twin starts."""

    def __init__(self, width: int, norm: NormName) -> None:
        super().__init__()
        self.block = BasicBlock(width, width, norm=norm)
        self.scale = LayerScale(width, space=2, initial=0.0)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.scale(self.block(x) - x)
        return out


@contextmanager
def fresh_blocks(norm: NormName) -> Iterator[None]:
    """Offer `FreshBlock` as the blueprint `fresh` inside the block."""
    text = "A residual block with fresh weights, scaled per channel (initially 0)."
    entry = Blueprint("fresh", ("cnn",), 1, partial(FreshBlock, norm=norm), text)
    BlueprintRegistry.register(entry)
    try:
        yield
    finally:
        BlueprintRegistry.unregister("fresh")


@dataclass(slots=True)
class ArmResult:
    """One arm: evaluations so far, and what it cost."""

    name: str
    parameters: int
    macs: int
    """Multiply-accumulates of the final network per image."""
    batches: int = 0
    """Batches trained per member, those of the common first half included."""
    tflop: float = 0.0
    """Training FLOPs per member: 6 x MACs for each image."""
    seconds: float = 0.0
    """Wall time of this arm alone."""
    curve: list[tuple[int, float, list[float]]] = field(default_factory=list)
    """Batches so far, mean train loss since the last evaluation, test accuracy of each member."""

    @property
    def accuracy_E(self) -> list[float]:
        """Test accuracy of each member at the last evaluation."""
        return self.curve[-1][2] if self.curve else []

    def line(self) -> str:
        """Format as one line."""
        values = 100 * np.array(self.accuracy_E)
        spread = values.std(ddof=1) if len(values) > 1 else 0.0
        return (
            f"{self.name:<7} {self.parameters:>8,} parameters {self.macs / 1e6:>6.1f} MMAC "
            f"{self.batches:>6} batches {self.tflop:>7.1f} TFLOP {self.seconds:>6.1f} s  "
            f"test {values.mean():.2f} % (s.d. {spread:.2f}, n = {len(values)})"
        )


class TwinComparison:
    """Data, schedule and arms of one comparison."""

    def __init__(self, config: CompareTwin) -> None:
        self.config = config
        self.device = parse_device(config.device)
        self.precision = choose_precision("auto", self.device)
        self._began = time.perf_counter()
        self.data = _tiny_data() if config.quick else _all_of_cifar(config.data_dir)
        per_epoch = len(self.data.train) / config.batch_size
        self.length = 2 * CHUNK * max(1, round(config.epochs * per_epoch / (2 * CHUNK)))
        """Batches of a whole training."""
        self.setting = describe_device(self.device) | {"precision": self.precision}
        shape = (-1, 1, 1)
        mean, std = (torch.from_numpy(v).view(shape) for v in (self.data.mean, self.data.std))
        images = torch.from_numpy(self.data.test.inputs).float()
        self._test_x = ((images - mean) / std).to(self.device)
        self._test_y = torch.from_numpy(self.data.test.labels).to(self.device)

    def run(self, write: Callable[[list[ArmResult]], None]) -> list[ArmResult]:
        """Train all arms; `write` is called after each evaluation with the results so far."""
        results: list[ArmResult] = []
        half = self.length // 2
        with tempfile.TemporaryDirectory() as folder, fresh_blocks(self.config.norm):
            saved = Path(folder) / "half"
            small = self._population(blocks=1)
            start = self._arm("small", small, 0, half, self.length, results, write)
            small.save(saved)
            for name in ("twin", "fresh"):
                population = Population.load(saved, partial(self._host, 1), self.device)
                everyone = list(range(population.members))
                for slot in population.slots:
                    population.plant(everyone, slot, name)
                self._arm(name, population, half, self.length, self.length, results, write, start)
            if self.config.static:
                self._static(results, write)
        return results

    def _static(self, results: list[ArmResult], write: Callable[[list[ArmResult]], None]) -> None:
        """Train ResNet-20 for as many FLOPs as the grown networks, if time allows."""
        population, grown = self._population(blocks=3), results[-1]
        with autocast(self.device, self.precision), torch.no_grad():
            population.forward(self._test_x[None, :2])
        macs = int(population.macs_E()[0])
        length = round(grown.tflop * 1e12 / (6 * macs * self.config.batch_size))
        expected = length * grown.seconds / (self.length - self.length // 2)
        if time.perf_counter() - self._began + expected > 60 * self.config.minutes:
            print(f"static left out: it would take {expected:.0f} s more than --minutes allows")
            return
        self._arm("static", population, 0, length, length, results, write)

    @staticmethod
    def difference(results: list[ArmResult]) -> dict[str, float] | None:
        """Return twin minus fresh in points with its 95 % interval, over members."""
        by_name = {result.name: np.array(result.accuracy_E) for result in results}
        twin, fresh = by_name.get("twin"), by_name.get("fresh")
        if twin is None or fresh is None or twin.size != fresh.size:
            return None
        found = paired_difference(100 * twin, 100 * fresh).student
        return {"mean": found.value, "low": found.low, "high": found.high}

    # ---- one arm --------------------------------------------------------------------------

    def _host(self, blocks: int) -> ResNetHost:
        return ResNetHost(
            CLASSES,
            in_channels=self.data.sample_shape[0],
            blocks_per_stage=blocks,
            base_channels=self.config.base_channels,
            norm=self.config.norm,
        )

    def _population(self, blocks: int) -> Population:
        settings = OptimConfig(weight_decay=self.config.weight_decay, clip_norm=None)
        config = PopulationConfig(optim=settings)
        slots = [spec.slot_id for spec in self._host(blocks).injection_specs()]
        factory, names = partial(self._host, blocks), ("twin", "fresh")
        seeds, seed = self.config.seeds, self.config.seed
        return Population(factory, slots, names, seeds, seed, self.device, config)

    def _arm(
        self,
        name: str,
        population: Population,
        first: int,
        last: int,
        length: int,
        results: list[ArmResult],
        write: Callable[[list[ArmResult]], None],
        before: ArmResult | None = None,
    ) -> ArmResult:
        """Train batches `first` to `last` of a schedule of `length` batches."""
        with autocast(self.device, self.precision), torch.no_grad():
            population.forward(self._test_x[None, :2])  # chooses the executor, counts MACs
        arm = ArmResult(name, int(population.parameters_E()[0]), int(population.macs_E()[0]))
        results.append(arm)
        assert population.choice is not None, "set by the forward pass"
        graphs, _ = make_graph_cache("auto", population)
        totals = TrainTotals.zeros(population.members, len(population.slots), self.device)
        batches, began = self._batches(), time.perf_counter()
        each = -(-length // self.config.evaluations // CHUNK) * CHUNK
        for at in range(first, last, CHUNK):
            done = min(at + CHUNK, last)
            rate = self.config.lr * _share_of_rate((at + done) / 2 / length)
            population.set_rates(rate, rate)
            for x, y in islice(batches.step(at // CHUNK), done - at):
                with autocast(self.device, self.precision, cached=False):
                    process_train_batch(population, x, y, totals, None, graphs)
            if done % each == 0 or done == last:
                loss = float(totals.loss_E.mean()) / (done - max(first, arm.batches))
                arm.curve.append((done, loss, self._evaluate(population)))
                totals.zero_()
                arm.batches, arm.seconds = done, time.perf_counter() - began
                cost = 6e-12 * self.config.batch_size
                arm.tflop = cost * (done - first) * arm.macs + (before.tflop if before else 0.0)
                print(f"{done:>6} of {length}  {arm.line()}", flush=True)
                write(results)
        return arm

    def _batches(self) -> SharedBatchIterator:
        data = self.data
        return SharedBatchIterator(
            data.train.inputs,
            data.train.labels,
            self.config.seeds,
            self.config.batch_size,
            CHUNK,
            self.config.seed,
            self.device,
            data.mean.tolist(),
            data.std.tolist(),
            "crop_flip",
        )

    def _evaluate(self, population: Population) -> list[float]:
        """Return the test accuracy of each member."""
        correct_E = torch.zeros(population.members, device=self.device)
        with autocast(self.device, self.precision):
            for first in range(0, len(self._test_y), TEST_BATCH):
                some = slice(first, first + TEST_BATCH)
                batch = population.evaluate(self._test_x[some][None], self._test_y[some][None])
                correct_E += batch.correct_R
        return (correct_E / len(self._test_y)).tolist()


def _share_of_rate(share: float) -> float:
    """Return the learning rate at a share of training, relative to the highest."""
    return min(share / WARM_UP, (1.0 - share) / (1.0 - WARM_UP))


def _all_of_cifar(data_dir: Path | None) -> TaskData:
    """CIFAR-10 with all 50,000 training images in `train`."""
    source = CifarFiles()
    split = source.read(locate_data(source.dataset, data_dir))
    parts = (split.train, split.val_control, split.val_score)
    whole = TaskPart(
        np.concatenate([part.inputs for part in parts]),
        np.concatenate([part.labels for part in parts]),
    )
    mean_C, std_C = channel_statistics(whole.inputs)
    return TaskData(whole, split.val_control, split.val_score, split.test, mean_C, std_C)


def _tiny_data() -> TaskData:
    return SyntheticImages(CLASSES, channels=3, size=8, train=160, validation=40, seed=0)()
