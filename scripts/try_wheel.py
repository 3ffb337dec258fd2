"""Tries the installed package in an environment that holds nothing else; `make dist` runs it.

The package must come from site-packages, be typed, know its commands and shipped records, and grow
a small network.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from torch import nn

import esper
from esper_lab import bench


def installed() -> None:
    """The package is the installed one, with its type information and its records."""
    place = Path(esper.__file__).parent
    if "site-packages" not in place.parts:
        sys.exit(f"esper is imported from {place}, not from the wheel")
    if not (place / "py.typed").exists():
        sys.exit(f"{place} has no py.typed")
    for name in bench.names():
        bench.load(name)
    print(f"esper {esper.__version__} from {place}, records: {', '.join(bench.names())}")


def commands() -> None:
    """The command is there and lists tasks."""
    run = subprocess.run(
        [Path(sys.executable).parent / "esper", "tasks"], capture_output=True, text=True
    )
    if run.returncode != 0 or "digits_impaired" not in run.stdout:
        sys.exit(f"esper tasks: exit {run.returncode}: {run.stderr.strip()}")
    print(f"esper tasks: {len(run.stdout.splitlines())} lines")


def grows() -> None:
    """A small network is grown and comes back."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((300, 8)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int64)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    with tempfile.TemporaryDirectory() as folder:
        result = esper.grow(
            model,
            (x, y),
            budget=esper.Budget(host_runs=3),
            epochs=4,
            device="cpu",
            folder=folder,
            verbose=False,
        )
        print(f"esper.grow: {result.verdict}")


if __name__ == "__main__":
    installed()
    commands()
    grows()
