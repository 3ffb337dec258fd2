"""Helpers for tests on Ray: a comparison to run, and its results."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

COMPARE = (
    "compare", "wait", "random", "static-final:random", "--task", "synthetic", "--seeds", "4",
    "--envs", "2", "--episode-length", "12", "--batches-per-step", "1", "--batch-size", "8",
    "--device", "cpu",
)  # fmt: skip


def finish(process: subprocess.Popen[str]) -> str:
    said, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return said


def compared(folder: Path) -> object:
    """The report without times."""
    found = json.loads((folder / "compare.json").read_text())
    for policy in found["policies"]:
        del policy["result"]["seconds_G"]
    return found
