"""Trained controllers as live policies: they act as trained, and only where they fit."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from esper.leyline.actions import ActionHead, BlendStyle
from esper.simic.agent import PPOAgent, PPOConfig
from esper.simic.client import policy_spec
from esper.simic.training.runs.controllers import find_controller
from esper.simic.training.vectorized import train_ppo_vectorized
from esper.tamiyo.frozen_heads import PLAIN_BLEND
from esper_lab.audit.live import LiveRun, LiveSettings
from esper_lab.audit.live_controllers import live_makers, load_controller, parse_live
from esper_lab.audit.live_rows import live_path
from loop_support import SMALL, tiny_config
from support import refused

GROWS = ("norm", "conv_small")
"""Two of the audit's three blueprints."""
SETTINGS = LiveSettings(draws=2, picture_hosts=0)


@pytest.fixture(scope="module")
def run(small, tmp_path_factory) -> Path:
    """A run of one round with a plan phase, in contexts of another seed."""
    path = tmp_path_factory.mktemp("runs") / "ppo"
    config = tiny_config(rounds=1, envs=2, counterfactual_stride=2, frozen_heads=PLAIN_BLEND)
    train_ppo_vectorized(config, run_dir=path, spec=replace(small.made.spec, blueprints=GROWS))
    return path


def controller(small, path: Path):
    return load_controller(path, small.made.spec, small.made.info, "cpu")


def lived(small, out: Path, make, envs: int = 8) -> LiveRun:
    live = LiveRun(out, small.audit, {"ppo": make}, SETTINGS)
    live.run(small.runner(envs))
    return live


def test_a_controller_acts_as_trained(small, run, tmp_path):
    make = controller(small, run)
    limits = make.ready.limits
    assert (limits.stride, limits.frozen_heads, limits.blueprints) == (2, PLAIN_BLEND, GROWS)
    rows = lived(small, tmp_path / "a", make).rows["ppo"]
    assert len(rows) == 2 * SETTINGS.draws
    grown = {name for seeds in rows.planted + rows.final for name in seeds}
    assert grown - {""} <= set(GROWS)
    assert grown - {""}
    assert (rows.params_N <= rows.params_cap_N).all()
    again = lived(small, tmp_path / "b", controller(small, run), envs=1).rows["ppo"]
    assert again == rows, "greedy, whatever is trained at the same time"
    engine = small.runner()._engine((0, 1), limits)
    assert engine.env.model.blueprints == GROWS
    whole = small.made.info.settings["fullest_cost"]
    assert repr(engine.context.limits.fullest_cost) == whole, "draws are those of the audit"
    frozen = dict(engine.config.frozen_heads)
    assert frozen == dict(PLAIN_BLEND) | {ActionHead.STYLE: BlendStyle.ADD}


def test_a_second_run_skips_and_other_weights_are_refused(small, run, tmp_path):
    mine = tmp_path / "mine"
    shutil.copytree(find_controller(run).folder, mine)
    live = lived(small, tmp_path, controller(small, mine))
    before = live_path(tmp_path, "ppo").read_bytes()
    again = LiveRun(tmp_path, small.audit, {"ppo": controller(small, mine)}, SETTINGS)
    assert again.missing() == []
    assert again.rows["ppo"] == live.rows["ppo"]
    PPOAgent(policy_spec(), PPOConfig(network=SMALL), seed=9).save(mine)
    said = refused(
        lambda: LiveRun(tmp_path, small.audit, {"ppo": controller(small, mine)}, SETTINGS)
    )
    assert "settings.controller is" in said
    assert "remove that file to run it again" in said
    assert live_path(tmp_path, "ppo").read_bytes() == before
    live_path(tmp_path, "ppo").unlink()
    other = lived(small, tmp_path, controller(small, mine)).rows["ppo"]
    assert other != live.rows["ppo"]


def test_a_controller_that_does_not_fit_is_one_line(small, run, tmp_path):
    spec, info = small.made.spec, small.made.info
    for changes, said in (
        ({"task": "digits_baseline"}, "task synthetic, this is an audit of digits_baseline"),
        ({"slots": info.slots[:2]}, "a controller for slots r0c0, r0c1, r0c2, this audit has r0c0"),
        ({"blueprints": ("norm",)}, "this audit has no conv_small"),
        ({"seed": 0}, "trained with seed 0, that of the audit"),
    ):
        other = replace(info, **changes)
        found = refused(lambda other=other: load_controller(run, spec, other))
        assert said in found
        assert str(run) in found
    assert "holds no controller" in refused(lambda: controller(small, tmp_path))


def test_words_name_policies_and_folders(small, run, tmp_path, monkeypatch):
    monkeypatch.chdir(run.parent)
    words = parse_live(("closed_loop", "ppo", f"mine={run}", "closed_loop", "./ppo/"))
    assert words == {"closed_loop": None, "ppo": Path("ppo"), "mine": run}
    made = live_makers(words, small.made.spec, small.made.info, "cpu")
    assert list(made) == ["closed_loop", "ppo", "ppo-untrained", "mine"], "once for one start"
    assert made["ppo"].settings == made["mine"].settings
    assert made["ppo-untrained"].settings != made["ppo"].settings
    assert made["ppo-untrained"].ready.limits == made["ppo"].ready.limits
    (tmp_path / "one").mkdir()
    (tmp_path / "ppo").mkdir()
    for words, said in (
        (("ppoo",), "or the folder of a controller"),
        (("runs/ppo",), "folder 'runs/ppo' does not exist"),
        (("x=nowhere",), "folder 'nowhere' does not exist"),
        ((str(tmp_path / "one"),), "'one' is that of another contender"),
        ((f"best={run}",), "NAME=FOLDER"),
        ((f"a b={run}",), "no name of a file"),
        (("ppo", str(tmp_path / "ppo")), "is called ppo, too"),
        (("",), "unknown live policy"),
    ):
        assert said in refused(lambda words=words: parse_live(words))
