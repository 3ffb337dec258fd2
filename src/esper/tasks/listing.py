"""List tasks with their host, slots, episode length and availability of data.

Counting parameters builds hosts, which needs torch; it is imported when the list is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from esper.leyline.user_errors import user_code
from esper.tasks.data_locations import find_data
from esper.tasks.registry import get_task_spec, task_names
from esper.tasks.spec import TaskSpec
from esper.tasks.task_data import DataFiles


@dataclass(frozen=True, slots=True)
class _DataLocation:
    """Location of a task's data."""

    found: bool
    """Whether a run could start now."""
    place: str
    """Folder, `built in` if no files are needed, or empty."""
    source: str
    """Where to download them; empty if no files are needed."""


@dataclass(frozen=True, slots=True)
class TaskListing:
    """One task of the list."""

    name: str
    """Name on the command line."""
    description: str
    """One-line description."""
    topology: str
    """Topology of the host."""
    host_parameters: int
    """Parameter count of the host."""
    host_macs: int
    """Multiply-accumulates of the host per sample."""
    slots: tuple[str, ...]
    """Slots of the host."""
    blueprints: tuple[str, ...]
    """Available blueprints."""
    batch_size: int
    """Samples in a batch."""
    batches_per_step: int
    """Batches between two decisions."""
    episode_length: int
    """Steps per episode."""
    data: _DataLocation
    """Location of its data."""


def list_tasks(data_dir: Path | None = None) -> list[TaskListing]:
    """Return all registered tasks, sorted by name."""
    return [describe_task(get_task_spec(name), data_dir) for name in task_names()]


def describe_task(spec: TaskSpec, data_dir: Path | None = None) -> TaskListing:
    """Return the list entry of one task."""
    parameters, macs = _host_size(spec)
    taken = ("name", "description", "topology", "slots", "blueprints", "batch_size")
    return TaskListing(
        **{name: getattr(spec, name) for name in taken},
        batches_per_step=spec.batches_per_step,
        episode_length=spec.episode_length,
        host_parameters=parameters,
        host_macs=macs,
        data=locate_task_data(spec, data_dir),
    )


def _host_size(spec: TaskSpec) -> tuple[int, int]:
    """Return parameter count and MACs of the host; preserves torch's random state."""
    import torch

    from esper.kasmina.layers.counting import count_macs, count_parameters

    kind = torch.int64 if spec.topology == "transformer" else torch.float32
    sample = torch.zeros((1, *spec.input_shape), dtype=kind)
    with torch.random.fork_rng(devices=[]), user_code(f"task {spec.name}: its host fails"):
        host = spec.host_factory()
        return count_parameters(host), count_macs(host, sample)


def locate_task_data(spec: TaskSpec, data_dir: Path | None = None) -> _DataLocation:
    """Locate the task's data without reading them."""
    source = spec.load_data
    if not isinstance(source, DataFiles):
        return _DataLocation(found=True, place="built in", source="")
    folder = find_data(source.dataset, data_dir)
    return _DataLocation(folder is not None, str(folder or ""), source.dataset.source)
