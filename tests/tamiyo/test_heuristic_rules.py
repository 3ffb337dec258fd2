"""Every rule of the heuristic can be set by a file; wrong ones are refused."""

from __future__ import annotations

from dataclasses import fields

import pytest

from esper.compare.config import Compare
from esper.compare.policies import make_entry
from esper.leyline.actions import AlphaCurve, BlendStyle
from esper.scripts.cli.command import read_command_line
from esper.scripts.train import main as train
from esper.scripts.train.config import read_train
from esper.tamiyo.grammar import parse
from esper.tamiyo.heuristic import HeuristicConfig
from esper.tamiyo.heuristic_rules import NAMES
from support import refused

OTHER = HeuristicConfig(
    trigger="plateaued", blueprints=("norm", "conv_light"), take_turns=True, seeds_at_once=1,
    min_steps_left=3, min_share_left=0.1, incubation_limit=7, probation_steps=2,
    keep_above_errors=1.5, charge=0.5, patience_steps=1, embargo_steps=4, failure_penalty=2.0,
    penalty_decay=0.5, penalty_limit=0.1, style=BlendStyle.GATE, tempo=5,
    curve=AlphaCurve.COSINE, prune_speed=0, stop_errors=1.0, stop_after=3,
)  # fmt: skip
"""Every rule with a value that is not the default."""
FILE = """
trigger = "plateaued"
blueprints = ["norm", "conv_light"]
take_turns = true
seeds_at_once = 1
min_steps_left = 3
min_share_left = 0.1
incubation_limit = 7
probation_steps = 2
keep_above_errors = 1.5
charge = 0.5
patience_steps = 1
embargo_steps = 4
failure_penalty = 2
penalty_decay = 0.5
penalty_limit = 0.1
style = "GATE"
tempo = 5
curve = "COSINE"
prune_speed = 0
stop_errors = 1.0
stop_after = 3
"""
TASK = ("--task", "synthetic")


def test_every_rule_has_another_value_in_these_tests():
    usual = HeuristicConfig()
    assert all(getattr(OTHER, name) != getattr(usual, name) for name in NAMES)
    assert {field.name for field in fields(HeuristicConfig)} == {*NAMES, "table"}


def test_every_rule_is_an_entry_of_a_file(tmp_path):
    (tmp_path / "rules.toml").write_text(FILE)
    asked = read_train(f"heuristic:{tmp_path / 'rules.toml'}", list(TASK))
    assert asked.make_policy(asked.check(), None).config == OTHER


def test_a_comparison_takes_a_file_for_each_heuristic(tmp_path):
    """Results are told apart by all rules, whatever the policy is called."""
    path = tmp_path / "rules.toml"
    path.write_text("tempo = 5")
    config = read_command_line(Compare, ["heuristic", f"heuristic:{path}", *TASK])
    config.check()
    plain, filed = (make_entry(config, parse(w), config.task.spec()) for w in config.policies)
    assert plain.identity.rules == HeuristicConfig()
    assert filed.identity.rules == HeuristicConfig(tempo=5)
    assert filed.policy(0).config == filed.identity.rules


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seeds_at_onze = 1", "did you mean 'seeds_at_once'"),
        ('tempo = "fast"', "tempo"),
        ("tempo = 99", "tempo"),
        ("charge = -1", "charge=-1"),
        ('trigger = "never"', "trigger"),
        ('style = "LOUD"', "style"),
        ('table = "t.json"', "unknown rule 'table'"),
        ("tempo 1", "is not TOML"),
        ('blueprints = ["conv_lite"]', "conv_light"),
    ],
)
def test_wrong_rules_in_a_file_are_refused_in_one_line(text, says, tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(text)
    assert says in refused(lambda: read_train(f"heuristic:{path}", list(TASK)).check())


def test_a_file_that_is_not_there_is_refused_in_one_line(capsys):
    assert train(["heuristic:absent.toml", *TASK]) == 2
    said = capsys.readouterr().err
    assert "cannot be read" in said
    assert said.count("\n") == 1
