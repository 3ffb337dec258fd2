"""`esper eval`: evaluate a saved controller on fresh hosts, on its own task or another.

esper eval runs/RUN                         best checkpoint of a run
esper eval runs/RUN/checkpoints/round-000012
esper eval runs/RUN --task digits_baseline  on another task
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from esper.leyline.errors import EsperError
from esper.scripts.cli.command import exit_status_of, read_command_line
from esper.scripts.cli.flags import flag_value
from esper.scripts.cli.help import HELP_FLAGS
from esper.scripts.cli.trust import require_trust
from esper.simic.agent.config import NO_PREFIX
from esper.simic.training.config import PopulationConfig, TaskConfig, TrainingConfig

if TYPE_CHECKING:
    from esper.compare.judging import Judged

MEMBERS = 20
"""Default number of fresh members."""


@dataclass(frozen=True, slots=True)
class _Evaluate:
    """Evaluate a saved controller on fresh hosts, next to policies that do not learn.

    These are static-final (its own topologies, planted from the start), itself untrained, asha (a
    search over planted topologies), wait, random and heuristic.

    Task and population default to those of its training; the defaults shown are those of the
    checkpoint on this command line.
    """

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Checkpoint folder, or run folder (uses its best checkpoint)."""
    task: Annotated[TaskConfig, NO_PREFIX] = field(default_factory=TaskConfig)
    """Task to evaluate on; a controller works with any blueprints."""
    population: Annotated[PopulationConfig, NO_PREFIX] = field(
        default_factory=lambda: PopulationConfig(envs=MEMBERS)
    )
    """The population."""
    trust: bool = False
    """Run the task file that the checkpoint names; by default only one given by --task is run."""
    data_dir: Path | None = None
    """Folder of the data sets; default that of its training, else $ESPER_DATA_DIR or ./data."""
    out: Path = field(default_factory=lambda: Path("out"))
    """Output folder for the numbers."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    return exit_status_of(lambda: _evaluate(sys.argv[1:] if argv is None else argv))


def _evaluate(argv: Sequence[str]) -> None:
    """Parse, check, evaluate, report. Imports are local, so that --help is fast."""
    config, training = _read_evaluate(argv)
    spec = training.check()
    from esper.compare.baseline_process import BaselineProcess
    from esper.compare.judging import judge
    from esper.simic.training.runs.checkpoints import find_checkpoint
    from esper.storage.atomic import require_not_folders, require_writable
    from esper.tolaria.runtime import parse_device, set_deterministic_cublas

    places = _report_paths(config.out, spec.name)
    require_not_folders(places)
    require_writable(places[0], "--out")
    set_deterministic_cublas()
    checkpoint = find_checkpoint(config.checkpoint)
    agent = checkpoint.load_agent(parse_device(config.population.device))
    config.population.configure_graphs(agent)
    data = spec.load(config.data_dir)
    members = config.population.envs
    with BaselineProcess(training, members, config.data_dir) as process:
        judged = judge(training, agent, spec, data, members, process.result)
    _report(config, checkpoint.path, judged)


def _read_evaluate(argv: Sequence[str]) -> tuple[_Evaluate, TrainingConfig]:
    """Parse the command line with the checkpoint's settings as defaults."""
    if not argv or argv[0] in HELP_FLAGS:
        config = read_command_line(_Evaluate, argv, prog="esper eval")
        return config, TrainingConfig()  # not reached: raises without a checkpoint, exits on --help
    if argv[0].startswith("-"):
        raise EsperError(f"{argv[0]}: name the checkpoint before any flag")
    path = Path(argv[0])
    trained = training_config(path)
    task, other = trained.task, flag_value(argv, "--task")
    if other is not None and other != task.name:
        task = TaskConfig(other, blueprints=task.blueprints)
    population = replace(trained.population, envs=MEMBERS, rollout_steps=None)
    base = _Evaluate(path, task, population, data_dir=_data_dir_of_run(path))
    config = read_command_line(_Evaluate, argv, default=base, prog="esper eval")
    require_trust(config.task.name, argv, path, config.trust)
    return config, replace(trained, task=config.task, population=config.population)


def _data_dir_of_run(path: Path) -> Path | None:
    """Data folder of a run; `path`: run folder or one of its checkpoints."""
    from esper.simic.training.runs.folder import read_session_settings
    from esper.storage.run_files import RUN

    for folder in (path, path.absolute().parent.parent):
        if (folder / RUN).is_file():
            return read_session_settings(folder).data_place
    return None


def training_config(path: Path) -> TrainingConfig:
    """Training settings of the controller in a folder, read without torch."""
    from esper.simic.training.runs.folder import read_checkpoint_config, read_config

    checkpoint = _resolve_checkpoint(path)
    return read_config(path) if checkpoint is None else read_checkpoint_config(checkpoint)


def _resolve_checkpoint(path: Path) -> Path | None:
    """`path` if it is a checkpoint, else the best checkpoint of the run; None if it has none."""
    from esper.simic.training.runs.checkpoint_store import MANIFEST, CheckpointStore
    from esper.simic.training.runs.folder import checkpoints_dir, require_run

    if (path / MANIFEST).is_file():
        return path
    require_run(path)
    return CheckpointStore(checkpoints_dir(path)).best().path


def _report_paths(folder: Path, task: str) -> tuple[Path, Path]:
    """Paths of the numbers of an evaluation on a task, and of its judgement."""
    return folder / f"eval_{task}.json", folder / f"eval_{task}_judged.json"


def _report(config: _Evaluate, checkpoint: Path, judged: Judged) -> None:
    """Write the files, then print the tables."""
    from esper.compare.judging import EVALUATION_SEED
    from esper.scripts.cli.report_files import json_file
    from esper.scripts.cli.run_report import report_judged, settings_json

    numbers, place = _report_paths(config.out, judged.result.task)
    record = {
        "checkpoint": str(checkpoint),
        "evaluation_seed": EVALUATION_SEED,
        "judged": judged.numbers(),
    }
    lines = (("checkpoint", checkpoint), ("judgement", place))
    report_judged(judged, numbers, settings_json(config), json_file(place, record), lines)
