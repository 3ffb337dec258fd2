"""`esper doctor`: show device, versions, threads, executor and data.

esper doctor                            times the executors on digits_impaired
esper doctor --task cifar_baseline      on another task, with synthetic data if its data are missing
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from esper.leyline.errors import install_hint
from esper.scripts.cli.command import run_command
from esper.storage.provenance import package_version

if TYPE_CHECKING:
    from esper.tolaria.engine import VectorizedEngine

PACKAGES: Final = ("numpy", "scipy", "safetensors", "pyarrow", "tyro", "rich")
"""Required packages, besides torch."""
EXTRAS: Final = {
    "onnx": f"export to ONNX ({install_hint('export')})",
    "gymnasium": f"learner on Gymnasium environments ({install_hint('gym')})",
    "ray": f"jobs on a cluster ({install_hint('ray')})",
    "tensorboard": f"tracking with TensorBoard ({install_hint('tensorboard')})",
    "wandb": f"tracking with W&B ({install_hint('wandb')})",
    "mlflow-skinny": f"tracking with MLflow ({install_hint('mlflow')})",
}
"""Optional packages and their purpose."""


@dataclass(frozen=True)
class _Doctor:
    """Show device, versions, threads, executor and data."""

    task: str = "digits_impaired"
    """Task to time the executors on."""
    envs: int = 8
    """E: members to time them with."""
    device: str = "auto"
    """cpu, cuda, cuda:<number>; auto takes a GPU if there is one."""
    data_dir: Path | None = None
    """Folder of the data files; default $ESPER_DATA_DIR, then ./data."""


def _examine(config: _Doctor) -> None:
    """Print the report. Imports are local, so that --help is fast."""
    from rich.text import Text

    from esper.karn.terminal import Terminal

    console = Terminal(140)
    sections = {
        "device": _device_lines,
        "versions": _version_lines,
        "executor": _executor_lines,
        "data": _data_lines,
    }
    for title, lines in sections.items():
        console.print(Text(title, style="bold"))
        for line in lines(config):
            console.print(f"  {line}", highlight=False, soft_wrap=True)


def _device_lines(config: _Doctor) -> list[str]:
    """Device, precision and threads."""
    import torch

    from esper.tolaria.device_info import describe_device
    from esper.tolaria.runtime import choose_precision, parse_device

    device = parse_device(config.device)
    found = describe_device(device)
    lines = [f"{found['device']}, precision {choose_precision('auto', device)}"]
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory / 2**30
        lines.append(f"{memory:.0f} GiB, driver {found['driver']}, CUDA {found['cuda']}")
    else:
        built = torch.version.cuda or "none: this torch is built for CPUs"
        lines.append(f"no GPU in use (torch's CUDA version: {built})")
    omp = os.environ.get("OMP_NUM_THREADS", "not set")
    lines.append(
        f"{found['threads']} torch threads on {found['cores']} cores (OMP_NUM_THREADS {omp}; "
        f"on small hosts 1 is often fastest)"
    )
    return lines


def _version_lines(config: _Doctor) -> list[str]:
    """Versions of Esper, Python, torch and other dependencies."""
    import platform

    import torch

    import esper

    lines = [f"esper {esper.__version__}, Python {platform.python_version()}, "
             f"torch {torch.__version__}"]  # fmt: skip
    lines.append(", ".join(f"{name} {package_version(name)}" for name in PACKAGES))
    lines += [
        f"{use}: {name} {package_version(name)}"
        if package_version(name)
        else f"{use}: {name} is not installed"
        for name, use in EXTRAS.items()
    ]
    return lines


def _executor_lines(config: _Doctor) -> list[str]:
    """Executor of a run on the task under both profiles, and why."""
    from esper.simic.training.config import PopulationConfig, TaskConfig
    from esper.tasks.listing import locate_task_data
    from esper.tolaria.engine import VectorizedEngine

    task = TaskConfig(config.task)
    found = locate_task_data(task.spec(), config.data_dir).found
    spec = (task if found else replace(task, data="synthetic")).spec()
    population = PopulationConfig(envs=config.envs, device=config.device, profile="fast")
    data, settings = spec.load(config.data_dir), population.engine_config(seed=0)
    engine = VectorizedEngine(spec, settings, data=data)
    choice = engine.env.model.choice
    assert choice is not None  # chosen when the engine was built
    with_data = "" if found else " (synthetic data)"
    return [
        f"{spec.name}{with_data}, {config.envs} members, batches of {spec.batch_size}, "
        f"{engine.precision}",
        f"profile fast: {choice.executor.name} ({choice.reason})",
        "profile exact: vmap if the host can be vmapped, but on a CPU loop for large images",
        f"executor sharded: {_sharded_line()}",
        f"kernels: {_kernel_line(engine)}",
        f"graphs: {engine.graph_report().line()}",
        f"training data: on the {'device' if engine.batches.placement == 'device' else 'host'}",
    ]


def _sharded_line() -> str:
    """Whether networks can be cut over ranks, and by which transport."""
    import torch.distributed as dist

    if not dist.is_available():
        return "this torch is built without torch.distributed"
    nccl = "NCCL on GPUs, " if dist.is_nccl_available() else ""
    return f"under torchrun ({nccl}gloo on CPUs), docs/sharded.md"


def _kernel_line(engine: VectorizedEngine) -> str:
    """Kernels used for the members: torch's or ours, and why."""
    from esper.device.triton_support import can_build_kernels
    from esper.kasmina.ops import block_cpu
    from esper.kasmina.ops.kernels import compiled

    choice = engine.env.model.choice
    if engine.device.type != "cuda":
        problem = block_cpu.unsupported_reason()
        if problem is not None:
            return f"torch's (blocks in C: {problem})"
        return "blocks in C on large images with executor loop and profile fast, else torch's"
    if not can_build_kernels():
        return "torch's (ours need triton and a C compiler)"
    if engine.precision == "fp32":
        return "torch's for members (ours compute in half precision), ours for batches and updates"
    used = "torch" if choice is None else choice.executor.kernels
    whose = {"own": "ours", "fused": "ours with fused blocks", "torch": "torch's"}[used]
    problem = compiled.unsupported_reason(engine.device)
    lacking = f" (no fused blocks: {problem})" if problem else ""
    return f"{whose} for members, ours for batches and updates{lacking}"


def _data_lines(config: _Doctor) -> list[str]:
    """Location of each task's data set, or where to get it."""
    from esper.tasks.data_locations import data_directories
    from esper.tasks.listing import locate_task_data
    from esper.tasks.registry import get_task_spec, task_names

    lines = [f"searched in {', then '.join(map(str, data_directories(config.data_dir)))}"]
    places: dict[str, list[str]] = {}
    for name in task_names():
        data = locate_task_data(get_task_spec(name), config.data_dir)
        where = data.place if data.found else f"missing, get it from {data.source}"
        places.setdefault(where, []).append(name)
    return [*lines, *(f"{', '.join(names)}: {where}" for where, names in places.items())]


main = partial(run_command, _Doctor, _examine)
"""Entry point of the command."""
