"""From a word to a policy: what is built, and what cannot be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from esper.leyline.context import ContextSpec
from esper.leyline.protocols import PolicyProtocol
from esper.tamiyo import (
    FixedSchedule,
    HeuristicConfig,
    HeuristicPolicy,
    RandomPolicy,
    StaticTopology,
    WaitPolicy,
)
from esper.tamiyo.grammar import parse
from esper.tamiyo.make_policy import make_policy, require_known_names
from esper.tasks.spec import TaskSpec
from esper.tasks.synthetic_images import synthetic_spec
from support import refused

SLOTS = ("r0c0", "r0c1")
SPEC = replace(
    synthetic_spec(), name="mine", slots=SLOTS, blueprints=("norm", "gate"), episode_length=9
)


def made(text: str) -> PolicyProtocol[Any]:
    return make_policy(parse(text), SPEC, seed=3, reward=None)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("wait", WaitPolicy),
        ("wait:2", WaitPolicy),
        ("random", RandomPolicy),
        ("heuristic", HeuristicPolicy),
        ("fixed", FixedSchedule),
        ("static-full", StaticTopology),
        ("static-final:r0c0=norm", StaticTopology),
        ("mine=random", RandomPolicy),
    ],
)
def test_every_kind_is_built(text, kind):
    assert type(made(text)) is kind


def test_what_a_word_says_is_what_is_built():
    assert made("random").seed == 3
    heuristic = made("heuristic:norm,conv_light")
    assert heuristic.config == HeuristicConfig(blueprints=("norm", "conv_light"))
    assert made("static-full:norm").topology == {"r0c0": "norm", "r0c1": "norm"}
    assert made("static-full:norm:r0c1").topology == {"r0c1": "norm"}
    assert made("static-final:r0c1=norm").topology == {"r0c1": "norm"}
    for text, grown in (
        ("fixed:norm@3", [(3, "r0c0", "norm"), (3, "r0c1", "norm")]),
        ("fixed:norm:r0c1", [(2, "r0c1", "norm")]),
        ("fixed:r0c1=gate,r0c0=norm@0", [(0, "r0c1", "gate"), (0, "r0c0", "norm")]),
    ):
        assert [(e.step, e.slot, e.blueprint) for e in made(text).entries] == grown


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fixed:norm@8", "step 8 is too late for an episode of 9 steps"),
        ("fixed:norm:r0c0,r0c0", "slot r0c0 is named twice"),
        ("static-final:r0c0=norm,r0c0=norm", "slot r0c0 is named twice"),
        ("static-final:r0c0=", "expected slot=blueprint"),
        ("fixed:=norm", "expected slot=blueprint"),
        (".", "esper eval '.'"),
        ("sampled:.", "esper eval '.'"),
        ("static-final:random", "esper compare 'static-final:random'"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(text, says):
    line = refused(lambda: made(text))
    assert says in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fixed:nrom", "did you mean 'norm'"),
        ("static-full:norm:r0c9", "unknown slot 'r0c9'"),
        ("heuristic:norm,nrom", "did you mean 'norm'"),
        ("static-final:r0c0=nrom", "did you mean 'norm'"),
        ("fixed:r9c9=norm", "unknown slot 'r9c9'"),
    ],
)
def test_names_that_a_task_does_not_have_are_refused(text, says):
    line = refused(lambda: require_known_names(parse(text), SLOTS, ("norm", "gate")))
    assert says in line
    assert f"in policy {text!r}" in line


def test_a_rule_of_restarting_needs_restart_among_the_actions():
    for actions in ("grow", "full"):
        without = replace(SPEC, context=ContextSpec(actions=actions))
        line = refused(lambda spec=without: built("restart:4,0.5", spec))
        assert f"RESTART is not among the actions '{actions}'" in line
        assert f'"actions": "{actions}+restart"' in line
    allowed = replace(SPEC, context=ContextSpec(actions="grow+restart"))
    rule = built("restart:4,0.5,2", allowed)
    assert (rule.step, rule.below, rule.times) == (4, 0.5, 2)
    assert "too late for an episode of 9 steps" in refused(lambda: built("restart:9,0.5", allowed))


def built(text: str, spec: TaskSpec) -> PolicyProtocol[Any]:
    return make_policy(parse(text), spec, seed=0, reward=None)
