"""How fast a population trains: all members at once (vmap) against one after the other (loop).

    python -m esper.scripts.benchmark_population                  two small hosts on the CPU
    python -m esper.scripts.benchmark_population --device cuda

What is timed is `train_batch`: forward, backward and update of all hosts and seeds, with a third
of the slots in each of TRAINING, BLENDING and HOLDING. The two executors take turns, so that a
busy moment of the machine hits both; each figure is a median over these pairs.

Shape letters: E members, S slots, B batch.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from esper.leyline.errors import EsperError
from esper.scripts.door import enter

if TYPE_CHECKING:
    from torch import Tensor

    from esper.kasmina import CNNHost, Population

EXECUTORS: Final = ("vmap", "loop")
SLOTS: Final = ("r0c0", "r0c1", "r0c2")
BLUEPRINT: Final = "conv_light"


@dataclass(frozen=True, slots=True)
class BenchmarkPopulation:
    """Time the training of populations, vmap against loop."""

    device: str = "cpu"
    """Where to compute, as torch names it."""
    batch_size: int = 64
    """Images in a batch, for each member its own."""
    pairs: int = 15
    """Timed pairs (vmap, loop) for each population."""
    repeats: int = 2
    """Batches in one timing."""
    digits_members: tuple[int, ...] = (1, 4, 16, 32)
    """Population sizes on the host of `grow_digits` (2-4-8 channels, 8x8 images)."""
    image_members: tuple[int, ...] = (1, 4, 8)
    """Population sizes on the host with 8-16-32 channels, 3x3 kernels and 32x32x3 images."""
    out: Path = Path("out/benchmark_population.json")
    """All numbers."""

    def check(self) -> None:
        """Refuse sizes that cannot be timed."""
        for name in ("batch_size", "pairs", "repeats"):
            if getattr(self, name) < 1:
                flag = name.replace("_", "-")
                raise EsperError(f"--{flag} {getattr(self, name)}: must be 1 or more")
        if min((*self.digits_members, *self.image_members), default=1) < 1:
            raise EsperError("--digits-members, --image-members: a population needs at least 1")


@dataclass(frozen=True, slots=True)
class HostCase:
    """A host and the images it sees."""

    name: str
    channels: int
    kernel_size: int
    image_shape: tuple[int, int, int]

    def build(self) -> CNNHost:
        """One host."""
        from esper.kasmina import CNNHost

        return CNNHost(
            in_channels=self.image_shape[0],
            base_channels=self.channels,
            kernel_size=self.kernel_size,
        )


DIGITS: Final = HostCase("2-4-8 channels, 1x1 kernels, 8x8x1 images", 2, 1, (1, 8, 8))
IMAGES: Final = HostCase("8-16-32 channels, 3x3 kernels, 32x32x3 images", 8, 3, (3, 32, 32))


@dataclass(frozen=True, slots=True)
class Timing:
    """One population under one executor."""

    host: str
    members: int
    batch_size: int
    executor: str
    batch_ms: float
    """Median time of a training batch."""
    member_ms: float
    """The same, divided by the members."""
    pairs: int


def main() -> int:
    """The command."""
    return enter(BenchmarkPopulation, benchmark)


def benchmark(config: BenchmarkPopulation) -> None:
    """Time every population, print a table line each, write the numbers."""
    from esper.karn.files import require_writable, write_whole

    config.check()
    require_writable(config.out, "--out")
    setting = _setting(config.device)
    print(", ".join(f"{name} {value}" for name, value in setting.items()), flush=True)
    print(f"{'host':<46} {'E':>3} {'B':>4}  executor  ms/batch  ms/member", flush=True)
    cases = [(DIGITS, e) for e in config.digits_members] + [
        (IMAGES, e) for e in config.image_members
    ]
    timings = []
    for case, members in cases:
        for timing in time_case(config, case, members):
            timings.append(timing)
            print(
                f"{timing.host:<46} {members:>3} {timing.batch_size:>4}  {timing.executor:<8}  "
                f"{timing.batch_ms:>8.2f}  {timing.member_ms:>9.3f}",
                flush=True,
            )
    record = {"setting": setting, "timings": [asdict(timing) for timing in timings]}
    write_whole(config.out, (json.dumps(record, indent=1) + "\n").encode())
    print(f"numbers: {config.out}")


def time_case(config: BenchmarkPopulation, case: HostCase, members: int) -> list[Timing]:
    """Median batch times of both executors on the same population, in interleaved pairs."""
    import numpy as np

    x, y = _batch(config, case, members)
    populations = [_population(config, case, members, executor) for executor in EXECUTORS]
    tasks = [_trains(population, x, y, config.repeats) for population in populations]
    for task in tasks:
        task()  # warm-up: banks, optimiser state, kernels
    seconds = np.array(
        [[_timed(task, config.device) for task in tasks] for _ in range(config.pairs)]
    )
    batch_ms = 1000 * np.median(seconds, axis=0) / config.repeats
    return [
        Timing(
            host=case.name,
            members=members,
            batch_size=config.batch_size,
            executor=executor,
            batch_ms=float(ms),
            member_ms=float(ms) / members,
            pairs=config.pairs,
        )
        for executor, ms in zip(EXECUTORS, batch_ms, strict=True)
    ]


def _batch(config: BenchmarkPopulation, case: HostCase, members: int) -> tuple[Tensor, Tensor]:
    """Synthetic images and labels, from a generator of their own."""
    import torch

    generator = torch.Generator().manual_seed(0)
    shape = (members, config.batch_size)
    x = torch.randn(*shape, *case.image_shape, generator=generator)
    y = torch.randint(10, shape, generator=generator)
    return x.to(config.device), y.to(config.device)


def _population(
    config: BenchmarkPopulation, case: HostCase, members: int, executor: str
) -> Population:
    from esper.kasmina import Population, PopulationConfig

    settings = PopulationConfig(executor=executor)  # type: ignore[arg-type]
    population = Population(
        case.build, SLOTS, (BLUEPRINT,), members, device=config.device, config=settings
    )
    spread_stages(population)
    return population


def spread_stages(population: Population) -> None:
    """Lead the seeds through the lifecycle: a third of the slots in each of three stages."""
    import numpy as np

    from esper.leyline.actions import LifecycleOp
    from esper.leyline.signals import GateSignals
    from esper.leyline.stages import SeedStage

    life = population.lifecycle
    shape = life.stage_ES.shape
    member_ES, slot_ES = np.indices(shape)
    third_ES = (member_ES + slot_ES) % 3
    half = np.float32(0.5)
    target_ES = np.where(third_ES == 1, half, np.float32(1.0))  # half strength stays BLENDING
    population.germinate(
        member_ES.ravel(), slot_ES.ravel(), BLUEPRINT, alpha_target=target_ES.ravel()
    )
    ones_E, ones_ES = np.ones(shape[:1], np.float32), np.ones(shape, np.float32)
    signals = GateSignals(ones_E, ones_ES, ones_ES, ones_ES, ones_ES)
    wanted_ES = np.array([SeedStage.TRAINING, SeedStage.BLENDING, SeedStage.HOLDING])[third_ES]
    while not (life.stage_ES == wanted_ES).all() or life.ramp_steps_left().any():
        population.begin_step()
        population.end_step(signals)
        may_ES = life.legal_ops()[..., LifecycleOp.ADVANCE] & (third_ES > 0)
        if may_ES.any():
            members, slots = np.nonzero(may_ES)
            population.advance(members, slots)


def _trains(population: Population, x: Tensor, y: Tensor, repeats: int) -> Callable[[], None]:
    def task() -> None:
        for _ in range(repeats):
            population.train_batch(x, y)

    return task


def _timed(task: Callable[[], None], device: str) -> float:
    """Seconds until the device has done it all."""
    from time import perf_counter

    _wait(device)
    began = perf_counter()
    task()
    _wait(device)
    return perf_counter() - began


def _wait(device: str) -> None:
    import torch

    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def _setting(device: str) -> dict[str, str]:
    """What was measured on."""
    import torch

    from esper.scripts.growth_report import device_name

    return {
        "device": f"{device} ({device_name(device)})",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "cores": str(os.cpu_count()),
        "seeds": f"{BLUEPRINT} in {len(SLOTS)} slots",
    }


if __name__ == "__main__":
    sys.exit(main())
