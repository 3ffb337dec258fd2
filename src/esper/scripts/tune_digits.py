"""Which learning rate suits each population of `grow_digits` best.

    python -m esper.scripts.tune_digits

An under-tuned baseline would flatter growth, so every population gets the same grid and the same
chance. Rates are compared on `val_score`, on run seeds that the experiment does not use; the test
images are not read.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from esper.leyline.errors import EsperError
from esper.leyline.seeds import require_training_seed
from esper.scripts.door import enter
from esper.scripts.growth_config import Arm, GrowDigits, Rate

if TYPE_CHECKING:
    from esper.scripts.growth_run import DigitsOnDevice


@dataclass(frozen=True, slots=True)
class TuneDigits:
    """Compare learning rates for each population of the digits run."""

    rates: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2)
    """Learning rates to try."""
    schedules: tuple[Literal["constant", "cosine"], ...] = ("constant", "cosine")
    """Schedules to try with each."""
    arms: tuple[Arm, ...] = tuple(Arm)
    """Populations to tune."""
    first_seed: int = 1000
    """First run seed; far from those of the experiment."""
    repeats: int = 2
    """Run seeds for each choice."""
    run: GrowDigits = field(default_factory=GrowDigits)
    """The run that is tuned."""
    out: Path = Path("out/tune_digits.json")
    """All numbers."""


def main() -> int:
    """The command."""
    return enter(TuneDigits, tune_digits)


def tune_digits(config: TuneDigits) -> None:
    """Train every choice, print one line each, best last."""
    from esper.leyline.files import require_writable, write_whole
    from esper.scripts.growth_run import DigitsOnDevice
    from esper.tasks.digits import load_digits_split

    config.run.check()
    if config.repeats < 1:
        raise EsperError(f"--repeats {config.repeats}: must be 1 or more")
    for seed in (config.first_seed, config.first_seed + config.repeats - 1):
        require_training_seed(seed, "--first-seed")
    require_writable(config.out, "--out")
    data = DigitsOnDevice.of(load_digits_split(), config.run.device)
    choices = [Rate(lr, schedule) for lr in config.rates for schedule in config.schedules]
    found: dict[str, dict[str, list[float]]] = {}
    for arm in config.arms:
        scores = {f"{c.lr:g} {c.schedule}": _scores(config, arm, c, data) for c in choices}
        best = max(scores, key=lambda name: sum(scores[name]))
        print(f"{arm}: best is {best}", flush=True)
        found[arm.value] = scores
    write_whole(config.out, (json.dumps(found, indent=1) + "\n").encode())
    print(f"numbers: {config.out}")


def _scores(config: TuneDigits, arm: Arm, choice: Rate, data: DigitsOnDevice) -> list[float]:
    """Mean final accuracy on `val_score` for each run seed."""
    from esper.scripts.growth_run import ArmRun, batch_order

    run = replace(config.run, grown=choice, alone=choice, full=choice)
    scores = []
    for seed in range(config.first_seed, config.first_seed + config.repeats):
        trained = ArmRun(run, arm, seed, data)
        order_TEMB = batch_order(run, seed, len(data.train), data.train.y_N.device)
        for step, order_EMB in enumerate(order_TEMB.unbind(0)):
            trained.step(step, order_EMB)
        scores.append(float(trained.diary.val_score[-1].mean()))
    listed = ", ".join(f"{100 * score:.1f}" for score in scores)
    mean = 100 * sum(scores) / len(scores)
    print(f"{arm} {choice.lr:g} {choice.schedule}: {mean:.1f} % ({listed})", flush=True)
    return scores


if __name__ == "__main__":
    sys.exit(main())
