"""Frontiers of `esper.grow` against tuned static networks and ASHA, at equal total compute.

    python scripts/compare_frontier.py --problems digits wine --seeds 10
    python scripts/compare_frontier.py --problems fashion --seeds 5 --device cuda --data-dir DIR

For each seed (data split, weights, batches):
  static  one architecture in six widths, each trained in full at three learning rates; the best
          rate on validation counts, the compute of all is added up
  grow    `esper.grow` from the third of them, with that compute, up to the widest one's size
  seeds   the same without other widths: seeds alone
  asha    successive halving over random topologies and widths, with that compute
All train with the same optimiser, schedule and batches. Frontiers are chosen on validation and
judged on test. Reported: hypervolume of (test score, log parameters) between the narrowest and the
widest network, and the best network on validation under each parameter cap.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

import esper
from esper.growing.data import read_data
from esper.growing.frontier import hypervolume, pareto
from esper.growing.parts import GrowPart
from esper.growing.problem import make_problem
from esper.growing.progress import ProgressPrinter
from esper.growing.run import VAL_BATCH, GrowRun
from esper.growing.settings import GrowSettings
from esper.growing.setup import make_space
from esper.growing.training import BracketTrainer, Validation
from esper.leyline.statistics import mean_estimate
from esper.scripts.cli.command import run_command

CAPS: Final = (2_000, 10_000, 50_000)
HOST: Final = 2
"""Index of the width that `esper.grow` is given."""
METHODS: Final[dict[str, dict[str, Any]]] = {
    "grow": {},
    "seeds": {"widths": ()},
    "asha": {"policy": "asha"},
}
"""Settings of `esper.grow` by method."""


@dataclass(frozen=True)
class CompareFrontier:
    """Compare frontiers at equal compute."""

    problems: tuple[str, ...] = ("digits",)
    """Names of problems, see PROBLEMS."""
    seeds: int = 10
    first_seed: int = 100
    epochs: float = 20.0
    """Epochs of a full training run."""
    device: str = "cpu"
    data_dir: Path = Path("data")
    """Folder of MNIST-1D, Fashion-MNIST and CIFAR-10."""
    workers: int = 1
    """Processes, one seed of a problem each."""
    out: Path = Path("out/frontier")
    job: str = ""
    """Internal: run this one problem:seed."""


@dataclass(frozen=True)
class Problem:
    """A data set and an architecture in several widths."""

    load: Callable[[Path, int], tuple[Any, Any | None]]
    """(data folder, seed) -> train samples, test samples or None to cut them from train."""
    build: Callable[[int], nn.Module]
    """width -> network."""
    widths: tuple[int, ...]


# ---- problems ----------------------------------------------------------------------------------


def cnn(inputs: int, classes: int) -> Callable[[int], nn.Module]:
    """Two or three stages of convolution, batch norm and ReLU."""

    def build(width: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 4 * width, 3, padding=1), nn.BatchNorm2d(4 * width), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes),
        )  # fmt: skip

    return build


def conv1d(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(1, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(width, 2 * width, 3, padding=1), nn.BatchNorm1d(2 * width), nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Conv1d(2 * width, 2 * width, 3, padding=1), nn.BatchNorm1d(2 * width), nn.ReLU(),
        nn.Flatten(), nn.Linear(20 * width, 10),
    )  # fmt: skip


def mlp(inputs: int, outputs: int) -> Callable[[int], nn.Module]:
    def build(width: int) -> nn.Module:
        return nn.Sequential(
            nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs),
        )  # fmt: skip

    return build


def _sklearn(name: str) -> Callable[[Path, int], tuple[Any, None]]:
    def load(folder: Path, seed: int) -> tuple[Any, None]:
        from sklearn import datasets

        x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        if name == "digits":
            return ((x / 16.0).reshape(-1, 1, 8, 8).astype(np.float32), y), None
        x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
        if y.dtype.kind == "f":
            y = ((y - y.mean()) / y.std()).astype(np.float32)[:, None]
        return (x, y), None

    return load


def _mnist1d(folder: Path, seed: int) -> tuple[Any, Any]:
    with np.load(folder / "mnist1d" / "mnist1d.npz") as held:
        x, y = held["x"].astype(np.float32)[:, None], held["y"].astype(np.int64)
        x_test, y_test = held["x_test"].astype(np.float32)[:, None], held["y_test"].astype(np.int64)
    return (x, y), (x_test, y_test)


def _images(task: str) -> Callable[[Path, int], tuple[Any, Any]]:
    def load(folder: Path, seed: int) -> tuple[Any, Any]:
        from esper.tasks.registry import get_task_spec

        data = get_task_spec(task).load(folder)
        parts = data.train, data.val_control, data.val_score
        x = np.concatenate([data.normalised(part) for part in parts])
        y = np.concatenate([part.labels for part in parts])
        return (x, y), (data.normalised(data.test), data.test.labels)

    return load


PROBLEMS: Final = {
    "digits": Problem(_sklearn("digits"), cnn(1, 10), (2, 3, 4, 6, 8, 12)),
    "breast_cancer": Problem(_sklearn("breast_cancer"), mlp(30, 2), (4, 6, 8, 12, 16, 24)),
    "wine": Problem(_sklearn("wine"), mlp(13, 3), (4, 6, 8, 12, 16, 24)),
    "diabetes": Problem(_sklearn("diabetes"), mlp(10, 1), (4, 6, 8, 12, 16, 24)),
    "mnist1d": Problem(_mnist1d, conv1d, (2, 3, 4, 6, 8, 12)),
    "fashion": Problem(_images("fashion_mnist"), cnn(1, 10), (4, 6, 8, 12, 16, 24)),
    "cifar10": Problem(_images("cifar_baseline"), cnn(3, 10), (4, 6, 8, 12, 16, 24)),
}


# ---- one seed ----------------------------------------------------------------------------------


@dataclass
class Point:
    """One network that was trained in full."""

    params: int
    val: float
    test: float


@dataclass
class Frontier:
    """What a method found."""

    points: list[Point] = field(default_factory=list)
    """Networks on the validation frontier."""
    runs: float = 0.0
    """Compute, in training runs of the network that `grow` is given."""
    seconds: float = 0.0

    def chosen(self, cap: float) -> Point | None:
        """The best on validation under a cap."""
        within = [point for point in self.points if point.params <= cap]
        return max(within, key=lambda p: p.val, default=None)


def train_static(
    problem: Problem, width: int, data: Any, config: CompareFrontier, seed: int
) -> tuple[list[Point], int, int]:
    """Train a width at every rate; returns points, training MACs of a sample, parameters."""
    device = torch.device(config.device)
    settings = GrowSettings(seed=seed, epochs=config.epochs, device=config.device)
    made = make_problem(lambda: problem.build(width), data, settings)
    run = GrowRun(made, settings, esper.Budget(), ProgressPrinter(verbose=False))
    builder, rates = run.builder, run.rates
    x, _ = run.batches.batch(0)
    space = make_space(builder, x[0], esper.Budget())
    population = builder(range(len(rates)))
    trainer = BracketTrainer(
        population, space, run.batches, made.objective, run.length.batches, rates
    )
    trainer.train(run.length.batches)
    scores = []
    for part in (data.val, data.test):
        held = Validation(made.packed(part).to(device), part.targets.to(device), VAL_BATCH)
        scores.append(trainer.validate(held)[0])
    params = space.costs.host_params
    points = [Point(params, float(v), float(t)) for v, t in zip(*scores, strict=True)]
    return points, space.training.host, params


def run_job(config: CompareFrontier) -> int:
    """Run one problem and seed; writes a JSON file."""
    torch.set_num_threads(1)
    name, _, number = config.job.partition(":")
    problem, seed = PROBLEMS[name], int(number)
    train, test = problem.load(config.data_dir, seed)
    data = read_data(train, test=test, seed=seed)
    train_part, val = data.train, data.val
    assert isinstance(train_part, GrowPart)
    found: dict[str, Frontier] = {"static": Frontier()}
    began, costs, sizes = time.perf_counter(), [], []
    for width in problem.widths:
        points, cost, params = train_static(problem, width, data, config, seed)
        costs.append(len(points) * cost)
        sizes.append(params)
        found["static"].points.append(max(points, key=lambda p: np.nan_to_num(p.val, nan=-9)))
    found["static"].runs = sum(costs) / (costs[HOST] / len(points))
    found["static"].seconds = time.perf_counter() - began
    for method, settings in METHODS.items():
        with tempfile.TemporaryDirectory() as folder:
            result = esper.grow(
                lambda: problem.build(problem.widths[HOST]),
                (train_part.inputs, train_part.targets),
                (val.inputs, val.targets),
                (data.test.inputs, data.test.targets),
                esper.Budget(params=sizes[-1], host_runs=found["static"].runs),
                epochs=config.epochs, seed=seed, device=config.device,
                folder=folder, verbose=False, **settings,
            )  # fmt: skip
            if not result.record.complete:
                raise KeyboardInterrupt
            networks = {n.record.number: n for n in (*result.frontier, result.host)}
            points = [Point(n.params, n.val_score, n.test_score) for n in networks.values()]
            found[method] = Frontier(points, result.record.runs, result.record.seconds)
    smallest, largest = sizes[0], sizes[-1]
    summary = {
        "problem": name, "seed": seed, "smallest": smallest, "largest": largest,
        "methods": {key: asdict(value) for key, value in found.items()},
    }  # fmt: skip
    config.out.mkdir(parents=True, exist_ok=True)
    (config.out / f"{name}_{seed}.json").write_text(json.dumps(summary, indent=1))
    return 0


# ---- all of them -------------------------------------------------------------------------------


def volume(entry: dict[str, Any], method: str, worst: float = 0.0) -> float:
    """Hypervolume on test of the networks that validation puts on the frontier."""
    points = entry["methods"][method]["points"]
    val_N = np.array([p["val"] for p in points])
    size_N = np.array([float(p["params"]) for p in points])
    front = pareto(val_N, size_N)
    test_N = np.array([p["test"] for p in points])
    return hypervolume(test_N[front], size_N[front], entry["largest"], entry["smallest"], worst)


def best_under(entry: dict[str, Any], method: str, cap: float) -> float:
    """Test score of the best network on validation under a cap; NaN if there is none."""
    frontier = Frontier([Point(**p) for p in entry["methods"][method]["points"]])
    chosen = frontier.chosen(cap)
    return math.nan if chosen is None else chosen.test


def summarise(config: CompareFrontier) -> list[str]:
    """Tables of all results in the output folder."""
    lines = []
    for name in config.problems:
        entries = [json.loads(p.read_text()) for p in sorted(config.out.glob(f"{name}_*.json"))]
        if not entries:
            continue
        sizes = f"{entries[0]['smallest']:,} to {entries[0]['largest']:,} parameters"
        lines.append(f"{name}: {len(entries)} seeds, {sizes}")
        for method in ("static", "asha", "seeds", "grow"):
            volumes = np.array([volume(entry, method) for entry in entries])
            runs = np.mean([entry["methods"][method]["runs"] for entry in entries])
            seconds = np.mean([entry["methods"][method]["seconds"] for entry in entries])
            lines.append(
                f"  {method:7} hypervolume {volumes.mean():.4f}  {runs:6.1f} host runs  "
                f"{seconds:6.0f} s"
            )
        for other in ("static", "asha", "seeds"):
            pairs = [volume(e, "grow") - volume(e, other) for e in entries]
            lines.append(f"  grow - {other:7} {_interval(pairs)}")
        for cap in CAPS:
            scores = {m: [best_under(e, m, cap) for e in entries] for m in ("static", "asha", "seeds", "grow")}  # noqa: E501  # fmt: skip
            if any(math.isnan(v) for values in scores.values() for v in values):
                continue
            shown = "  ".join(f"{m} {np.mean(v):.4f}" for m, v in scores.items())
            gains = [
                _interval(np.subtract(scores["grow"], scores[o]).tolist())
                for o in ("static", "asha")
            ]
            lines.append(f"  under {cap:,}: {shown}; grow - static {gains[0]}, - asha {gains[1]}")
    return lines


def _interval(values: list[float]) -> str:
    estimate = mean_estimate(np.array(values))
    return f"{estimate.value:+.4f} ({estimate.low:+.4f} to {estimate.high:+.4f})"


def compare(config: CompareFrontier) -> int:
    """Run all jobs, some at a time, and print the tables."""
    if config.job:
        return run_job(config)
    jobs = [
        f"{name}:{config.first_seed + offset}"
        for offset in range(config.seeds)
        for name in config.problems
    ]
    running: list[tuple[str, subprocess.Popen[bytes]]] = []
    for job in jobs:
        while len(running) >= config.workers:
            running = _still_running(running)
            time.sleep(0.2)
        words = [sys.executable, __file__, "--job", job, "--epochs", str(config.epochs),
                 "--device", config.device, "--data-dir", str(config.data_dir),
                 "--out", str(config.out)]  # fmt: skip
        running.append((job, subprocess.Popen(words)))
    while running:
        running = _still_running(running)
        time.sleep(0.2)
    print("\n".join(summarise(config)), flush=True)
    return 0


def _still_running(
    running: list[tuple[str, subprocess.Popen[bytes]]],
) -> list[tuple[str, subprocess.Popen[bytes]]]:
    for job, process in running:
        if process.poll() is not None:
            print(f"{job}: exit {process.returncode}", flush=True)
    return [(job, process) for job, process in running if process.poll() is None]


def main() -> int:
    """Run the command line."""
    return run_command(CompareFrontier, compare)


if __name__ == "__main__":
    raise SystemExit(main())
