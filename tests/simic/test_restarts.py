"""RESTART for those who learn and record: controllers old and new, resumed runs, events, views."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from engine_support import small_engine
from esper.karn.views import EventLine, read_actions, read_rounds, read_seeds, sentences_of
from esper.leyline import LifecycleOp
from esper.leyline.codec import from_json, read_record, to_json
from esper.leyline.context import FIXED, ContextSpec
from esper.leyline.payloads import EpisodeOutcome
from esper.leyline.records import MemberRestarted
from esper.nissa import JsonlSink, ParquetSink
from esper.simic.agent import PPOAgent, PPOConfig
from esper.simic.client import ActingMode, SimicClient, policy_spec
from esper.simic.rewards.score import ScoreReward
from esper.simic.training.history import RoundRecord
from esper.simic.training.runs.controllers import find_controller
from esper.simic.training.runs.folder import RunFolder
from esper.simic.training.vectorized import train_ppo_vectorized
from esper.storage.sealed_json import seal
from esper.tamiyo import NetworkConfig
from loop_support import QUICK, SMALL, tiny_config, tiny_task, weights
from resume_support import newest, same_runs

RESTART = LifecycleOp.RESTART
ANEW = ContextSpec(actions="grow+restart")
SPEC = replace(tiny_task(episode_length=4), context=ANEW)
EAGER = replace(SMALL, op_prior=(*(0.0,) * int(RESTART), 1.0))


def config_of(rounds: int):
    return replace(tiny_config(rounds, envs=3), ppo=PPOConfig(**(QUICK | {"network": EAGER})))


def train(root: Path, rounds: int, path: Path | None = None) -> Path:
    """A run of the learner, or the rest of one."""
    config = config_of(rounds)
    if path is not None:
        train_ppo_vectorized(config, run_dir=path, resume=True, spec=SPEC)
        return path
    with RunFolder.create(root, "x", config) as folder:
        sinks = [JsonlSink(folder.path / "events.jsonl"), ParquetSink(folder.path)]
        train_ppo_vectorized(config, run_dir=folder, spec=SPEC, sinks=sinks)
        return folder.path


def told(run: Path) -> list[dict]:
    """Payloads of MEMBER_RESTARTED."""
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [line["payload"] for line in lines if line["type"] == "MEMBER_RESTARTED"]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return train(tmp_path_factory.mktemp("run"), 2)


def test_the_learner_restarts_and_its_history_counts_them(run):
    history = newest(run).load_history()
    assert sum(record.restarted for record in history) > 1
    for record in history:
        assert record.chosen_O[RESTART] == record.restarted
        assert record.chosen_O.sum() == 3 * 4


def test_a_run_that_was_interrupted_is_the_run_that_was_not(run, tmp_path):
    first = train(tmp_path, 1)
    assert same_runs(train(tmp_path, 2, first), run)


def test_events_and_views_show_restarts(run):
    restarted = [r.restarted for r in newest(run).load_history()]
    assert [point.restarts for point in read_rounds(run)] == restarted
    for actions, count in zip(read_actions(run), restarted, strict=True):
        (shown,) = [one for one in actions.ops if one.op == "RESTART"]
        assert (shown.chosen, shown.executed) == (count, count)
    assert sum(len(payload["member_N"]) for payload in told(run)) == sum(restarted)
    assert {field.name for field in fields(MemberRestarted)} == told(run)[0].keys()
    event = EventLine("MEMBER_RESTARTED", 0, 1, 0.0, {"member_N": [0, 2], "restart_N": [1, 2]})
    assert [one.text for one in sentences_of(event)] == [
        "step 2, member 0: began anew (restart 1)",
        "step 2, member 2: began anew (restart 2)",
    ]


def test_a_restart_ends_the_lives_of_seeds(run):
    removed = sum(sum(payload["seeds_removed_N"]) for payload in told(run))
    assert sum(life.end == "restarted" for life in read_seeds(run, 0, 1)) == removed > 0


# ---- controllers ----------------------------------------------------------------------------


def old_save(folder: Path) -> PPOAgent:
    """A controller as it was written before there were restarts."""
    prior = (1.0, 2.0, *(0.0,) * 7)
    network = NetworkConfig(width=16, attention_heads=2, embedding=4, op_prior=prior)
    agent = PPOAgent(policy_spec(), PPOConfig(network=network), seed=3)
    agent.save(folder)
    manifest = next(folder.glob("*.json"))
    document = json.loads(manifest.read_text())
    assert "restarts" not in document["content"]["spec"], "it is as it was"
    document["content"]["config"]["network"]["op_prior"] = list(prior)
    manifest.write_text(json.dumps(seal(document) if "checksum" in document else document))
    return agent


def decisions(agent: PPOAgent, context: ContextSpec) -> list[np.ndarray]:
    spec = replace(tiny_task(episode_length=4), context=context)
    engine, seen = small_engine(spec, members=3), []
    client = SimicClient(agent, ScoreReward(spec.upkeep), ActingMode.SAMPLE)
    original = client.act

    def watched(obs, masks, state):
        decision, after = original(obs, masks, state)
        seen.append((masks, decision))
        return decision, after

    client.act = watched  # type: ignore[method-assign]
    engine.run_rollout(client)
    return seen


def test_a_controller_of_before_still_loads_and_acts_as_before(tmp_path):
    agent = old_save(tmp_path / "old")
    loaded = find_controller(tmp_path / "old").load("cpu")
    assert loaded.spec == policy_spec()
    assert loaded.network.heads.output["OP"].out_features == RESTART
    assert all((weights(loaded)[name] == value).all() for name, value in weights(agent).items())
    before, now = decisions(agent, FIXED), decisions(loaded, ANEW)
    assert any(masks.op_EO[:, RESTART].any() for masks, _ in now)
    for (_, one), (_, two) in zip(before, now, strict=True):
        assert np.array_equal(one.actions.op, two.actions.op)
        assert np.array_equal(one.op_probability_EO, two.op_probability_EO)
        assert not two.op_probability_EO[:, RESTART].any()


def test_a_controller_that_may_restart_acts_where_it_may_not(tmp_path):
    network = NetworkConfig(width=16, attention_heads=2, embedding=4)
    PPOAgent(policy_spec(restarts=True), PPOConfig(network=network), 3).save(tmp_path / "new")
    agent = find_controller(tmp_path / "new").load("cpu")
    assert agent.network.heads.output["OP"].out_features == len(LifecycleOp)
    assert all(not d.op_probability_EO[:, RESTART].any() for _, d in decisions(agent, FIXED))
    assert any(d.op_probability_EO[:, RESTART].any() for _, d in decisions(agent, ANEW))


# ---- files of before -----------------------------------------------------------------------


def test_records_of_before_mean_that_nobody_restarted(run):
    record = to_json(newest(run).load_history()[0])
    del record["restarted"]
    record["chosen_OZ"] = record["chosen_OZ"][: int(RESTART)]
    read = read_record(RoundRecord, record, "old")
    assert read.restarted == read.chosen_O[RESTART] == 0
    context = to_json(ANEW)
    assert "min_restart_left" not in context, "hashes of contexts are as they were"
    assert from_json(ContextSpec, context, "old") == ANEW
    engine = small_engine(SPEC, members=2)
    engine.run_rollout(SimicClient(PPOAgent(policy_spec()), ScoreReward(SPEC.upkeep)))
    outcome = to_json(engine.outcome())
    del outcome["restarts_E"]
    assert read_record(EpisodeOutcome, outcome, "old").restarts_E.tolist() == [0, 0]
