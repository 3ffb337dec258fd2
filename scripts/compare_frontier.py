"""Frontiers of `esper.grow` against tuned static networks and ASHA, at equal total compute.

    python scripts/compare_frontier.py --problems digits wine --seeds 10
    python scripts/compare_frontier.py --problems digits --caps 2000 10000 50000
    python scripts/compare_frontier.py --problems fashion --seeds 5 --device cuda --data-dir DIR

For each seed (data split, weights, batches):
  static  one architecture in six widths, each trained in full at three learning rates; the best
          rate on validation counts, the compute of all is added up
  grow    `esper.grow` from the third of them, with that compute, up to the widest one's size
  seeds   the same without other widths: seeds alone
  asha    successive halving over random topologies and widths, with that compute
All train with the same optimiser, schedule and batches. Frontiers are chosen on validation and
judged on test. Reported: hypervolume of (test score, log parameters) between the narrowest and the
widest network, and the best network on validation. With `--caps` there is a comparison for each:
the six widths end with the widest network under the cap, and the cap is the limit of the others.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

import esper
from esper.growing.data import GrowData, read_data
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
    caps: tuple[int, ...] = ()
    """Most parameters of a network, one comparison each."""
    methods: tuple[str, ...] = tuple(METHODS)
    """Methods besides `static`."""
    seeds: int = 10
    first_seed: int = 100
    epochs: float = 20.0
    """Epochs of a full training run."""
    batch_size: int | None = None
    samples: int | None = None
    """Training samples, the first ones; None: all."""
    device: str = "cpu"
    data_dir: Path = Path("data")
    """Folder of MNIST-1D, Fashion-MNIST and CIFAR-10."""
    workers: int = 1
    """Processes, one seed of a problem each."""
    out: Path = Path("out/frontier.jsonl")
    """Results, a line for each comparison; those it holds are not run again."""
    job: str = ""
    """Internal: run this one, problem:cap:seed."""


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
    what: str = ""
    """Width and seeds."""


@dataclass
class Frontier:
    """What a method found."""

    points: list[Point] = field(default_factory=list)
    """Networks on the validation frontier."""
    runs: float = 0.0
    """Compute, in training runs of the network that `grow` is given."""
    seconds: float = 0.0


def widths_under(build: Callable[[int], nn.Module], cap: int) -> tuple[int, ...]:
    """Up to six widths at equal ratios: the widest under a cap, down to a quarter of it."""
    top = 1
    while sum(p.numel() for p in build(top + 1).parameters()) <= cap:
        top += 1
    widths = [top]
    for wanted in reversed(np.geomspace(top / 4, top, 6)[:-1]):
        widths.append(min(widths[-1] - 1, round(float(wanted))))
    return tuple(reversed([width for width in widths if width > 0]))


def train_static(
    problem: Problem, width: int, data: GrowData, config: CompareFrontier, seed: int
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
    trainer = BracketTrainer(population, space, run.batches, run.length.batches, rates)
    trainer.train(run.length.batches)
    scores = []
    for part in (data.val, data.test):
        inputs, targets = made.packed(part).to(device), part.targets.to(device)
        held = Validation(inputs, targets, VAL_BATCH, made.metric)
        scores.append(trainer.validate(held)[0])
    params = space.costs.host_params
    points = [Point(params, float(v), float(t)) for v, t in zip(*scores, strict=True)]
    return points, space.training.host, params


def train_family(
    problem: Problem, widths: Sequence[int], data: GrowData, config: CompareFrontier, seed: int
) -> tuple[Frontier, list[int]]:
    """Train all static networks; returns the best rate of each width, and their sizes."""
    found, began, costs, sizes = Frontier(), time.perf_counter(), [], []
    for width in widths:
        points, cost, params = train_static(problem, width, data, config, seed)
        costs.append(len(points) * cost)
        sizes.append(params)
        found.points.append(max(points, key=lambda p: np.nan_to_num(p.val, nan=-9)))
    found.runs = sum(costs) / (costs[HOST] / len(points))
    found.seconds = time.perf_counter() - began
    return found, sizes


def search_frontier(
    build: Callable[[], nn.Module],
    data: GrowData,
    budget: esper.Budget,
    config: CompareFrontier,
    seed: int,
    settings: dict[str, Any],
) -> Frontier:
    """The frontier of one call of `esper.grow`, the model as given included."""
    train, val, test = data.train, data.val, data.test
    assert isinstance(train, GrowPart)
    with tempfile.TemporaryDirectory() as folder:
        result = esper.grow(
            build,
            (train.inputs, train.targets), (val.inputs, val.targets), (test.inputs, test.targets),
            budget, epochs=config.epochs, batch_size=config.batch_size, seed=seed,
            device=config.device, folder=folder, verbose=False, **settings,
        )  # fmt: skip
        if not result.record.complete:
            raise KeyboardInterrupt
        networks = {n.record.number: n for n in (*result.frontier, result.host)}
        points = []
        for network in networks.values():
            what = " ".join((network.record.variant, *network.record.topology))
            points.append(Point(network.params, network.val_score, network.test_score, what))
        return Frontier(points, result.record.runs, result.record.seconds)


def run_job(config: CompareFrontier) -> int:
    """Run one comparison; adds a line to the results."""
    torch.set_num_threads(1)
    name, cap, number = config.job.split(":")
    problem, seed = PROBLEMS[name], int(number)
    train, test = problem.load(config.data_dir, seed)
    if config.samples is not None:
        train = tuple(part[: config.samples] for part in train)
    data = read_data(train, test=test, seed=seed, batch_size=config.batch_size)
    widths = widths_under(problem.build, int(cap)) if int(cap) else problem.widths
    static, sizes = train_family(problem, widths, data, config, seed)
    found = {"static": static}
    budget = esper.Budget(params=int(cap) or sizes[-1], host_runs=static.runs)
    for method in config.methods:
        found[method] = search_frontier(
            lambda: problem.build(widths[HOST]), data, budget, config, seed, METHODS[method]
        )
    summary = {
        "job": config.job, "problem": name, "cap": int(cap), "seed": seed,
        "smallest": sizes[0], "largest": sizes[-1],
        "methods": {key: asdict(value) for key, value in found.items()},
    }  # fmt: skip
    config.out.parent.mkdir(parents=True, exist_ok=True)
    with config.out.open("a") as file:  # one write: jobs run at the same time
        file.write(json.dumps(summary) + "\n")
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


def best_score(entry: dict[str, Any], method: str) -> float:
    """Test score of the best network on validation."""
    points = entry["methods"][method]["points"]
    return float(max(points, key=lambda p: np.nan_to_num(p["val"], nan=-9))["test"])


def summarise(config: CompareFrontier) -> list[str]:
    """Tables of all results."""
    lines = []
    methods = ("static", *config.methods)
    held = stored(config.out)
    for name, cap in itertools.product(config.problems, config.caps or (0,)):
        entries = [e for e in held if (e["problem"], e["cap"]) == (name, cap)]
        if not entries:
            continue
        sizes = f"{entries[0]['smallest']:,} to {entries[0]['largest']:,} parameters"
        limit = f", cap {cap:,}" if cap else ""
        lines.append(f"{name}{limit}: {len(entries)} seeds, {sizes}")
        for method in methods:
            results = [entry["methods"][method] for entry in entries]
            volumes = [volume(entry, method) for entry in entries]
            best = [best_score(entry, method) for entry in entries]
            lines.append(
                f"  {method:7} hypervolume {np.mean(volumes):.4f}  best {np.mean(best):.4f}  "
                f"{np.mean([r['runs'] for r in results]):6.1f} host runs  "
                f"{np.mean([r['seconds'] for r in results]):6.0f} s"
            )
        first, *others = [m for m in (*config.methods, "static") if m in methods]
        for other in others:
            volumes = [volume(e, first) - volume(e, other) for e in entries]
            best = [best_score(e, first) - best_score(e, other) for e in entries]
            lines.append(
                f"  {first} - {other:7} hypervolume {_interval(volumes)}  best {_interval(best)}"
            )
    return lines


def stored(path: Path) -> list[dict[str, Any]]:
    """Results of a file; none if there is none."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _interval(values: list[float]) -> str:
    estimate = mean_estimate(np.array(values))
    return f"{estimate.value:+.4f} ({estimate.low:+.4f} to {estimate.high:+.4f})"


def compare(config: CompareFrontier) -> int:
    """Run all jobs, some at a time, and print the tables."""
    if config.job:
        return run_job(config)
    done = {entry["job"] for entry in stored(config.out)}
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    wanted = itertools.product(seeds, config.problems, sorted(config.caps, reverse=True) or (0,))
    jobs = [f"{name}:{cap}:{seed}" for seed, name, cap in wanted]
    running: list[tuple[str, subprocess.Popen[bytes]]] = []
    for job in (job for job in jobs if job not in done):
        while len(running) >= config.workers:
            running = _still_running(running)
            time.sleep(0.2)
        words = [sys.executable, __file__, *sys.argv[1:], "--job", job]
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
