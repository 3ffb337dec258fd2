"""Judge a saved controller on hosts it has not seen, on its own task or on another.

esper eval runs/RUN                         the best checkpoint of a run
esper eval runs/RUN/checkpoints/round-000012
esper eval runs/RUN --task digits_baseline  what it is worth elsewhere
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import tyro

from esper.leyline.errors import EsperError
from esper.scripts.cli.command import guarded, read_command_line
from esper.scripts.cli.flags import peek
from esper.scripts.cli.trust import require_trust
from esper.simic.agent.config import NO_PREFIX
from esper.simic.training.config import PopulationConfig, TaskConfig, TrainingConfig

if TYPE_CHECKING:
    from esper.scripts.compare.judging import Judged
    from esper.simic.agent.agent import PPOAgent
    from esper.tasks.spec import TaskSpec

MEMBERS = 20
"""Fresh members where none are asked for."""


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Judge a saved controller on fresh hosts, beside static-final, wait, random and heuristic.

    Task and population are those it was trained with, but for what the flags change; the defaults
    shown are those of the checkpoint that stands on this command line.
    """

    checkpoint: Annotated[Path, tyro.conf.Positional]
    """Folder of a checkpoint, or of a run: its best one is taken."""
    task: Annotated[TaskConfig, NO_PREFIX] = field(default_factory=TaskConfig)
    """What it is judged on; another task must have the blueprints it was trained with."""
    population: Annotated[PopulationConfig, NO_PREFIX] = field(
        default_factory=lambda: PopulationConfig(envs=MEMBERS)
    )
    """How the hosts are run."""
    trust: bool = False
    """Run the task file that the checkpoint names; without it only one that --task names is run."""
    data_dir: Path | None = None
    """Where data sets lie; as in its training, else $ESPER_DATA_DIR or ./data."""
    out: Path = field(default_factory=lambda: Path("out"))
    """Folder for the picture and the numbers."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    return guarded(lambda: evaluate(sys.argv[1:] if argv is None else argv))


def evaluate(words: Sequence[str]) -> None:
    """Read, check, judge, report. Heavy libraries are imported late, so that --help is quick."""
    config, training = read_evaluate(words)
    spec = training.check()
    from esper.scripts.compare.judging import judge
    from esper.simic.training.runs.checkpoints import find_checkpoint
    from esper.storage.atomic import require_not_folders, require_writable
    from esper.tolaria.runtime import parse_device, set_deterministic_cublas

    places = report_places(config.out, spec.name)
    require_not_folders(places)
    require_writable(places.picture, "--out")
    set_deterministic_cublas()
    checkpoint = find_checkpoint(config.checkpoint)
    agent = checkpoint.load_agent(parse_device(config.population.device))
    config.population.choose_graphs(agent)
    require_same_growth(agent, spec, checkpoint.path)
    data = spec.load(config.data_dir)
    judged = judge(training, agent, spec, data, config.population.envs)
    report(config, checkpoint.path, judged)


def read_evaluate(words: Sequence[str]) -> tuple[Evaluate, TrainingConfig]:
    """The settings on the command line, on top of those of the checkpoint it names first."""
    if not words or words[0] in ("-h", "--help"):
        config = read_command_line(Evaluate, words, prog="esper eval")
        return config, TrainingConfig()  # without words it was refused: a checkpoint is missing
    if words[0].startswith("-"):
        raise EsperError(f"{words[0]}: name the checkpoint before any flag")
    path = Path(words[0])
    trained = trained_with(path)
    task, other = trained.task, peek(words, "--task")
    if other is not None and other != task.name:
        task = TaskConfig(other, blueprints=task.blueprints or grown_by(path))
    population = replace(trained.population, envs=MEMBERS, rollout_steps=None)
    base = Evaluate(path, task, population, data_dir=_data_of(path))
    config = read_command_line(Evaluate, words, default=base, prog="esper eval")
    require_trust(config.task.name, words, path, config.trust)
    return config, replace(trained, task=config.task, population=config.population)


def _data_of(path: Path) -> Path | None:
    """Where a run was told that data sets lie; `path`: its folder, or one of its checkpoints."""
    from esper.simic.training.runs.folder import RUN, read_session_settings

    for folder in (path, path.absolute().parent.parent):
        if (folder / RUN).is_file():
            return read_session_settings(folder).data_place
    return None


def trained_with(path: Path) -> TrainingConfig:
    """What the controller in a folder was trained with; torch is not needed to know."""
    from esper.simic.training.runs.folder import read_checkpoint_config, read_config

    checkpoint = checkpoint_in(path)
    return read_config(path) if checkpoint is None else read_checkpoint_config(checkpoint)


def grown_by(path: Path) -> tuple[str, ...]:
    """Blueprints of the task that the controller in a folder was trained on, as it was then."""
    from esper.simic.training.runs.checkpoint_store import STATE
    from esper.storage.sealed_json import read_document

    checkpoint = checkpoint_in(path)
    state = None if checkpoint is None else read_document(checkpoint / STATE)
    task = state.get("task") if isinstance(state, dict) else None
    blueprints = task.get("blueprints") if isinstance(task, dict) else None
    return tuple(map(str, blueprints)) if isinstance(blueprints, list) else ()


def checkpoint_in(path: Path) -> Path | None:
    """The checkpoint that a folder is, or the best one of a run; None: the run has none yet."""
    from esper.simic.training.runs.checkpoint_store import MANIFEST, CheckpointStore
    from esper.simic.training.runs.folder import checkpoints_of, require_run

    if (path / MANIFEST).is_file():
        return path
    require_run(path)
    return CheckpointStore(checkpoints_of(path)).best().path


def require_same_growth(agent: PPOAgent, spec: TaskSpec, path: Path) -> None:
    """Refuse a task on which the controller would grow other things than it learnt to."""
    learnt = agent.spec.blueprints
    if learnt != spec.blueprints:
        raise EsperError(
            f"{path}: this controller grows {', '.join(learnt)}, {spec.name} is set to "
            f"{', '.join(spec.blueprints)}; leave --blueprints out"
        )


class ReportPlaces(NamedTuple):
    """Where the files of the report are."""

    picture: Path
    numbers: Path
    judgement: Path


def report_places(folder: Path, task: str) -> ReportPlaces:
    """The files of a judgement on a task."""
    names = (f"eval_{task}{end}" for end in (".png", ".json", "_judged.json"))
    return ReportPlaces(*(folder / name for name in names))


def report(config: Evaluate, checkpoint: Path, judged: Judged) -> None:
    """The tables, the picture, the numbers."""
    from esper.karn.display import say
    from esper.scripts.cli.console import console_for_report
    from esper.scripts.cli.report_files import json_file, written_first
    from esper.scripts.cli.run_report import Shown, files_of, settings_of, show
    from esper.scripts.compare.judging import EVALUATION_SEED, LEARNED, judgement_table

    places = report_places(config.out, judged.result.task)
    shown = Shown(
        policy=LEARNED,
        episodes=judged.members,
        picture=places.picture,
        numbers=places.numbers,
        settings=settings_of(config),
    )
    record = {
        "checkpoint": str(checkpoint),
        "evaluation_seed": EVALUATION_SEED,
        "judged": judged.numbers(),
    }
    judgement = json_file(places.judgement, record)
    with written_first(judgement, *files_of(shown, judged.result)):
        show(shown, judged.result)
        console = console_for_report()
        console.print(judgement_table(judged))
        say(console, judged.growing_line())
        for word, what in (("checkpoint", checkpoint), ("judgement", places.judgement)):
            say(console, f"{word}: {what}")


if __name__ == "__main__":
    sys.exit(main())
