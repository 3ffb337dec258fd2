"""The `esper` command finds its rooms, and says so when it does not."""

from __future__ import annotations

import importlib

import pytest

from esper.scripts.main import COMMANDS, main


def call(monkeypatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["esper", *words])
    return main()


def test_every_command_is_a_module_with_a_door():
    for word in COMMANDS:
        assert callable(importlib.import_module(f"esper.scripts.{word}").main)


def test_help_names_every_command(monkeypatch, capsys):
    assert call(monkeypatch, "--help") == 0
    said = capsys.readouterr().out
    for word in COMMANDS:
        assert f"  {word} " in said
    assert call(monkeypatch) == 2, "nothing asked for is nothing done"


def test_an_unknown_command_is_refused_with_the_nearest(monkeypatch, capsys):
    assert call(monkeypatch, "trian") == 2
    said = capsys.readouterr().err
    assert said == "error: unknown command 'trian': did you mean train? valid: train, tasks\n"


def test_flags_and_status_are_handed_on(monkeypatch, capsys):
    assert call(monkeypatch, "train", "wait", "--envs", "0") == 2
    assert "--envs 0" in capsys.readouterr().err
    assert call(monkeypatch, "tasks", "--json") == 0
    assert "digits_impaired" in capsys.readouterr().out


def test_help_of_a_command_names_it(monkeypatch, capsys):
    with pytest.raises(SystemExit) as stop:
        call(monkeypatch, "train", "--help")
    assert stop.value.code == 0
    assert "esper train" in capsys.readouterr().out
