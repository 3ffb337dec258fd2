"""How many cores a process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from esper.device import threads

LIMITED = "400000 100000\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 64),
        ({"cpu.max": LIMITED}, 4),
        ({"cpu.max": "150000 100000\n"}, 1),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "9900000 100000\n"}, 64),
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64),
        ({"cpu/cpu.cfs_quota_us": "400000\n"}, 64),
    ],
)
def test_a_container_has_as_many_cores_as_its_quota_whatever_the_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
):
    monkeypatch.setattr(threads, "_CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert threads.cores() == expected
