"""Saved controllers in `esper compare`: lookup, acting modes, errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from esper.compare import Compare, compare_policies
from esper.compare.folder import result_path
from esper.compare.policies import make_entry, probe_notes
from esper.compare.policy_jobs import entries_of
from esper.leyline.actions import ActionHead, LifecycleOp
from esper.leyline.errors import EsperError
from esper.leyline.streams import stream_seed
from esper.simic.agent import PPOAgent, PPOConfig
from esper.simic.client import ActingMode, SimicClient, policy_spec
from esper.simic.rewards.score import ScoreReward
from esper.simic.training.config import TaskConfig
from esper.simic.training.runs.checkpoint_store import CheckpointStore
from esper.simic.training.runs.controllers import find_controller
from esper.simic.training.runs.folder import RunFolder
from esper.simic.training.vectorized import train_ppo_vectorized
from esper.tamiyo import NetworkConfig
from esper.tamiyo.frozen_heads import PLAIN_BLEND
from esper.tamiyo.grammar import parse
from esper.tasks.user_objects import UserFiles
from esper.tolaria import EngineConfig, VectorizedEngine
from loop_support import tiny_config

TASK = TaskConfig("synthetic", episode_length=5, batches_per_step=1, batch_size=16)
TINY = Compare(("wait",), TASK, seeds=2, device="cpu", quiet=True)
GROWS = ("norm", "conv_light")


def saved(folder: Path, seed: int = 0) -> Path:
    """A fresh agent that germinates readily."""
    prior = (-4.0, 4.0, *(0.0,) * (len(LifecycleOp) - 2))
    network = NetworkConfig(width=16, attention_heads=2, embedding=4, op_prior=prior)
    PPOAgent(policy_spec(), PPOConfig(network=network), seed).save(folder)
    return folder


def learnt(root: Path, **population: object) -> Path:
    """The folder of a short run of the learner."""
    config = tiny_config(rounds=2, envs=2, counterfactual_stride=4, **population)
    with RunFolder.create(root, "short", config) as folder:
        train_ppo_vectorized(config, run_dir=folder)
    return folder.path


def contender(word: object, **changes: object):
    config = replace(TINY, **changes)
    return make_entry(config, parse(str(word)), config.task.spec())


def test_a_saved_controller_acts_as_its_agent_does(tmp_path):
    """The same numbers as the agent in a bare engine with all blueprints of the task."""
    folder = saved(tmp_path / "agent")
    words = ("wait", f"greedy={folder}", f"drawn=sampled:{folder}")
    found = compare_policies(replace(TINY, policies=words, out=tmp_path / "out"))
    spec = TASK.spec()
    for label, mode in (("greedy", ActingMode.GREEDY), ("drawn", ActingMode.SAMPLE)):
        engine = VectorizedEngine(spec, EngineConfig(2, TINY.first_seed, device="cpu"))
        agent = PPOAgent.load(folder)
        agent.seed = stream_seed(agent.seed, "compare", TINY.first_seed)
        client = SimicClient(agent, ScoreReward(spec.upkeep), mode)
        outcome = engine.run_rollout(client).outcome
        result = found[label].result
        assert result.score_N.tolist() == outcome.score_E.tolist()
        assert np.array_equal(result.blueprint_NS, outcome.blueprint_ES)
        assert result.blueprints == spec.blueprints
        assert result.germinated_N.sum() > 0


def test_a_run_gives_its_best_controller_and_its_settings(tmp_path):
    run = learnt(tmp_path, frozen_heads=PLAIN_BLEND)
    best = CheckpointStore(run / "checkpoints").best().path
    assert best is not None
    controller = find_controller(run)
    folder = controller.folder
    assert controller.slots == TASK.spec().slots
    assert (controller.task, controller.blueprints) == ("synthetic", TASK.spec().blueprints)
    assert folder == best / "agent"
    assert controller == find_controller(best)
    for path in (run, best):
        found = contender(path)
        assert found.agent is not None
        limits = found.identity.limits
        assert (limits.frozen_heads, limits.counterfactual_stride) == (PLAIN_BLEND, 4)
        assert found.engine_config(TINY.population, 3, 2).frozen_heads == PLAIN_BLEND
    bare = contender(folder, preset="plain")
    assert bare.identity.agent == contender(run).identity.agent
    assert bare.identity != contender(run).identity, "its settings are not known there"


def test_a_run_with_other_slots_is_not_replayed(tmp_path):
    run = learnt(tmp_path)
    spec = TASK.spec()
    assert make_entry(TINY, parse(f"replay:{run}"), spec).parsed.kind == "replay"
    with pytest.raises(EsperError, match="recorded with slots r0c0, r0c1, r0c2, this") as refused:
        make_entry(TINY, parse(f"replay:{run}"), replace(spec, slots=spec.slots[:2]))
    assert "\n" not in str(refused.value)


def test_a_blind_controller_is_another_policy(tmp_path):
    folder = saved(tmp_path / "agent")
    seeing, blind = contender(folder), contender(f"blind:{folder}")
    assert blind.identity == replace(seeing.identity, policy="controller, blind")
    assert blind.parsed.blind


def test_an_untrained_controller_has_the_settings_and_first_weights_of_its_run(tmp_path):
    """Whatever it learnt since: the same policy, so its results are computed once."""
    folder = saved(tmp_path / "agent", seed=5)
    fresh = contender(f"untrained:{folder}")
    trained = PPOAgent.load(folder)
    with torch.no_grad():
        for parameter in trained.network.parameters():
            parameter += 1.0
    trained.save(folder)
    again = contender(f"untrained:{folder}")
    assert again.identity == fresh.identity != contender(folder).identity
    assert (again.label, again.parsed.sampled) == (fresh.label, False)
    assert contender(f"untrained:sampled:{folder}").identity.policy != fresh.identity.policy
    assert again.agent is not None
    first = PPOAgent(trained.spec, trained.config, 5).network
    for mine, begun in zip(again.agent.network.parameters(), first.parameters(), strict=True):
        assert torch.equal(mine, begun)


@pytest.mark.parametrize("threads", [2, 3])
def test_first_weights_do_not_depend_on_the_number_of_threads(threads):
    """Processes of a comparison have one, its command more."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        several = PPOAgent(policy_spec(), PPOConfig()).network.state_dict()
        assert torch.get_num_threads() == threads
        torch.set_num_threads(1)
        one = PPOAgent(policy_spec(), PPOConfig()).network.state_dict()
        assert all(torch.equal(value, one[name]) for name, value in several.items())
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("change", [{}, {"seed": 1}, {"attention_heads": 4}, {"restarts": True}])
def test_an_untrained_controller_is_named_by_what_made_it(change, monkeypatch):
    """Not by its weights, whose last bits depend on the machine."""

    def made(seed: int = 0, attention_heads: int = 2, restarts: bool = False) -> PPOAgent:
        network = NetworkConfig(attention_heads=attention_heads)
        return PPOAgent(policy_spec(restarts), PPOConfig(network=network), seed)

    one, other = made(), made(**change)
    with torch.no_grad():
        next(other.network.parameters()).add_(1e-7)
    assert (one.origin_digest() == other.origin_digest()) == (not change)


def test_untrained_stands_beside_every_controller_once(tmp_path):
    folder = saved(tmp_path / "agent")

    def labels(*policies: str) -> list[str]:
        config = replace(TINY, policies=policies)
        return [it.label for it in entries_of(config, TASK.spec(), UserFiles())]

    assert labels("wait", f"a={folder}", "random") == ["wait", "a", "a, untrained", "random"]
    assert labels(f"a={folder}", f"b={folder}") == ["a", "a, untrained", "b"]
    assert labels(f"a={folder}", f"u=untrained:{folder}") == ["a", "u"]
    drawn = labels(f"a={folder}", f"b=sampled:{folder}", f"c=blind:{folder}")
    assert drawn == ["a", "a, untrained", "b", "b, untrained", "c"]
    assert labels(f"replay:{folder}") == [f"replay:{folder}"]


@pytest.mark.parametrize(("dropout", "lines"), [(0.0, 1), (0.2, 0)])
def test_blind_warns_where_the_controller_never_saw_a_hidden_curve(tmp_path, dropout, lines):
    PPOAgent(policy_spec(), PPOConfig(curve_dropout=dropout)).save(tmp_path / "agent")
    entries = [contender(f"{how}{tmp_path / 'agent'}") for how in ("", "b=blind:")]
    notes = probe_notes(entries)
    assert len(notes) == lines
    for note in notes:
        assert "b: trained with curve_dropout 0" in note
        assert "\n" not in note


def test_every_population_has_draws_of_its_own(tmp_path):
    """Member 0 of the first and of the second population do not draw the same actions."""
    drawn = contender(f"sampled:{saved(tmp_path / 'agent', seed=5)}")
    one, two = (drawn.policy(seed) for seed in (1, 2))
    assert isinstance(one, SimicClient)
    assert isinstance(two, SimicClient)
    assert len({one.agent.seed, two.agent.seed, 5}) == 3
    assert one.agent.network is two.agent.network
    assert drawn.agent is not None
    assert drawn.agent.seed == 5


def test_a_bare_agent_is_limited_as_its_preset_says(tmp_path):
    folder = saved(tmp_path / "agent")
    assert contender(folder).identity.limits.frozen_heads == ()
    limits = contender(folder, preset="digits_impaired").identity.limits
    assert dict(limits.frozen_heads)[ActionHead.STYLE] == dict(PLAIN_BLEND)[ActionHead.STYLE]
    with pytest.raises(EsperError, match="digits_impaired"):
        contender(folder, preset="digits_impared")


def test_a_controller_that_was_trained_on_is_another_policy(tmp_path):
    """Its results are kept under its weights, not under its folder's name."""
    folder = saved(tmp_path / "agent", seed=0)
    before = contender(folder).identity
    saved(folder, seed=1)
    after = contender(folder).identity
    assert result_path(tmp_path, before) != result_path(tmp_path, after)
    moved = folder.rename(tmp_path / "elsewhere")
    assert contender(moved).identity == after
    assert contender(f"sampled:{moved}").identity != after


def test_a_controller_grows_what_it_was_trained_with_where_the_task_has_it(tmp_path):
    """Others may use all blueprints; --blueprints decides for it, too."""
    config = tiny_config(rounds=1, envs=2)
    config = replace(config, task=replace(config.task, blueprints=GROWS))
    train_ppo_vectorized(config, run_dir=tmp_path / "run")

    def offered(**changes: object) -> tuple[str, ...]:
        found = contender(tmp_path / "run", **changes)
        assert found.spec.blueprints == found.identity.limits.blueprints
        return found.spec.blueprints

    assert offered() == GROWS
    assert offered(task=replace(TASK, blueprints=("norm",))) == ("norm",)
    lora = replace(TINY, task=TASK).task.spec()
    lora = replace(lora, blueprints=("conv_heavy", "depthwise"))
    found = make_entry(TINY, parse(str(tmp_path / "run")), lora)
    assert found.spec.blueprints == lora.blueprints, "a task without them: any will do"


def test_a_controller_with_other_features_is_refused(tmp_path):
    spec = replace(policy_spec(), slot_features=7)
    PPOAgent(spec, PPOConfig()).save(tmp_path / "agent")
    with pytest.raises(EsperError, match="features, which differ in this version of Esper"):
        contender(tmp_path / "agent")


def test_a_blind_controller_does_not_see_its_curve(tmp_path):
    blind = contender(f"blind:{saved(tmp_path / 'agent')}").policy(TINY.first_seed)
    assert isinstance(blind, SimicClient)
    assert blind.hide_curve


def test_folders_that_hold_no_sound_controller_are_refused_in_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    torn = saved(tmp_path / "torn")
    (tensors,) = torn.glob("*.safetensors")
    tensors.write_bytes(tensors.read_bytes()[:-1])
    for name, word in (("empty", "holds no controller"), ("torn", "is damaged")):
        with pytest.raises(EsperError, match=word) as refused:
            contender(tmp_path / name)
        assert "\n" not in str(refused.value)


def test_a_topology_is_the_same_in_any_order():
    found = contender("static-final:r0c0=norm,r0c1=conv_light").identity
    assert found == contender("static-final:r0c1=conv_light,r0c0=norm").identity
