"""`esper grow`: grow your model on your data within a budget.

esper grow --demo                                   digits and a small CNN, less than a minute
esper grow mine.py:model --train mine.py:train --params 50000 --minutes 10
esper grow mine.py:model --train data.npz --resume runs/RUN

`FILE.py:NAME` names an object in your Python file, or a function or class without arguments that
makes it. Ctrl-C ends the search with the best so far.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import tyro

from esper.growing.budget import Budget
from esper.growing.settings import GrowSettings
from esper.karn.resuming import command_line
from esper.leyline.errors import EsperError
from esper.nissa.trackers.names import TrackerName, require_trackers
from esper.scripts.cli.command import run_command
from esper.scripts.cli.output import say
from esper.storage.run_files import REPORT_PAGE
from esper.storage.sessions import resumed_by

if TYPE_CHECKING:
    from esper.growing.result import GrowResult
    from esper.tasks.user_objects import UserFiles

T = TypeVar("T")
Flags = Annotated[T, tyro.conf.OmitArgPrefixes]
OWN: Final = ("loss", "metric", "train_step", "optimizer", "scheduler")
"""Settings that may name an object of a user's file."""
DEMO_MINUTES: Final = 0.65
"""Time of the demo."""


@dataclass(frozen=True)
class Grow:
    """Grow your model on your data within a budget; returns the frontier of score against size.

    FILE.py:NAME names an object in your Python file, or a function or class without arguments that
    makes it. Data are also read from .npz (arrays x and y) and .csv (label in the last column; text
    in others with --categorical auto).
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
    budget: Flags[Budget] = field(default_factory=Budget)
    settings: Flags[GrowSettings] = field(default_factory=GrowSettings)
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
    argv = sys.argv[1:] if argv is None else argv
    return run_command(Grow, lambda config: grow(config, argv), argv)


def grow(config: Grow, argv: Sequence[str]) -> None:
    """Check, load, grow, print. Imports are local, so that --help is fast.

    `argv`: the command line, to be repeated when the search is interrupted.
    """
    from esper.growing.folder import require_grow_folder
    from esper.growing.ranks import ranks_of
    from esper.scripts.cli.run_paths import find_run
    from esper.tasks.user_objects import user_files

    _check(config)
    require_trackers(config.track, "--track")
    budget = config.budget
    if config.demo and (budget.minutes, budget.host_runs, budget.flops) == (None, None, None):
        budget = replace(budget, minutes=DEMO_MINUTES)
    resume = None if config.resume is None else find_run(config.resume)
    if resume is not None:
        require_grow_folder(resume)
    with user_files() as files, resumed_by(partial(_resume_command, argv=argv)):
        result = _grow(config, budget, resume, files)
    if ranks_of(config.settings.executor, config.settings.device).first:
        _print(result, argv)


def _check(config: Grow) -> None:
    if config.demo:
        given = [f for f in ("model", "train", "val", "test") if getattr(config, f) is not None]
        if given:
            raise EsperError(f"--demo brings its own {given[0]}: leave one of both out")
    elif config.model is None:
        raise EsperError("name your model, as in esper grow mine.py:model; --demo needs none")
    elif config.train is None:
        raise EsperError("--train is missing: give FILE.py:NAME, FILE.npz or FILE.csv")


def _grow(config: Grow, budget: Budget, resume: Path | None, files: UserFiles) -> GrowResult:
    from esper.growing.api import grow as grow_model
    from esper.scripts.cli.demo import SmallCNN, digits

    train: Any
    if config.model is None:
        model, train, val, test = SmallCNN, digits(), None, None
    else:
        model, given = files.find(config.model), (config.train, config.val, config.test)
        as_table = config.settings.categorical is not None
        train, val, test = (None if one is None else files.data(one, as_table) for one in given)
    settings = {one.name: getattr(config.settings, one.name) for one in fields(config.settings)}
    settings |= {name: _named(settings[name], files) for name in OWN}
    return grow_model(
        model,
        train,
        val,
        test,
        budget,
        **settings,
        name=config.name,
        folder=config.folder,
        resume=resume,
        sources=files.paths,
        verbose=not config.quiet,
        track=config.track,
    )


def _named(text: str | None, files: UserFiles) -> Any:
    """A setting that may be a name, or an object of a user's file."""
    from esper.tasks.task_files import is_file_reference

    return files.find(text) if text is not None and is_file_reference(text) else text


def _resume_command(folder: Path, argv: Sequence[str]) -> str:
    """The same command for the run in `folder`.

    >>> _resume_command(Path("runs/a b"), ["mine.py:model", "--resume", "runs/old", "--quiet"])
    "esper grow mine.py:model --quiet --resume 'runs/a b'"
    """
    resumed = [number for number, argument in enumerate(argv) if argument == "--resume"]
    dropped = {number + after for number in resumed for after in (0, 1)}
    kept = [argument for number, argument in enumerate(argv) if number not in dropped]
    kept = [argument for argument in kept if not argument.startswith("--resume=")]
    return command_line("grow", [*kept, "--resume", str(folder)])


def _print(result: GrowResult, argv: Sequence[str]) -> None:
    say(result)
    print(f"report: {result.folder / REPORT_PAGE}")
    if not result.record.complete:
        command = _resume_command(result.folder, argv)
        print(f"interrupted; resume with: {command}", file=sys.stderr)
