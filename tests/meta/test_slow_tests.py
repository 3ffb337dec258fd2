"""The list of slow tests names tests that exist."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("package", [".", "lab"])
def test_every_entry_of_the_list_exists(package):
    lines = (ROOT / package / "tests" / "slow_tests.txt").read_text().splitlines()
    entries = [line for line in lines if line and not line.startswith("#")]
    assert len(set(entries)) == len(entries)
    assert 30 < len(entries) < 300, "merge tests of one promise, or make them quick"
    for entry in entries:
        file, _, test = entry.removeprefix("!").partition("::")
        source = (ROOT / package / file).read_text()
        name = test.partition("[")[0]
        assert not name or "*" in name or f"def {name}(" in source, entry
