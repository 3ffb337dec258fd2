"""Every rule of the heuristic is reachable by flag and by file; wrong ones are refused."""

from __future__ import annotations

from dataclasses import fields

import pytest

from esper.compare.config import Compare
from esper.compare.policies import make_entry
from esper.leyline.actions import AlphaCurve, BlendStyle
from esper.scripts import compare
from esper.scripts.cli.command import read_command_line
from esper.scripts.train import main as train
from esper.scripts.train.config import read_train
from esper.tamiyo.grammar import parse
from esper.tamiyo.heuristic import HeuristicConfig
from esper.tamiyo.heuristic_rules import NAMES, changed_rules, read_rules
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


def flags_of(rules: HeuristicConfig) -> list[str]:
    words: list[str] = []
    for name in changed_rules(rules):
        value, flag = getattr(rules, name), f"--heuristic.{name.replace('_', '-')}"
        if isinstance(value, bool):
            words += [flag]
        elif isinstance(value, tuple):
            words += [flag, *value]
        else:
            words += [flag, getattr(value, "name", str(value))]
    return words


def test_every_rule_has_another_value_in_these_tests():
    assert changed_rules(OTHER) == list(NAMES)
    assert {field.name for field in fields(HeuristicConfig)} == {*NAMES, "table"}


def test_every_rule_is_a_flag_and_an_entry_of_a_file(tmp_path):
    (tmp_path / "rules.toml").write_text(FILE)
    by_flag = read_train("heuristic", [*TASK, *flags_of(OTHER)])
    by_file = read_train(f"heuristic:{tmp_path / 'rules.toml'}", list(TASK))
    for asked in (by_flag, by_file):
        policy = asked.make_policy(asked.check(), None)
        assert policy.config == OTHER


def test_a_comparison_takes_rules_for_all_and_files_for_one(tmp_path):
    """Results are told apart by all rules, whatever the policy is called."""
    path = tmp_path / "rules.toml"
    path.write_text("tempo = 5")
    words = ["heuristic", f"heuristic:{path}", *TASK, "--heuristic.stop-after", "3"]
    config = read_command_line(Compare, words)
    config.check()
    plain, filed = (make_entry(config, parse(w), config.task.spec()) for w in config.policies)
    assert plain.identity.rules == HeuristicConfig(stop_after=3)
    assert filed.identity.rules == HeuristicConfig(stop_after=3, tempo=5)
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


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("wait", "--heuristic.tempo", "5"), "--heuristic.tempo has no meaning for wait"),
        (("heuristic", "--heuristic.tempo", "99"), "tempo"),
        (("heuristic", "--heuristic.temp", "1"), "--heuristic.tempo"),
        (("heuristic", *TASK, "--heuristic.blueprints", "conv_lite"), "conv_light"),
        (("heuristic:absent.toml", *TASK), "cannot be read"),
    ],
)
def test_wrong_rules_by_flag_are_refused_in_one_line(words, says, capsys):
    assert train(list(words)) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_a_rule_given_twice_is_refused_unless_both_agree(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text("charge = 0.5")
    assert read_rules(path, HeuristicConfig(charge=0.5)).charge == 0.5
    assert "charge is 0.5 there and 2.0" in refused(
        lambda: read_rules(path, HeuristicConfig(charge=2.0))
    )


def test_rules_without_a_heuristic_are_refused(capsys):
    assert compare.main(["wait", "random", "--heuristic.tempo", "5"]) == 2
    assert "heuristic is not among the policies" in capsys.readouterr().err
