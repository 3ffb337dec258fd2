"""`train`, run as people run it: every policy, what it writes, what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from esper.nissa.readers import read_jsonl
from esper.scripts.door import enter
from esper.scripts.train import train
from esper.scripts.train_config import EVALUATION_SEED, Train
from esper.simic.agent import PPOAgent
from esper.tamiyo import WaitPolicy
from esper.tolaria import EngineConfig, VectorizedEngine

TINY = ("--task", "synthetic", "--envs", "2", "--episode-length", "9", "--batches-per-step", "1",
        "--batch-size", "16", "--device", "cpu")  # fmt: skip


def call(*flags: object) -> int:
    """The command inside this process; its exit status."""
    return enter(Train, train, [str(flag) for flag in flags])


def numbers(folder: Path, policy: str) -> dict:
    return json.loads((folder / f"train_{policy}_synthetic.json").read_text())


@pytest.mark.parametrize("policy", ["wait", "random", "fixed", "static-full", "heuristic"])
def test_every_policy_runs_to_a_table_a_picture_and_numbers(policy, tmp_path, capsys):
    assert call(policy, *TINY, "--out", tmp_path) == 0
    said = capsys.readouterr().out
    for word in ("score", "accuracy, test", "member-steps/s", "executor vmap", "round 1/1"):
        assert word in said, word
    record = numbers(tmp_path, policy)
    (done,) = record["rounds"]
    assert np.shape(done["score_TE"]) == (10, 2)
    assert record["settings"]["policy"] == policy
    assert imread(tmp_path / f"train_{policy}_synthetic.png").shape[2] >= 3
    grown = np.array(done["outcome"]["added_params_E"])
    germinated = np.array(done["outcome"]["germinated_E"])
    if policy == "wait":
        assert (grown == 0).all()
    if policy == "static-full":
        assert (germinated == 0).all()
        assert (np.array(done["outcome"]["blueprint_ES"]) >= 0).all()
    if policy == "fixed":
        assert (germinated == 3).all()


def test_a_found_topology_is_trained_from_the_start(tmp_path):
    topology = ("--topology", "r0c0=norm", "r0c2=conv_light")
    assert call("static-final", *TINY, *topology, "--out", tmp_path, "--quiet") == 0
    record = numbers(tmp_path, "static-final")
    stands = np.array(record["rounds"][0]["outcome"]["blueprint_ES"])
    kinds = [record["blueprints"].index(name) for name in ("norm", "conv_light")]
    assert (stands == [kinds[0], -1, kinds[1]]).all()


def test_the_same_command_gives_the_same_numbers_whatever_is_recorded(tmp_path):
    """Twice, once with all events kept; other seeds differ."""
    first, second, other = (tmp_path / name for name in ("a", "b", "c"))
    assert call("random", *TINY, "--out", first, "--quiet") == 0
    events = ("--telemetry", "debug", "--telemetry-dir", tmp_path / "events")
    assert call("random", *TINY, "--out", second, *events) == 0
    assert call("random", *TINY, "--out", other, "--quiet", "--seed", "1") == 0
    rounds = [numbers(folder, "random")["rounds"] for folder in (first, second, other)]
    for done in (*rounds[0], *rounds[1], *rounds[2]):
        del done["seconds"]
    assert rounds[0] == rounds[1]
    assert rounds[0] != rounds[2]
    kinds = {event.type.name for event in read_jsonl(tmp_path / "events" / "events.jsonl")}
    assert {"RUN_STARTED", "SEED_GERMINATED", "STEP_COMPLETED", "RUN_FINISHED"} <= kinds


LEARN = ("ppo", *TINY, "--rounds", "2", "--evaluation-envs", "3")


def test_ppo_learns_and_is_judged_beside_the_others_on_fresh_members(tmp_path, capsys):
    events = tmp_path / "events"
    assert call(*LEARN, "--out", tmp_path, "--telemetry-dir", events) == 0
    said = capsys.readouterr().out
    for word in ("round 2/2", "3 episodes", "ppo ahead by", "heuristic", "wait", "random"):
        assert word in said, word
    record = json.loads((tmp_path / "train_ppo_synthetic_learning.json").read_text())
    assert [done["round_index"] for done in record["history"]] == [0, 1]
    assert list(record["judged"]) == ["ppo", "ppo, sampled", "wait", "random", "heuristic"]
    assert all(len(found["test_E"]) == 3 for found in record["judged"].values())
    assert record["evaluation_seed"] != record["training"]["seed"]
    engine = VectorizedEngine(
        Train("ppo", "synthetic", episode_length=9, batch_size=16, batches_per_step=1).spec(),
        EngineConfig(members=3, seed=EVALUATION_SEED, device="cpu"),
    )
    alone = engine.run_rollout(WaitPolicy()).outcome.score_E
    assert record["judged"]["wait"]["outcome"]["score_E"] == alone.tolist(), "fresh members"
    for name in ("train_ppo_synthetic.png", "train_ppo_synthetic_learning.png"):
        assert imread(tmp_path / name).shape[2] >= 3
    kinds = [event.type.name for event in read_jsonl(events / "events.jsonl")]
    assert kinds.count("PPO_UPDATED") == kinds.count("ROUND_COMPLETED") == 2
    agent = PPOAgent.load(tmp_path / "train_ppo_synthetic_agent")
    assert agent.updates_done == 2


def test_flags_of_the_learner_go_on_top_of_its_preset():
    flags = Train("ppo", task="digits_impaired", rounds=9, envs=5, blueprints=("norm",), seed=3)
    config = flags.training_config()
    assert (config.rounds, config.seed, config.population.envs) == (9, 3, 5)
    assert config.task.blueprints == flags.spec().blueprints == ("norm",)
    assert config.population.frozen_heads, "from the preset named like the task"
    plain = Train("ppo", task="digits_impaired", preset="plain").training_config()
    assert not plain.population.frozen_heads
    assert Train("ppo", task="synthetic", preset="digits_impaired").spec().name == "synthetic"


BAD = [
    (("ppo", "--preset", "digits_impared"), "digits_impaired"),
    (("ppo", "--blueprints", "depthwize"), "depthwise"),
    (("ppo", "--evaluation-envs", "0"), "--evaluation-envs 0"),
    (("ppo", "--seed", "10000019"), "kept for evaluation"),
    (("wait", "--seed", "10020018"), "kept for evaluation"),
    (("wait", "--evaluation-envs", "3"), "--evaluation-envs has no meaning for wait"),
    (("wait", "--task", "digits_impared"), "digits_impaired"),
    (("wait", "--envs", "0"), "--envs 0"),
    (("wait", "--rounds", "0"), "--rounds 0"),
    (("wait", "--task", "synthetic", "--batch-size", "5000"), "batch size 5000"),
    (("wait", "--device", "cuda:7"), "cuda:7"),
    (("wait", "--blueprint", "norm"), "--blueprint has no meaning for wait"),
    (("heuristic", "--start", "3"), "--start has no meaning for heuristic"),
    (("fixed", *TINY, "--blueprint", "conv_hevy"), "conv_heavy"),
    (("static-full", *TINY, "--slots", "r9c9"), "r9c9"),
    (("wait", *TINY, "--precision", "bf16"), "a CPU computes in fp32"),
    (("static-final", *TINY), "--topology"),
    (("static-final", *TINY, "--topology", "r0c0=norm", "r0c0=norm"), "r0c0 is named twice"),
    (("fixed", *TINY, "--slots", "r0c0", "r0c0"), "r0c0 is named twice"),
    (("fixed", *TINY, "--start", "8"), "--start 8"),
    (("static-final", *TINY, "--topology", "r0c0"), "expected slot=blueprint"),
    (("static-final", *TINY, "--topology", "r0c0=conv_lite"), "conv_light"),
    (("wait", *TINY, "--topology", "r0c0=norm"), "--topology has no meaning for wait"),
    (("wait", "--episode-length", "0"), "episode_length=0"),
    (("wait", "--task", "cifar_baseline"), "--data synthetic"),
    (("wait", "--task", "cifar_baseline", "--data-dir", "nowhere"), "nowhere"),
    (("wiat",), "wait"),
    ((), "static-full"),
    (("wait", "--env", "3"), "--envs"),
]


@pytest.mark.parametrize(("flags", "word"), BAD, ids=[" ".join(b[0][:3]) or "none" for b in BAD])
def test_bad_flags_are_refused_in_one_line(flags, word, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ESPER_DATA_DIR", raising=False)
    assert call(*flags) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert word in said


def test_a_task_without_its_data_runs_on_made_up_data_of_its_shape(tmp_path):
    flags = ("--task", "mnist1d", "--data", "synthetic", *TINY[2:], "--quiet", "--out", tmp_path)
    assert call("wait", *flags) == 0
    record = json.loads((tmp_path / "train_wait_mnist1d.json").read_text())
    assert record["settings"]["data"] == "synthetic"


TASK_FILE = """
from dataclasses import replace
from esper.tasks.registry import get_task_spec
task = replace(get_task_spec("synthetic"), name="mine", slots=("r0c1",), blueprints=("norm",))
"""


def test_a_users_task_file_runs_to_its_report(tmp_path):
    """One slot, one blueprint, one member; the report is named after the task, in strict JSON."""
    path = tmp_path / "my_task.py"
    path.write_text(TASK_FILE)
    flags = ("--task", path, "--envs", 1, "--episode-length", 1, "--batches-per-step", 1)
    assert call("random", *flags, "--batch-size", 8, "--quiet", "--out", tmp_path / "o") == 0
    assert (tmp_path / "o" / "train_random_mine.png").exists()

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    text = (tmp_path / "o" / "train_random_mine.json").read_text()
    record = json.loads(text, parse_constant=refuse)
    assert record["member_steps_per_second"] is None, "there was one step only"


def test_a_folder_that_cannot_be_written_is_refused_before_anything_runs(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert call("wait", *TINY, "--out", tmp_path / "file" / "below") == 2
    assert "--out" in capsys.readouterr().err


def start(*flags: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "esper.scripts.train", *map(str, flags)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"},
    )  # fmt: skip


def test_ctrl_c_ends_it_with_a_word_and_closed_files(tmp_path):
    events = tmp_path / "events"
    process = start("random", "--envs", "2", "--rounds", "500", "--device", "cpu", "--out",
                    tmp_path, "--telemetry-dir", events)  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(events.glob("events/*/*.parquet")) and time.monotonic() < deadline:
        time.sleep(0.1)  # until the run is under way: events are flushed as it goes
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted" in err
    kinds = [event.type.name for event in read_jsonl(events / "events.jsonl")]
    assert kinds[0] == "RUN_STARTED"
    assert kinds[-1] == "RUN_FINISHED"
    assert not list(tmp_path.glob("*.tmp")), out


def test_help_is_quick_and_names_every_setting():
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "esper.scripts.train", "--help"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0
    assert time.monotonic() - began < 30
    assert "import torch" not in done.stdout
    assert " torch\n" not in done.stderr, "help does not load torch"
    for flag in ("--task", "--envs", "--rounds", "--telemetry-dir", "--profile", "static-full"):
        assert flag in done.stdout
