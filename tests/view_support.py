"""Small real runs of every kind that the product writes, for tests of what people look at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import nn

import esper
from esper.leyline.telemetry import TelemetryConfig, TelemetryLevel
from esper.nissa import JsonlSink, ParquetSink
from esper.scripts.compare import main as compare
from esper.scripts.train import main as train
from esper.simic.training.vectorized import train_ppo_vectorized
from run_driver import small_run

TINY = ("--task", "synthetic", "--envs", "2", "--episode-length", "6", "--batches-per-step", "1",
        "--batch-size", "16", "--device", "cpu", "--quiet")  # fmt: skip


def ppo_run(path: Path, rounds: int = 3, events: bool = True) -> Path:
    """A learner with two members, every step recorded."""
    sinks = []
    if events:
        path.parent.mkdir(parents=True, exist_ok=True)
        elsewhere = path.with_name(f"{path.name}-events")
        elsewhere.mkdir()
        sinks = [JsonlSink(elsewhere / "events.jsonl"), ParquetSink(elsewhere)]
    level = TelemetryConfig(level=TelemetryLevel.DEBUG)
    train_ppo_vectorized(small_run(rounds), run_dir=path, sinks=sinks, telemetry=level)
    if events:  # written beside, because the run makes its own folder
        for part in elsewhere.iterdir():
            part.rename(path / part.name)
        elsewhere.rmdir()
    return path


def policy_run(root: Path, policy: str = "random", rounds: int = 2) -> Path:
    """A policy that does not learn."""
    assert train([policy, *TINY, "--rounds", str(rounds), "--runs", str(root)]) == 0
    return max(root.iterdir())


def grow_run(root: Path) -> Path:
    """A search over widths and seeds of a perceptron."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(96, 4)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int64)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    found = esper.grow(model, (x, y), budget=esper.Budget(host_runs=8), epochs=16, folder=root,
                       verbose=False, device="cpu")  # fmt: skip
    return found.folder


def compare_run(path: Path) -> Path:
    """Two policies on two hosts."""
    tiny = [word for word in TINY if word != "--envs"]
    tiny.remove("2")
    assert compare(["wait", "random", *tiny, "--seeds", "2", "--out", str(path)]) == 0
    return path
