"""Grows ResNet-8 to the size of ResNet-20 at half of training: copies against fresh blocks.

    python lab/scripts/compare_twin.py --device cuda     CIFAR-10 in $ESPER_DATA_DIR, 4 seeds
    python lab/scripts/compare_twin.py --quick           a few synthetic images on a CPU, seconds

All seeds are members of one population. ResNet-8 trains for the first half and is saved; both arms
continue from that save, one with a twin in every slot (a copy of the stage's block with its current
weights), one with blocks of the same structure with fresh weights. Both start at a scale of 0, so
neither changes the network at birth, and cost the same. The third arm is ResNet-20 from the start
for as many batches as cost the same.

Reference (40 epochs, n = 4, test accuracy): copies 90.5 %, fresh blocks 90.1 %, static ResNet-20
90.8 %. The JSON file is rewritten after every evaluation.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from esper.leyline.errors import EsperError
from esper.scripts.cli.command import run_command

if TYPE_CHECKING:
    from twin_training import ArmResult


@dataclass(frozen=True, slots=True)
class CompareTwin:
    """Compare growing a ResNet by copies of its blocks with growing it by fresh ones."""

    device: str = "cpu"
    """torch device."""
    seeds: int = 4
    """Members of the population."""
    epochs: float = 40.0
    """Passes over the training images, growth at half of them."""
    batch_size: int = 128
    """Images per batch and member."""
    lr: float = 0.1
    """Highest learning rate, reached after 5 % of training; falls linearly to 0."""
    weight_decay: float = 5e-4
    """Weight decay of SGD with momentum 0.9."""
    norm: Literal["batch", "group"] = "batch"
    """Norm of the network."""
    base_channels: int = 16
    """Channels of the first stage."""
    evaluations: int = 10
    """Evaluations on the test images, spread over training."""
    static: bool = True
    """Whether to train ResNet-20 from the start as well."""
    minutes: float = 8.5
    """The static arm is left out if it would end later than this after the start."""
    seed: int = 0
    """Of weights, order and augmentation."""
    data_dir: Path | None = None
    """Folder of the data; default: $ESPER_DATA_DIR, then ./data."""
    quick: bool = False
    """Tiny network on synthetic images, for a test."""
    out: Path = Path("out/compare_twin.json")
    """All numbers."""

    def check(self) -> None:
        """Check the settings."""
        for name in ("seeds", "batch_size", "base_channels", "evaluations"):
            if getattr(self, name) < 1:
                flag = name.replace("_", "-")
                raise EsperError(f"--{flag} {getattr(self, name)}: must be 1 or more")
        if self.epochs <= 0 or self.lr <= 0:
            raise EsperError(f"--epochs {self.epochs}, --lr {self.lr}: must be above 0")


def main() -> int:
    """Entry point of the command."""
    return run_command(CompareTwin, compare)


def compare(config: CompareTwin) -> None:
    """Train all arms, print a line for each evaluation, write the numbers as they come."""
    config.check()
    if config.quick:
        config = replace(config, seeds=2, epochs=2.0, batch_size=16, base_channels=4, evaluations=2)
    from esper.storage.atomic import require_writable, write_atomic

    require_writable(config.out, "--out")

    from twin_training import TwinComparison

    comparison = TwinComparison(config)

    def write(results: list[ArmResult]) -> None:
        settings = {name: str(value) for name, value in asdict(config).items()}
        record = {
            "setting": comparison.setting | settings,
            "arms": [asdict(result) for result in results],
            "twin minus fresh": comparison.difference(results),
        }
        write_atomic(config.out, (json.dumps(record, indent=1) + "\n").encode())

    results = comparison.run(write)
    print(*(f"{result.line()}" for result in results), sep="\n", flush=True)
    found = comparison.difference(results)
    if found is not None:
        print("twin minus fresh, points: {mean:+.2f} ({low:+.2f} to {high:+.2f})".format(**found))
    print(f"numbers: {config.out}")


if __name__ == "__main__":
    sys.exit(main())
