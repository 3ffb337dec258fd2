"""Saved and loaded agents resume bit for bit; damage and mismatches raise one line."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from esper.kasmina import MorphogeneticModel
from esper.leyline import EsperError
from esper.simic.agent import PPOAgent
from esper.simic.agent.schedule import Schedule
from esper.simic.training.runner import run_ppo_updates
from esper.storage import saves
from esper.storage.sealed_json import checksum_of
from esper.tamiyo import NetworkConfig
from ppo_support import SPEC, K, S, agent, fill, random_masks, random_obs, same_bits, weights

E, T = 4, 6


def train(it, rounds, first=0, slots=S):
    rollout, figures = it.make_buffer(T, E, slots, K), []
    for round_index in range(first, first + rounds):
        fill(it, rollout, round_index)
        figures.append(run_ppo_updates(it, 1, rollout, it.obs_normalizer))
    return figures


def made(**settings):
    settings.setdefault("learning_rate", Schedule(1e-3, 1e-4, steps=9))
    return agent(seed=3, exploration=Schedule(0.2, 0.0, steps=5), **settings)


def test_a_loaded_agent_acts_the_same(tmp_path):
    first = made()
    train(first, 1)
    first.save(tmp_path)
    second = PPOAgent.load(tmp_path)
    rng = np.random.default_rng(0)
    obs, masks = random_obs(rng, E), random_masks(rng, E)
    one, two = (it.act(obs, masks, it.initial_state(E), 5, 0).decision for it in (first, second))
    assert one == two


def test_a_fresh_agent_can_be_saved_too(tmp_path):
    fresh = made()
    fresh.save(tmp_path)
    assert train(PPOAgent.load(tmp_path), 1) == train(fresh, 1)


def test_a_save_taken_within_a_rollout_keeps_what_is_pending(tmp_path):
    first = made()
    fill(first, first.make_buffer(T, E, S, K))
    first.save(tmp_path)
    second = PPOAgent.load(tmp_path)
    for it in (first, second):
        it.obs_normalizer.commit()
    left, right = first.obs_normalizer.state(), second.obs_normalizer.state()
    assert left["global_count"] == T * E
    assert all(np.array_equal(left[key], right[key]) for key in left)


def test_heads_that_never_counted_survive_a_save(tmp_path):
    """No gradient reached them, so Adam has no moments of them."""
    gymnasium = pytest.importorskip("gymnasium")
    from gym_runner import EnvPlayer

    player = EnvPlayer(lambda: gymnasium.make("CartPole-v1"), 2, 8)
    player.learn(16)
    assert len(player.agent.optimizer.state) < len(list(player.agent.network.parameters()))
    player.agent.save(tmp_path)
    other = PPOAgent.load(tmp_path)
    assert len(other.optimizer.state) == len(player.agent.optimizer.state)
    assert same_bits(weights(player.agent), weights(other))


def test_settings_like_the_learning_rate_may_change(tmp_path):
    first = made()
    first.save(tmp_path)
    slower = replace(first.config, learning_rate=Schedule(1e-5), epochs=7)
    figures = train(PPOAgent.load(tmp_path, config=slower), 1)[0]
    assert (figures.learning_rate, figures.epochs_run) == (1e-5, 7)


# ---- refusals -----------------------------------------------------------------------------


def refused(folder: Path, load=PPOAgent.load, **wanted) -> str:
    with pytest.raises(EsperError) as error:
        load(folder, **wanted)
    line = str(error.value)
    assert "\n" not in line
    assert str(folder) in line
    return line


@pytest.fixture
def folder(tmp_path) -> Path:
    made().save(tmp_path / "save")
    return tmp_path / "save"


def test_another_network_is_refused_by_name(folder):
    config = replace(made().config, network=NetworkConfig(width=8, attention_heads=2, embedding=4))
    assert "NetworkConfig.width is 16 in the save, 8 here" in refused(folder, config=config)


def test_other_features_are_refused_by_name(folder):
    other = replace(SPEC, slot_features=9)
    assert "PolicySpec.slot_features is 3 in the save, 9 here" in refused(folder, spec=other)
    other = replace(SPEC, candidate_features=2)
    assert "PolicySpec.candidate_features is 5 in the save, 2 here" in refused(folder, spec=other)


def test_an_agent_of_an_earlier_version_is_refused_with_what_to_do(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["content"]["spec"] = {"global_features": 35, "blueprints": ["norm", "conv"]}
    manifest["checksum"] = checksum_of({k: v for k, v in manifest.items() if k != "checksum"})
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert "train a new one" in refused(folder)


@pytest.mark.parametrize("name", ["manifest.json", "tensors"])
def test_a_damaged_file_is_refused(folder, name):
    (path,) = folder.glob(f"{name}*")
    blob = bytearray(path.read_bytes())
    blob[len(blob) // 2] ^= 4
    path.write_bytes(bytes(blob))
    assert re.search("is damaged|checksum", refused(folder))


def test_a_cut_file_and_a_missing_one_are_refused(folder):
    (path,) = folder.glob("tensors*")
    path.write_bytes(path.read_bytes()[:-9])
    assert "is damaged" in refused(folder)
    path.unlink()
    assert "is missing" in refused(folder)


def test_a_folder_of_something_else_is_refused(folder, tmp_path):
    assert "does not exist" in refused(tmp_path / "nowhere")
    assert "holds a controller, not a member: load it with PPOAgent.load" in refused(
        folder, lambda path: MorphogeneticModel.load(path, lambda: None)
    )


def rewrite(folder: Path, change) -> None:
    """A manifest with another content and a right checksum."""
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest["content"])
    manifest["checksum"] = checksum_of(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_tensors_that_do_not_fit_the_settings_are_refused(folder):
    rewrite(folder, lambda content: content["spec"].update(global_features=5))
    assert "tensor 'network/encode_global.0.weight' is (16, 4)" in refused(folder)


def test_a_setting_this_version_does_not_know_is_refused(folder):
    rewrite(folder, lambda content: content["config"].update(gama=0.9))
    assert "did you mean 'gamma'" in refused(folder)


def test_moments_the_save_does_not_hold_are_refused(folder):
    rewrite(folder, lambda content: content.update(moments=["value.0.weight"]))
    assert "the save has no tensor 'optimizer/value.0.weight/" in refused(folder)


def test_a_failed_save_leaves_the_old_one(folder, monkeypatch):
    before = weights(PPOAgent.load(folder))
    other = made()
    train(other, 1)

    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saves, "write_atomic", full)
    with pytest.raises(EsperError, match="free some space"):
        other.save(folder)
    assert same_bits(before, weights(PPOAgent.load(folder)))


def test_nothing_is_unpickled(folder, monkeypatch):
    import pickle

    def forbidden(*args, **kwargs):
        raise AssertionError("unpickled")

    monkeypatch.setattr(pickle, "loads", forbidden)
    monkeypatch.setattr(pickle, "Unpickler", forbidden)
    monkeypatch.setattr(torch, "load", forbidden)
    PPOAgent.load(folder)
