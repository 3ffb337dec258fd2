"""Benchmarks `train_batch` of populations: vmap against loop.

    python scripts/benchmark_population.py                  two small hosts on the CPU
    python scripts/benchmark_population.py --device cuda

Times forward, backward and update of all hosts and seeds, with a third of the slots each in
TRAINING, BLENDING and HOLDING. The executors alternate, so that background load hits both; results
are medians over the pairs.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from esper.leyline.errors import EsperError
from esper.scripts.cli.command import run_command

if TYPE_CHECKING:
    from population_timing import Timing


@dataclass(frozen=True, slots=True)
class BenchmarkPopulation:
    """Time the training of populations, vmap against loop."""

    device: str = "cpu"
    """torch device."""
    batch_size: int = 64
    """Images per batch and member."""
    pairs: int = 9
    """Timed pairs (vmap, loop) for each population."""
    repeats: int = 2
    """Batches per timing."""
    digits_members: tuple[int, ...] = (1, 4, 16, 32)
    """Population sizes on the host of `grow_digits` (2-4-8 channels, 8x8 images)."""
    image_members: tuple[int, ...] = (1, 4, 8)
    """Population sizes on the host with 8-16-32 channels, 3x3 kernels and 32x32x3 images."""
    out: Path = Path("out/benchmark_population.json")
    """All numbers."""

    def check(self) -> None:
        """Check the settings."""
        for name in ("batch_size", "pairs", "repeats"):
            if getattr(self, name) < 1:
                flag = name.replace("_", "-")
                raise EsperError(f"--{flag} {getattr(self, name)}: must be 1 or more")
        for size in (*self.digits_members, *self.image_members):
            if size < 1:
                raise EsperError(f"--digits-members, --image-members: {size} must be 1 or more")


def main() -> int:
    """Entry point of the command."""
    return run_command(BenchmarkPopulation, benchmark)


def benchmark(config: BenchmarkPopulation) -> None:
    """Time all populations, print two lines each, write the numbers."""
    config.check()
    from esper.storage.atomic import require_writable, write_atomic

    require_writable(config.out, "--out")

    from esper.tolaria.device_info import describe_device
    from esper.tolaria.runtime import parse_device
    from population_timing import BLUEPRINT, DIGITS, IMAGES, SLOTS, time_population

    device = parse_device(config.device)
    setting = describe_device(device) | {"seeds": f"{BLUEPRINT} in {len(SLOTS)} slots"}
    print("; ".join(f"{name}: {value}" for name, value in setting.items()), flush=True)
    print(f"{'host':<46} {'E':>3} {'B':>4}  executor  ms/batch  ms/member", flush=True)
    sizes = {DIGITS: config.digits_members, IMAGES: config.image_members}
    timings: list[Timing] = []
    for case, members in ((case, e) for case, counts in sizes.items() for e in counts):
        timed = time_population(
            case, members, config.batch_size, device, config.pairs, config.repeats
        )
        timings += timed
        print(*map(_line, timed), sep="\n", flush=True)
    record = {"setting": setting, "timings": [asdict(timing) for timing in timings]}
    write_atomic(config.out, (json.dumps(record, indent=1) + "\n").encode())
    print(f"numbers: {config.out}")


def _line(timing: Timing) -> str:
    return (
        f"{timing.host:<46} {timing.members:>3} {timing.batch_size:>4}  {timing.executor:<8}  "
        f"{timing.batch_ms:>8.2f}  {timing.member_ms:>9.3f}"
    )


if __name__ == "__main__":
    sys.exit(main())
