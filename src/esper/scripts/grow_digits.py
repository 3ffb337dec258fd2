"""Grow small networks on handwritten digits, beside the same networks left alone.

    python -m esper.scripts.grow_digits                            one run, about a minute
    python -m esper.scripts.grow_digits --seeds 10 --static-full   the experiment of docs/results.md

Eight hosts of three 1x1 convolutions see single pixels only and learn little. After a few steps a
seed (two 3x3 convolutions) is germinated in each of three slots, trains unseen, is blended in, and
stays only if accuracy falls without it. The same hosts, from the same initial weights and on the
same batches, are trained without growth. A table, a picture and all numbers come out.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from esper.leyline.stages import SeedStage
from esper.scripts.door import enter
from esper.scripts.growth_config import Arm, GrowDigits

if TYPE_CHECKING:
    from rich.console import Console

    from esper.scripts.growth_run import RunResult

PLAIN_WIDTH = 110
"""Columns of the table where there is no terminal to ask."""


def main() -> int:
    """The command."""
    return enter(GrowDigits, grow_digits)


def grow_digits(config: GrowDigits) -> None:
    """Check, run, report. Heavy libraries are imported here, so that --help is quick."""
    config.check()
    from rich.console import Console

    from esper.karn.display import say
    from esper.leyline.files import require_writable

    require_writable(config.out, "--out")
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)

    from esper.scripts.growth_report import draw_picture, print_report, write_numbers

    began = time.monotonic()
    results = train(config, console)
    write_numbers(config, results, time.monotonic() - began)
    draw_picture(config, results)
    print_report(console, config, results)
    for word, path in (("picture", config.out), ("numbers", config.numbers_path)):
        say(console, f"{word}: {path}")


def train(config: GrowDigits, console: Console) -> list[RunResult]:
    """All run seeds, one after the other, under one progress display."""
    from esper.karn.progress import GrowthProgress, GrowthStatus
    from esper.scripts.growth_run import DigitsOnDevice, run_growth
    from esper.tasks.digits import load_digits_split

    data = DigitsOnDevice.of(load_digits_split(), config.device)
    console.print(_setting(config, len(data.val_score)), highlight=False, soft_wrap=True)
    done = 0

    def watch(accuracy: Mapping[Arm, float], seeds: Mapping[SeedStage, int]) -> None:
        nonlocal done
        done += 1
        progress.step(done, GrowthStatus({a.value: v for a, v in accuracy.items()}, seeds))

    moving = config.members * len(config.arms)
    with GrowthProgress(config.seeds * config.steps, moving, console) as progress:
        return [
            run_growth(config, seed, data, watch)
            for seed in range(config.seed, config.seed + config.seeds)
        ]


def _setting(config: GrowDigits, validation_images: int) -> str:
    """What the member-steps of the progress display consist of."""
    return (
        f"{len(config.arms)} populations ({', '.join(config.arms)}) of {config.members} members on "
        f"{config.device}, executor {config.executor}; a step is {config.batches} batches of "
        f"{config.batch_size}, then {validation_images} validation images"
    )


if __name__ == "__main__":
    sys.exit(main())
