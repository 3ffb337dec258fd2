"""Tries the installed package in an environment that holds nothing else; `make dist` runs it.

The package must come from site-packages, be typed, know its commands, run a task, grow a small
network, and need nothing of the lab.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from torch import nn

import esper


def installed() -> None:
    """The package is the installed one, with its type information."""
    place = Path(esper.__file__).parent
    if "site-packages" not in place.parts:
        sys.exit(f"esper is imported from {place}, not from the wheel")
    if not (place / "py.typed").exists():
        sys.exit(f"{place} has no py.typed")
    if importlib.util.find_spec("esper_lab") is not None:
        sys.exit("the environment holds the lab")
    print(f"esper {esper.__version__} from {place}")


def commands() -> None:
    """The command is there, lists commands and tasks, and says where those of the lab are."""
    said("grow your model", 0, "--help")
    said("digits_impaired", 0, "tasks")
    said(f"esper {esper.__version__}", 0, "--version")
    said("executor", 0, "doctor")
    said("belongs to the package esper-lab", 2, "audit", "digits_impaired")


def trains() -> None:
    """A policy runs on a task that is built in, and its run is listed."""
    small = ("--envs", "2", "--episode-length", "3", "--device", "cpu", "--quiet")
    with tempfile.TemporaryDirectory() as folder:
        said("run folder", 0, "train", "wait", "--task", "synthetic", *small, "--runs", folder)
        said("synthetic__wait", 0, "runs", "--runs", folder)


def said(expected: str, status: int, *arguments: str) -> None:
    """`esper ARGUMENTS` ends with a status and says this."""
    command = [str(Path(sys.executable).parent / "esper"), *arguments]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != status or expected not in run.stdout + run.stderr:
        sys.exit(f"esper {arguments[0]}: exit {run.returncode}: {run.stderr.strip()}")
    print(f"esper {arguments[0]}: {len((run.stdout + run.stderr).splitlines())} lines")


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
    trains()
    grows()
