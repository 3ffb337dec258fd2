"""Other packages add commands to `esper`; a broken one costs its own line, and the lab is one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from esper.scripts.main import COMMANDS, main

SOURCE = Path(__file__).parents[2] / "src"
MODULE = """
import sys
from esper.scripts.cli.plugins import Command

GREET = Command("greeter_plugin", "print a greeting")
NO_DOOR = Command("greeter_plugin.nowhere", "its module is missing")
NO_COMMAND = "print a greeting"


def main():
    print("hello", *sys.argv)
    return 3
"""
ENTRIES = """[esper.commands]
broken = greeter_plugin_missing:COMMAND
greet = greeter_plugin:GREET
nodoor = greeter_plugin:NO_DOOR
nothing = greeter_plugin:NO_COMMAND
tasks = greeter_plugin:GREET
"""


@pytest.fixture
def plugged(tmp_path, monkeypatch):
    """An installed package with entry points, some of them broken."""
    (tmp_path / "greeter_plugin.py").write_text(MODULE)
    info = tmp_path / "greeter-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greeter\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("greeter_plugin", None)


@pytest.fixture
def nothing_plugged(monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **group: [])


def call(monkeypatch, *argv: str) -> int:
    monkeypatch.setattr("sys.argv", ["esper", *argv])
    return main()


def test_a_command_of_another_package_is_listed_and_run(plugged, monkeypatch, capsys):
    assert call(monkeypatch, "--help") == 0
    assert "  greet    print a greeting\n" in capsys.readouterr().out
    assert call(monkeypatch, "greet", "--loud") == 3
    assert capsys.readouterr().out == "hello esper greet --loud\n"
    assert call(monkeypatch, "gret") == 2
    assert "did you mean greet?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("broken", "ModuleNotFoundError: No module named 'greeter_plugin_missing'"),
        ("nothing", "greeter_plugin:NO_COMMAND is no Command"),
        ("nodoor", "ModuleNotFoundError: No module named 'greeter_plugin.nowhere'"),
    ],
)
def test_a_broken_package_is_one_line_and_the_rest_works(
    plugged, monkeypatch, capsys, name, reason
):
    assert call(monkeypatch, name) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: esper {name} cannot be loaded from greeter 1.2 ({reason}")
    assert said.count("\n") == 1
    assert call(monkeypatch, "--help") == 0
    listed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert len(listed) == len({line.split()[0] for line in listed})
    assert {*COMMANDS, "greet", name} <= {line.split()[0] for line in listed}
    assert call(monkeypatch, "greet") == 3


def test_no_package_replaces_a_command_of_esper(plugged, monkeypatch, capsys):
    assert call(monkeypatch, "tasks", "--json") == 0
    assert "digits_impaired" in capsys.readouterr().out
    assert call(monkeypatch, "--help") == 0
    assert f"  tasks    {COMMANDS['tasks'].summary}\n" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["audit", "bench", "sweep"])
def test_a_command_of_the_lab_says_where_it_is(nothing_plugged, monkeypatch, capsys, name):
    assert call(monkeypatch, name, "digits_impaired") == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: esper {name} belongs to the package esper-lab, which is not")
    assert "pip install ./lab" in said
    assert said.count("\n") == 1


def test_a_command_of_esper_looks_at_no_other_package(monkeypatch, capsys):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **group: pytest.fail("asked"))
    assert call(monkeypatch, "tasks", "--json") == 0


def test_the_product_names_no_module_of_the_lab():
    """The import contract sees imports; this sees names in text that is imported later, too."""
    named = [path for path in SOURCE.rglob("*.py") if "esper_lab" in path.read_text()]
    assert not named
