"""The help of the lab's commands, as the product's: by topic, short, and quick."""

from __future__ import annotations

import subprocess
import sys

import pytest

from command_tables import help_of
from esper.scripts.cli.help import TOPICS, render
from esper.scripts.main import main

SCREEN = 56
"""Lines of a tall terminal."""


def test_esper_lists_every_command_of_the_lab(monkeypatch, capsys):
    """By the entry points of the installed package."""
    monkeypatch.setattr("sys.argv", ["esper", "--help"])
    assert main() == 0
    said = capsys.readouterr().out
    for name in ("audit", "bench", "sweep"):
        assert f"  {name} " in said
    assert "cannot be loaded" not in said


@pytest.mark.parametrize("command", ["esper audit", "esper sweep", "esper bench"])
def test_short_help_fits_a_screen_and_names_every_flag(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    shown = help_of(command)
    said = render(shown, "")
    assert len(said.splitlines()) <= SCREEN
    assert max(map(len, said.splitlines())) <= 100
    assert [s.name for s in shown.settings if s.name and f"--{s.name}" not in said] == []


def test_help_is_no_error_and_loads_no_torch():
    code = (
        "import sys\n"
        "from esper.scripts.main import main\n"
        "for name in ('audit', 'bench', 'sweep'):\n"
        "    sys.argv = ['esper', name, '--help']\n"
        "    print('status', main())\n"
        "print('loaded', sorted({'torch', 'scipy', 'optuna', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    said = done.stdout
    assert [f"usage: esper {name}" in said for name in ("audit", "bench", "sweep")] == [True] * 3
    assert said.count("status 0\n") == 3
    assert said.splitlines()[-1] == "loaded []"


def test_settings_of_an_audit_have_their_topics():
    shown = help_of("esper audit").by_topic()
    assert [setting.name for setting in shown["live"]] == list(TOPICS["live"])
    assert "hosts" in [setting.name for setting in shown["population"]]
