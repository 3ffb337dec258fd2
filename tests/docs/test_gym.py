"""docs/gym.md: its code runs, its commands are understood, and its tables name everything."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

pytest.importorskip("gymnasium", reason="gymnasium comes with the dev extra")

from esper.compare import Compare, compare_policies
from esper.compare.policies import make_entry
from esper.gym.settings import EnvSettings
from esper.gym.vector_env import EsperVectorEnv
from esper.leyline.actions import HEAD_CHOICES, ActionHead
from esper.simic.training.config import TaskConfig
from esper.tamiyo.features import FEATURE_NAMES
from esper.tamiyo.grammar import parse
from esper.tamiyo.policy import Policy
from gym_support import DRAWN, flat_env, play

PAGE = (Path(__file__).parents[2] / "docs" / "gym.md").read_text()
FIRST, LOOP, SB3, TRAINED, POLICY = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
SMALL = 'episode_length=2, batches_per_step=1, device="cpu", executor="loop"'


def shrunk(code: str, **counts: int) -> str:
    """The code with few networks and short episodes."""
    code = code.replace("num_envs=16", f"num_envs=2, {SMALL}")
    for name, count in counts.items():
        code, found = re.subn(rf"{name}\b( =|=|\()? ?\d+( \* \d+)*", rf"{name}\g<1> {count}", code)
        assert found, name
    return code


def test_the_page_leads_with_six_lines_that_work(capsys):
    assert PAGE.index(FIRST) < 100
    assert len(FIRST.strip().splitlines()) <= 7
    code, found = re.subn(r"range\(24\)", "range(2)", shrunk(FIRST))
    assert found == 1, "an episode of the task has as many steps"
    exec(compile(code, "gym.md", "exec"), {})
    assert capsys.readouterr().out.startswith("[")


def test_the_loop_learns_something(capsys):
    names: dict[str, object] = {}
    exec(compile(shrunk(LOOP, rounds=2), "gym.md", "exec"), names)
    assert "round 1: score" in capsys.readouterr().out


def test_the_example_of_sb3_runs_and_what_it_trained_enters_a_comparison(tmp_path, monkeypatch):
    pytest.importorskip("sb3_contrib", reason="sb3-contrib comes with the test-extra extra")
    code = shrunk(SB3, n_steps=2, batch_size=4, n_epochs=1).replace("10 * 24 * 16", "4")
    names: dict[str, object] = {}
    exec(compile(code, "gym.md", "exec"), names)
    assert names["model"].num_timesteps == 4
    monkeypatch.chdir(tmp_path)
    names["model"].save("model.zip")
    Path("trained.py").write_text(TRAINED)
    first, _ = re.findall(r"^esper compare (.*)$", PAGE, flags=re.MULTILINE)
    (policy,) = (word for word in first.split() if word.startswith("trained.py"))
    task = TaskConfig("digits_impaired", episode_length=2, batches_per_step=1, rent=0.25)
    config = Compare((policy,), task, seeds=2, device="cpu", executor="loop", quiet=True)
    assert compare_policies(config)["Trained"].result.score_N.shape == (2,)


def test_the_policy_has_twenty_lines_and_enters_a_comparison(tmp_path, monkeypatch):
    assert len(POLICY.strip().splitlines()) <= 20
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(POLICY)
    _, line = re.findall(r"^esper compare (.*)$", PAGE, flags=re.MULTILINE)
    policies = [word for word in shlex.split(line) if not word.startswith("--")][:3]
    task = TaskConfig("digits_impaired", episode_length=6, batches_per_step=1)
    config = Compare(tuple(policies[2:]), task, seeds=2, device="cpu", executor="loop", quiet=True)
    assert make_entry(config, parse(policies[2]), task.spec()).own is not None
    found = compare_policies(config)["KeepWhatPays"].result
    assert (found.germinated_N > 0).all()


def test_its_tables_name_every_setting_head_info_and_helper():
    for field in fields(EnvSettings):
        assert f"`{field.name}`" in PAGE, field.name
    for head in ActionHead:
        assert f"| `{head.name.lower()}` |" in PAGE
        for choice in HEAD_CHOICES.get(head, ()):
            assert choice in PAGE
    info = play(flat_env(1, DRAWN, length=1), 0, 4)[-1][4]
    for name in [*info, *info["outcome"]]:
        assert name.startswith("_") or f"`{name}`" in PAGE, name
    helpers = [name for name in vars(Policy) if not name.startswith("_")]
    for name in set(helpers) - {"act", "forget", "members", "signals", "masks"}:
        assert f"{name}(" in PAGE or f"`{name}" in PAGE or name.startswith("reads"), name


def test_its_sizes_are_those_of_the_features():
    names = FEATURE_NAMES
    for key, size in (
        ("global", f"{len(names.whole)}"),
        ("slots", f"S x {len(names.slot)}"),
        ("candidates", f"S x K x {len(names.candidate)}"),
    ):
        assert f"| `{key}` | {size} |" in PAGE
    env = EsperVectorEnv("digits_impaired", 1, frozen_heads="plain", device="cpu")
    assert f"({len(env.actions)} on `digits_impaired`)" in PAGE
