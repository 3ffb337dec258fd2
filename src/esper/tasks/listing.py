"""What tasks there are, for people: host, slots, length of an episode, and whether data are here.

Building hosts to count them needs torch, which is imported when the list is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from esper.leyline.errors import EsperError
from esper.leyline.user_errors import user_code
from esper.tasks.places import find_data
from esper.tasks.registry import get_task_spec, task_names
from esper.tasks.spec import DataFiles, TaskSpec


@dataclass(frozen=True, slots=True)
class DataPlace:
    """Where a task's data are."""

    found: bool
    """Whether a run could begin now."""
    place: str
    """The folder, `built in` where no files are needed, or empty."""
    source: str
    """Where to get them; empty where no files are needed."""


@dataclass(frozen=True, slots=True)
class TaskListing:
    """One task of the list."""

    name: str
    """What it is called on the command line."""
    description: str
    """One line about it."""
    topology: str
    """Kind of its host."""
    host_parameters: int
    """Parameters of the host alone."""
    host_macs: int
    """Multiply-accumulates of the host for one sample."""
    slots: tuple[str, ...]
    """Where seeds may be grown."""
    blueprints: tuple[str, ...]
    """What may be grown."""
    batch_size: int
    """Samples in a batch."""
    batches_per_step: int
    """Batches between two decisions."""
    episode_length: int
    """Steps of an episode."""
    data: DataPlace
    """Where its data are."""


@dataclass(frozen=True, slots=True)
class BrokenTask:
    """A task of an installed package that cannot be loaded."""

    name: str
    """What the package calls it."""
    problem: str
    """Why, in one line."""


def list_tasks(data_dir: Path | None = None) -> list[TaskListing | BrokenTask]:
    """All registered tasks, by name."""
    return [_entry(name, data_dir) for name in task_names()]


def _entry(name: str, data_dir: Path | None) -> TaskListing | BrokenTask:
    try:
        return describe_task(get_task_spec(name), data_dir)
    except EsperError as error:
        return BrokenTask(name, str(error))


def describe_task(spec: TaskSpec, data_dir: Path | None = None) -> TaskListing:
    """One task as it is listed."""
    parameters, macs = host_size(spec)
    return TaskListing(
        name=spec.name,
        description=spec.description,
        topology=spec.topology,
        host_parameters=parameters,
        host_macs=macs,
        slots=spec.slots,
        blueprints=spec.blueprints,
        batch_size=spec.batch_size,
        batches_per_step=spec.batches_per_step,
        episode_length=spec.episode_length,
        data=place_of_data(spec, data_dir),
    )


def host_size(spec: TaskSpec) -> tuple[int, int]:
    """Parameters and MACs of the host alone; torch's random state is left as it was."""
    import torch

    from esper.kasmina.counting import count_macs, count_parameters

    kind = torch.int64 if spec.topology == "transformer" else torch.float32
    sample = torch.zeros((1, *spec.input_shape), dtype=kind)
    with torch.random.fork_rng(devices=[]), user_code(f"task {spec.name}: its host fails"):
        host = spec.host_factory()
        return count_parameters(host), count_macs(host, sample)


def place_of_data(spec: TaskSpec, data_dir: Path | None = None) -> DataPlace:
    """Where the task's data are, without reading them."""
    source = spec.load_data
    if not isinstance(source, DataFiles):
        return DataPlace(found=True, place="built in", source="")
    folder = find_data(source.dataset, data_dir)
    return DataPlace(folder is not None, str(folder or ""), source.dataset.source)
