"""The `esper` command dispatches to its subcommands and reports unknown ones."""

from __future__ import annotations

import importlib
import subprocess
import sys

import esper
from esper.scripts.main import COMMANDS, main


def call(monkeypatch, *argv: str) -> int:
    monkeypatch.setattr("sys.argv", ["esper", *argv])
    return main()


def test_every_command_is_a_module_with_a_door():
    for command in COMMANDS.values():
        assert callable(importlib.import_module(command.module).main)


def test_help_names_every_command(monkeypatch, capsys):
    assert call(monkeypatch, "--help") == 0
    said = capsys.readouterr().out
    for word in COMMANDS:
        assert f"  {word} " in said
    assert call(monkeypatch) == 2, "nothing asked for is nothing done"


def test_the_version_is_told(monkeypatch, capsys):
    assert call(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"esper {esper.__version__}\n"


def test_an_unknown_command_is_refused_with_the_nearest(monkeypatch, capsys):
    assert call(monkeypatch, "trian") == 2
    said = capsys.readouterr().err
    assert said.startswith("error: unknown command 'trian': did you mean train? valid: train, eval")
    assert said.count("\n") == 1


def test_flags_and_status_are_handed_on(monkeypatch, capsys):
    assert call(monkeypatch, "train", "wait", "--envs", "0") == 2
    assert "envs=0" in capsys.readouterr().err
    assert call(monkeypatch, "tasks", "--json") == 0
    assert "digits_impaired" in capsys.readouterr().out


QUICK = [(), ("train",), ("train", "ppo"), ("train", "fixed"), *((word,) for word in COMMANDS)]


def test_help_names_its_command_and_loads_no_torch():
    """What makes it quick is what it does not import; a clock would tell of the machine."""
    code = (
        "import sys\n"
        "from esper.scripts.main import main\n"
        "heavy = {'torch', 'scipy', 'sklearn', 'pyarrow'}\n"
        f"for words in {QUICK!r}:\n"
        "    sys.argv = ['esper', *words, '--help']\n"
        "    print('help of', *words)\n"
        "    try: main()\n"
        "    except SystemExit: pass\n"
        "    print('\\nloaded', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    helps = done.stdout.split("help of")[1:]
    assert len(helps) == len(QUICK)
    for said in helps:
        argv, first, *_ = said.splitlines()
        assert "usage: esper" in first, argv
        assert argv.strip() in first
        assert said.splitlines()[-1] == "loaded []", argv
