"""The list of slow tests names tests that exist."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent.parent


def test_every_entry_of_the_list_exists():
    lines = (TESTS / "slow_tests.txt").read_text().splitlines()
    entries = [line for line in lines if line and not line.startswith("#")]
    assert len(set(entries)) == len(entries) > 50
    for entry in entries:
        file, _, test = entry.removeprefix("!").partition("::")
        source = (TESTS.parent / file).read_text()
        name = test.partition("[")[0]
        assert not name or "*" in name or f"def {name}(" in source, entry
