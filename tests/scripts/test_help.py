"""The help of commands: by topic, short by default, complete on request."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from command_tables import help_of
from esper.leyline.errors import EsperError
from esper.scripts import train
from esper.scripts.cli.help import FITS, RUN, TOPICS, USUAL, render
from esper.storage.sealed_json import sealed_bytes
from esper.tamiyo.grammar import DESCRIPTIONS
from esper.tamiyo.topology_table import TableRow, TopologyTable

LONG = ["esper train ppo", "esper train wait", "esper compare", "esper grow"]
SCREEN = 56
"""Lines of a tall terminal."""


@pytest.fixture(scope="module")
def ppo():
    return help_of("esper train ppo")


@pytest.mark.parametrize("command", LONG)
def test_short_help_fits_a_screen_and_names_every_flag(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    shown = help_of(command)
    said = render(shown, "")
    assert len(said.splitlines()) <= SCREEN
    assert max(map(len, said.splitlines())) <= 100
    assert [s.name for s in shown.settings if s.name and f"--{s.name}" not in said] == []
    assert "--help-all" in said


def test_a_command_with_few_settings_shows_them_in_full():
    shown = help_of("esper query")
    assert sum(bool(setting.name) for setting in shown.settings) <= FITS
    assert render(shown, "") == render(shown, "all")


def test_all_is_every_sentence_and_default(ppo, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    said = " ".join(render(ppo, "all").split())
    for setting in ppo.settings:
        assert setting.says.rstrip(".")[:70] in said, setting.form
    assert "--clip FLOAT PPO clip range of the joint action's probability ratio [0.2]" in said


def test_a_topic_is_shown_alone(ppo):
    said = render(ppo, "reward")
    assert "--reward.mode" in said
    assert "--rounds" not in said
    assert "run:" not in said


def test_an_unknown_topic_has_a_hint(ppo):
    with pytest.raises(EsperError, match=r"--help lerner: no such topic; did you mean learner\?"):
        render(ppo, "lerner")


def test_topics_name_settings_that_exist_once():
    names = [name for topic in TOPICS.values() for name in topic]
    assert len(names) == len(set(names))
    shown = [help_of(command) for command in (*LONG, "esper eval")]
    known = {setting.name for each in shown for setting in each.settings}
    assert set(names) | USUAL <= known
    assert all(RUN in each.topics() for each in shown)


def test_every_example_of_train_runs_as_it_is_printed(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = (TableRow(1.0, ("r0c1=norm",)), TableRow(9.0, ()))
    Path("digits_impaired.json").write_bytes(sealed_bytes(TopologyTable("digits_impaired", rows)))
    assert train.main(["--help"]) == 0
    said = capsys.readouterr().out
    examples = [shlex.split(line)[2:] for line in said.splitlines() if "  esper train" in line]
    assert [example[0].partition(":")[0] for example in examples] == ["ppo", *DESCRIPTIONS]
    assert all(f"  {kind} " in said and says in said for kind, (says, _) in DESCRIPTIONS.items())
    for example in examples:
        assert train.main([*example, "--dry-run"]) == 0, example
    short = ("--envs", "1", "--batches-per-step", "1", "--keep-members", "0", "--quiet")
    assert train.main([*examples[-1], *short]) == 0, "the one that needs a flag"


def test_help_of_a_policy_lists_its_settings(capsys):
    for word in ("static-final", "static-final:r0c0=norm", "fixed:norm@3"):
        assert train.main([word, "--help"]) == 0
        assert "--rent" in capsys.readouterr().out
