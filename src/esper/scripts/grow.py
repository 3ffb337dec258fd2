"""`esper grow`: grow your model on your data within a budget.

esper grow --demo                                   digits and a small CNN, about a minute
esper grow mine.py:model --train mine.py:train --params 50000 --minutes 10
esper grow mine.py:model --train data.npz --resume runs/RUN

`FILE.py:NAME` names an object in your Python file, or a function or class without arguments that
makes it. Ctrl-C ends the search with the best so far.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import tyro

from esper.leyline.errors import EsperError
from esper.nissa.trackers.names import TrackerName, require_trackers
from esper.scripts.cli.command import run_command
from esper.scripts.cli.output import say
from esper.scripts.cli.resuming import command_line
from esper.storage.sessions import resumed_by

if TYPE_CHECKING:
    from esper.growing.result import GrowResult
    from esper.scripts.cli.user_objects import UserFiles

DEMO_RUNS: Final = 20.0
"""Compute of the demo, in training runs of its model."""


@dataclass(frozen=True)
class Grow:
    """Grow your model on your data within a budget; returns the frontier of score against size.

    FILE.py:NAME names an object in your Python file, or a function or class without arguments that
    makes it. Data are also read from .npz (arrays x and y) and .csv (label in the last column).
    """

    model: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="FILE.py:MODEL")] = (
        None
    )
    """Your model, FILE.py:NAME."""
    train: str | None = None
    """Training data: FILE.py:NAME, FILE.npz or FILE.csv."""
    val: str | None = None
    """Validation data; default: cut from the training data."""
    test: str | None = None
    """Test data; default: cut from the training data."""
    demo: bool = False
    """Grow a small CNN on the built-in digits instead."""
    params: int | None = None
    """Budget: most parameters of a network."""
    macs: float | None = None
    """Budget: most multiply-accumulates of a network for one sample."""
    minutes: float | None = None
    """Budget: longest wall-clock time."""
    host_runs: float | None = None
    """Budget: most training compute, in full training runs of your model; default 20."""
    flops: float | None = None
    """Budget: most floating-point operations of all training."""
    seed: int = 0
    """Seed of the search."""
    slots: tuple[str, ...] = ("8",)
    """How many places to grow at, or paths of the modules they come after."""
    blueprints: tuple[str, ...] = ()
    """Blueprints to choose from; default: all that fit."""
    widths: tuple[float, ...] | None = None
    """Multiples of your model's width to try besides; default: up to the widest that fits."""
    epochs: float | Literal["auto"] = "auto"
    """Length of a full training run."""
    batch_size: int | None = None
    """Samples of a batch; default: chosen by the size of the data."""
    lr: tuple[float, ...] = ()
    """Learning rates to try; default: chosen by the model."""
    optimizer: str = "auto"
    """Optimizer by name."""
    weight_decay: float | Literal["auto"] = "auto"
    """Weight decay of the optimizer; auto: 0.01 with AdamW, 0.0005 with SGD."""
    clip: float | None = 1.0
    """Longest gradient of a network: longer ones are scaled down to it; None: none are."""
    loss: str = "auto"
    """Loss by name, or FILE.py:NAME."""
    metric: str = "auto"
    """Metric by name, or FILE.py:NAME."""
    amp: bool | Literal["auto"] = "auto"
    """Train in bfloat16 by autocast; auto: on a GPU."""
    device: str = "auto"
    """cpu, cuda, cuda:<number>; auto takes a GPU if there is one."""
    executor: Literal["auto", "sharded"] = "auto"
    """sharded: every network is cut over the ranks of a torchrun job."""
    on: str = "local"
    """Where runs are trained: local (this machine), ray (the Ray of this machine, started if there
    is none), or ray://HOST:PORT (a cluster)."""
    folder: Path = Path("runs")
    """Folder in which the run folder is made."""
    name: str | None = None
    """Name of the run; default: that of the model."""
    resume: Path | None = None
    """Continue this run; give the same model, data and settings."""
    quiet: bool = False
    """Print the result only."""
    track: tuple[TrackerName, ...] = ()
    """Trackers that get the figures of every rung; their files go to the run folder."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    words = sys.argv[1:] if argv is None else argv
    return run_command(Grow, lambda config: grow(config, words), words)


def grow(config: Grow, words: Sequence[str]) -> None:
    """Check, load, grow, print. Imports are local, so that --help is fast.

    `words`: the command line, to be repeated when the search is interrupted.
    """
    from esper.growing.budget import Budget
    from esper.growing.folder import require_grow_folder
    from esper.growing.ranks import ranks_of
    from esper.scripts.cli.run_paths import find_run
    from esper.scripts.cli.user_objects import user_files

    _check(config)
    require_trackers(config.track, "--track")
    runs = DEMO_RUNS if config.demo and config.host_runs is None else config.host_runs
    budget = Budget(config.params, config.macs, config.flops, runs, config.minutes)
    resume = None if config.resume is None else find_run(config.resume)
    if resume is not None:
        require_grow_folder(resume)
    with user_files() as files, resumed_by(partial(_resume_command, words=words)):
        result = _grow(config, budget, resume, files)
    if ranks_of(config.executor, config.device).first:
        _print(result, words)


def _check(config: Grow) -> None:
    if config.demo:
        given = [f for f in ("model", "train", "val", "test") if getattr(config, f) is not None]
        if given:
            raise EsperError(f"--demo brings its own {given[0]}: leave one of both out")
    elif config.model is None:
        raise EsperError("name your model, as in esper grow mine.py:model; --demo needs none")
    elif config.train is None:
        raise EsperError("--train is missing: give FILE.py:NAME, FILE.npz or FILE.csv")


def _grow(config: Grow, budget: Any, resume: Path | None, files: UserFiles) -> GrowResult:
    from esper.growing.api import grow as grow_model
    from esper.growing.demo import SmallCNN, digits

    parts: list[Any]
    if config.model is None:
        model, parts = SmallCNN, [digits(), None, None]
    else:
        model = files.find(config.model)
        parts = [
            None if reference is None else files.data(reference)
            for reference in (config.train, config.val, config.test)
        ]
    return grow_model(
        model,
        parts[0],
        parts[1],
        parts[2],
        budget,
        optimizer=config.optimizer,
        lr=config.lr or "auto",
        weight_decay=config.weight_decay,
        clip=config.clip,
        loss=_named(config.loss, files),
        metric=_named(config.metric, files),
        seed=config.seed,
        slots=_slots(config.slots),
        blueprints=config.blueprints or None,
        widths="auto" if config.widths is None else config.widths,
        epochs=config.epochs,
        batch_size=config.batch_size,
        amp=config.amp,
        device=config.device,
        executor=config.executor,
        on=config.on,
        name=config.name,
        folder=config.folder,
        resume=resume,
        sources=files.paths,
        verbose=not config.quiet,
        track=config.track,
    )


def _named(word: str, files: UserFiles) -> Any:
    """A loss or metric: its name, or an object of a user's file."""
    from esper.scripts.cli.user_objects import is_reference

    return files.find(word) if is_reference(word) else word


def _slots(words: Sequence[str]) -> int | Sequence[str]:
    """One number, or module paths.

    >>> _slots(["8"]), _slots(["layer1", "layer2"])
    (8, ['layer1', 'layer2'])
    """
    return int(words[0]) if len(words) == 1 and words[0].isdecimal() else words


def _resume_command(folder: Path, words: Sequence[str]) -> str:
    """The same command for the run in `folder`.

    >>> _resume_command(Path("runs/a b"), ["mine.py:model", "--resume", "runs/old", "--quiet"])
    "esper grow mine.py:model --quiet --resume 'runs/a b'"
    """
    resumed = [number for number, word in enumerate(words) if word == "--resume"]
    dropped = {number + after for number in resumed for after in (0, 1)}
    kept = [word for number, word in enumerate(words) if number not in dropped]
    kept = [word for word in kept if not word.startswith("--resume=")]
    return command_line("grow", [*kept, "--resume", str(folder)])


def _print(result: GrowResult, words: Sequence[str]) -> None:
    from esper.growing.folder import REPORT

    say(result)
    print(f"report: {result.folder / REPORT}")
    if not result.record.complete:
        command = _resume_command(result.folder, words)
        print(f"interrupted; resume with: {command}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
