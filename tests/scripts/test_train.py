"""`esper train`: every policy, its output files and errors."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from esper.compare.judging import EVALUATION_SEED
from esper.leyline.codec import to_json
from esper.leyline.protocols import PolicyProtocol
from esper.scripts import evaluate
from esper.scripts.evaluate import _read_evaluate
from esper.scripts.train import main
from esper.scripts.train.config import read_train
from esper.scripts.train.learner_config import read_train_ppo
from esper.scripts.train.report import _file_name_of, report_path
from esper.simic.rewards.score import ScoreReward
from esper.simic.training.config import TaskConfig
from esper.simic.training.runs.folder import (
    RunFolder,
    SessionSettings,
    read_config,
    read_info,
    read_session_settings,
)
from esper.simic.training.vectorized_trainer import VectorizedPPOTrainer
from esper.storage.sealed_json import sealed_bytes
from esper.tamiyo import WaitPolicy
from esper.tamiyo.grammar import parse, parse_all
from esper.tamiyo.topology_table import TableRow, TopologyTable
from esper.tasks.scoring import Upkeep
from esper.tolaria import EngineConfig, VectorizedEngine
from event_files import read_jsonl
from resume_support import edit_checkpoint
from support import refused

TINY = ("--task", "synthetic", "--envs", "2", "--episode-length", "9", "--batches-per-step", "1",
        "--batch-size", "16", "--device", "cpu")  # fmt: skip


def call(*flags: object) -> int:
    """The command inside this process; its exit status."""
    return main([str(flag) for flag in flags])


def numbers(folder: Path, policy: str) -> dict:
    return json.loads((folder / f"train_{policy}_synthetic.json").read_text())


def test_a_table_is_planted_without_a_plan_phase_of_the_task(tmp_path):
    rows = (TableRow(1.0, ("r0c1=norm",)), TableRow(9.0, ()))
    (tmp_path / "t.json").write_bytes(sealed_bytes(TopologyTable("synthetic", rows)))
    policy = f"table:{tmp_path / 't.json'}"
    assert call(policy, *TINY, "--out", tmp_path / "out") == 0
    (path,) = (tmp_path / "out").glob("*.json")
    written = json.loads(path.read_text())
    kinds_ES = np.array([done["outcome"]["blueprint_ES"] for done in written["rounds"]])
    norm = written["blueprints"].index("norm")
    assert (kinds_ES == [norm if slot == "r0c1" else -1 for slot in written["slots"]]).all()


@pytest.mark.parametrize("policy", ["wait", "random", "fixed", "static-full", "heuristic"])
def test_every_policy_runs_to_a_table_and_numbers(policy, tmp_path, capsys):
    assert call(policy, *TINY, "--out", tmp_path) == 0
    said = capsys.readouterr().out
    for word in ("score", "accuracy, test", "member-steps/s", "executor vmap", "round 1/1"):
        assert word in said, word
    record = numbers(tmp_path, policy)
    (done,) = record["rounds"]
    assert np.shape(done["score_TE"]) == (10, 2)
    assert record["settings"]["policy"] == policy
    assert record["settings"]["task"]["episode_length"] == 9
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
    word = "static-final:r0c0=norm,r0c2=conv_light"
    assert call(word, *TINY, "--out", tmp_path, "--quiet") == 0
    record = numbers(tmp_path, "static-final-r0c0-norm-r0c2-conv_light")
    assert record["settings"]["policy"] == word
    stands = np.array(record["rounds"][0]["outcome"]["blueprint_ES"])
    kinds = [record["blueprints"].index(name) for name in ("norm", "conv_light")]
    assert (stands == [kinds[0], -1, kinds[1]]).all()


def test_waiting_longer_is_paid_for_as_in_a_comparison(tmp_path):
    short = ("--task", "synthetic", "--episode-length", "4", *TINY[6:], "--rent", "2", "--quiet")
    assert call("wait:1.5", *short, "--envs", 2, "--out", tmp_path) == 0
    (done,) = numbers(tmp_path, "wait-1.5")["rounds"]
    task = TaskConfig("synthetic", (), 6, 16, 1, rent=2.0)
    engine = VectorizedEngine(task.spec(), EngineConfig(members=2, device="cpu"))
    alone = engine.run_rollout(WaitPolicy()).outcome
    assert np.shape(done["score_TE"]) == (7, 2)
    assert done["outcome"]["accuracy_E"] == alone.accuracy_E.tolist()
    assert done["outcome"]["flops_ratio_E"] == [1.5, 1.5]
    paid_E = alone.score_E - 0.5 * task.spec().score.c_f
    np.testing.assert_allclose(done["outcome"]["score_E"], paid_E, atol=1e-12)
    np.testing.assert_allclose(done["score_TE"][-1], paid_E, atol=1e-12)


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("wait", "wait"),
        ("static-full", "static-full"),
        ("mine=fixed:norm@3:r0c0,r0c1", "fixed-norm-3-r0c0-r0c1"),
        ("heuristic:../x,\udce9 b", "heuristic-..-x-udce9-b"),
    ],
)
def test_every_word_is_a_sane_file_name(word, name):
    place = report_path(read_train(word, ["--out", "here"]), "task")
    assert place == Path(f"here/train_{name}_task.json")


def test_long_words_are_cut_in_file_names_and_stay_apart():
    names = {_file_name_of(parse(f"heuristic:{'norm,' * 50}{last}")) for last in "ab"}
    assert len(names) == 2
    assert max(map(len, names)) < 100


ALL_FORMS = (
    "wait", "wait:1.5", "random", "heuristic", "heuristic:norm,conv_light", "fixed", "fixed:norm",
    "fixed:norm@3", "fixed:norm:r0c0", "fixed:norm@3:r0c0,r0c2",
    "fixed:r0c0=norm,r0c1=attention@4",
    "static-full", "static-full:norm", "static-full:norm:r0c1", "static-final:r0c0=norm",
    "static-final:heuristic", "static-final:run", "run", "sampled:run",
)  # fmt: skip
REFUSED = ("static-final:heuristic", "static-final:run", "run", "sampled:run")


@pytest.mark.parametrize("label", ["", "my label="])
@pytest.mark.parametrize("word", ALL_FORMS)
def test_every_word_of_a_comparison_is_taken_or_refused_in_one_line(
    word, label, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    assert parse_all([label + word])[0].text == word
    asked = read_train(label + word, list(TINY))
    if word in REFUSED:
        line = refused(asked.check)
        assert ("esper compare" if word.startswith("static-final") else "esper eval") in line
    else:
        spec = asked.check()
        assert isinstance(asked.make_policy(spec, ScoreReward(Upkeep())), PolicyProtocol)


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


LEARN = ("ppo", *TINY, "--episode-length", "4", "--rounds", "2", "--evaluation-envs", "3")


def only_run(folder: Path) -> Path:
    (run,) = folder.iterdir()
    return run


@pytest.fixture(scope="module")
def learnt(tmp_path_factory) -> tuple[Path, str]:
    """The folder of a run of two rounds, and what was said."""
    root, said = tmp_path_factory.mktemp("runs"), io.StringIO()
    with contextlib.redirect_stdout(said):
        assert call(*LEARN, "--runs", root) == 0
    return only_run(root), said.getvalue()


def test_ppo_learns_and_is_judged_beside_the_others_on_fresh_members(learnt):
    run, said = learnt
    for word in ("round 2/2", "3 episodes", "minus ppo", "heuristic", "wait", "random"):
        assert word in said, word
    record = json.loads((run / "report" / "learning.json").read_text())
    assert [done["round_index"] for done in record["history"]] == [0, 1]
    assert list(record["judged"]) == [
        "ppo", "ppo, sampled", "static-final", "untrained", "untrained, sampled", "asha:2",
        "wait", "random", "heuristic",
    ]  # fmt: skip
    grown, planted = (record["judged"][name]["outcome"] for name in ("ppo", "static-final"))
    assert planted["blueprint_ES"] == grown["blueprint_ES"]
    assert sum(planted["germinated_E"]) == 0
    assert "static-final plants the final topologies of ppo" in said
    for found in record["judged"].values():
        assert all(len(found[name]) == 3 for name in ("test_E", "score_test_E", "compute_E"))
    assert record["evaluation_seed"] != record["training"]["seed"]
    task = TaskConfig("synthetic", episode_length=4, batch_size=16, batches_per_step=1)
    engine = VectorizedEngine(
        task.spec(), EngineConfig(members=3, seed=EVALUATION_SEED, device="cpu")
    )
    alone = engine.run_rollout(WaitPolicy()).outcome.score_E
    assert record["judged"]["wait"]["outcome"]["score_E"] == alone.tolist(), "fresh members"


def test_everything_about_a_run_is_in_its_folder(learnt):
    run, said = learnt
    for name in ("judged.json", "learning.json"):
        assert f"report/{name}" in said
    kinds = [event.type.name for event in read_jsonl(run / "events.jsonl")]
    assert kinds.count("PPO_UPDATED") == kinds.count("ROUND_COMPLETED") == 2
    checkpoints = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert checkpoints == ["round-000001", "round-000002"]
    config = read_config(run)
    assert (config.rounds, config.population.envs, config.task.episode_length) == (2, 2, 4)


class Kill(BaseException):
    """Ends a run like a kill: nothing catches it."""


def test_a_killed_run_resumes_from_the_command_line_as_if_it_had_never_stopped(
    learnt, tmp_path, monkeypatch, capsys
):
    """Killed in its second round; events of the second session go elsewhere."""
    whole, _ = learnt
    rollout, begun = VectorizedPPOTrainer.run_rollout, []

    def killed(trainer):
        begun.append(trainer.engine.round)
        if len(begun) == 2:
            raise Kill
        return rollout(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(VectorizedPPOTrainer, "run_rollout", killed)
        with pytest.raises(Kill):
            call(*LEARN, "--runs", tmp_path, "--quiet")
    run = only_run(tmp_path)
    before = (run / "events.jsonl").read_bytes()
    events = tmp_path / "events"
    assert call("ppo", "--resume", run, "--quiet", "--telemetry-dir", events) == 0
    assert "resume: 1 of 2 rounds are done" in capsys.readouterr().err
    reports = [
        json.loads((folder / "report" / "learning.json").read_text()) for folder in (run, whole)
    ]
    for report in reports:
        for done in report["history"]:
            for measured in ("rollout_seconds", "update_seconds"):
                del done[measured]
    assert reports[0] == reports[1]
    assert [session.from_round for session in read_info(run).sessions] == [0, 1]
    assert (run / "events.jsonl").read_bytes() == before
    kinds = [event.type.name for event in read_jsonl(events / "events.jsonl")]
    assert (kinds[0], kinds[-1]) == ("RUN_STARTED", "RUN_FINISHED")


def test_a_controller_is_judged_again_with_the_numbers_of_its_run(learnt, tmp_path):
    run, _ = learnt
    last = run / "checkpoints" / "round-000002"
    assert evaluate.main([str(last), "--envs", "3", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "eval_synthetic_judged.json").read_text())
    reported = json.loads((run / "report" / "learning.json").read_text())
    for part in ("judged", "evaluation_seed"):
        assert found[part] == reported[part]
    assert found["checkpoint"] == str(last)


def test_a_run_resumes_with_the_session_settings_it_was_started_with(tmp_path, monkeypatch, capsys):
    """Judged on as many, its events as many and where they were, from wherever it is resumed."""
    (tmp_path / "here" / "sets").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    around = ("--telemetry", "minimal", "--telemetry-dir", "events", "--data-dir", "sets")
    short = ("--episode-length", "3", "--rounds", "1", "--quiet")
    assert call(*LEARN, *short, "--runs", tmp_path / "runs", *around) == 0
    run, events = only_run(tmp_path / "runs"), tmp_path / "here" / "events" / "events.jsonl"
    before = [event.type.name for event in read_jsonl(events)]
    (run / "report" / "learning.json").unlink()
    monkeypatch.chdir(tmp_path)
    assert call("ppo", "--resume", run, "--rounds", "2", "--quiet") == 0
    record = json.loads((run / "report" / "learning.json").read_text())
    assert all(len(found["test_E"]) == 3 for found in record["judged"].values())
    kinds = [event.type.name for event in read_jsonl(events)]
    assert kinds[: len(before)] == before
    assert kinds.count("RUN_STARTED") == kinds.count("ROUND_COMPLETED") == 2
    assert "PPO_UPDATED" not in kinds
    assert not (run / "events.jsonl").exists()
    asked = read_train_ppo(["--resume", str(run)])
    assert asked.data_dir == tmp_path / "here" / "sets"


def test_a_controller_is_judged_on_the_data_of_its_run(tmp_path):
    sets = tmp_path / "sets"
    sets.mkdir()
    config = read_train_ppo([*LEARN[1:], "--data-dir", str(sets)])
    with RunFolder.create(tmp_path, "x", config.training, config.session) as folder:
        run = folder.path
    assert _read_evaluate([str(run)])[0].data_dir == sets
    assert _read_evaluate([str(run), "--data-dir", "/others"])[0].data_dir == Path("/others")
    sets.rmdir()  # as on another machine
    assert _read_evaluate([str(run)])[0].data_dir is None
    assert read_train_ppo(["--resume", str(run)]).data_dir is None


def test_surroundings_change_where_the_command_line_says_so_and_stay_changed(tmp_path):
    config = read_train_ppo([*LEARN[1:], "--data-dir", "/sets", "--telemetry", "debug"])
    with RunFolder.create(tmp_path, "x", config.training, config.session) as folder:
        run = folder.path
    assert read_session_settings(run) == SessionSettings(3, "/sets", "debug", None)
    flags = ("--evaluation-envs", "5", "--telemetry", "off", "--data-dir", "None")
    told = read_train_ppo(["--resume", str(run), *flags])
    assert (told.evaluation_envs, told.data_dir, told.recording.telemetry) == (5, None, "off")
    assert read_session_settings(run).evaluation_envs == 3, "asking changes nothing"
    with RunFolder.open(run) as folder:
        folder.save_session_settings(told.session)
    again = read_train_ppo(["--resume", str(run)])
    assert again.session == told.session == SessionSettings(5, None, "off", None)
    assert read_train_ppo(LEARN[1:]).session == SessionSettings(3), "a new run has its own"


def test_a_run_with_the_usual_session_settings_has_no_file_of_them(tmp_path):
    config = read_train_ppo(TINY)
    with RunFolder.create(tmp_path, "x", config.training, config.session) as folder:
        assert not (folder.path / "session.json").exists()
        asked = read_train_ppo(["--resume", str(folder.path)])
        assert asked.session == SessionSettings()
        (folder.path / "session.json").write_text(
            json.dumps(to_json(SessionSettings()) | {"telemetry": "loud"})
        )
        line = refused(lambda: read_train_ppo(["--resume", str(folder.path)]))
        assert "session.json.telemetry" in line


def test_another_task_or_population_is_another_run(learnt, capsys):
    run, _ = learnt
    for flags, word in (
        (("--envs", "5"), "population.envs is 2 there and 5 here"),
        (("--blueprints", "norm"), "task.blueprints"),
        (("--task", "digits_impaired"), "task.name"),
        (("--seed", "3"), "seed is 0 there and 3 here"),
    ):
        assert call("ppo", "--resume", run, *flags) == 2
        assert word in capsys.readouterr().err
    assert call("ppo", "--resume", run, "--preset", "plain") == 2
    assert "--preset plain" in capsys.readouterr().err


def test_a_plan_trains_nothing_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for policy in ("ppo", "random"):
        assert call(policy, *TINY, "--rounds", "5", "--dry-run") == 0
        said = capsys.readouterr().out
        words = ("parameters", "MACs", "45 steps", "90 member-steps", "training samples")
        for word in words:
            assert word in said, word
    assert not list(tmp_path.iterdir())


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_plan_of_a_resumed_run_is_for_the_rounds_that_are_left(learnt, tmp_path, capsys):
    run, _ = learnt
    before = contents(run)
    assert call("ppo", "--resume", run, "--rounds", "5", "--dry-run") == 0
    said = capsys.readouterr().out
    words = ("2 of 5 rounds are done, 3 left", "3 rounds of 4 steps = 12 steps", "3 updates")
    for word in (*words, "rounds: 2 -> 5"):
        assert word in said, word
    assert call("ppo", "--resume", run, "--dry-run") == 0
    assert "0 rounds of 4 steps = 0 steps" in capsys.readouterr().out
    for flags, word in (
        (("--rounds", "1"), "already has 2 rounds"),
        (("--envs", "5"), "envs is 2"),
    ):
        assert call("ppo", "--resume", run, *flags, "--dry-run") == 2
        assert word in capsys.readouterr().err
    assert contents(run) == before, "nothing was written"
    run = Path(shutil.copytree(learnt[0], tmp_path / learnt[0].name))
    spoilt = run / "checkpoints" / "round-000002" / "state.json"
    spoilt.write_text(spoilt.read_text() + " ")
    before = contents(run)
    assert call("ppo", "--resume", run, "--dry-run") == 0
    said = capsys.readouterr().out
    assert "1 of 2 rounds are done, 1 left" in said
    assert "round-000002" in said
    assert "the run would resume without it" in said
    assert contents(run) == before, "nothing was set aside"


def test_what_could_not_go_on_has_no_plan(learnt, tmp_path, capsys):
    """A task that changed since, under the same name and settings."""
    run = Path(shutil.copytree(learnt[0], tmp_path / learnt[0].name))
    for path in (run / "checkpoints").iterdir():
        edit_checkpoint(path, "state.json", lambda state: state["task"]["score"].update(c_p=0.5))
    for flags in ((), ("--dry-run",)):
        assert call("ppo", "--resume", run, "--quiet", *flags) == 2
        assert "task.score.c_p is 0.5 there" in capsys.readouterr().err


def test_whose_kernels_compute_is_kept_with_the_run(tmp_path):
    config = read_train_ppo([*LEARN[1:], "--kernels", "torch"])
    with RunFolder.create(tmp_path, "x", config.training, config.session) as folder:
        assert read_config(folder.path).population.kernels == "torch"
    assert read_train("wait", ["--kernels", "own"]).training.engine_config().kernels == "own"


BAD = [
    (("ppo", "--kernels", "stock"), "--kernels"),
    (("wait", "--kernels", "stock"), "--kernels"),
    (("ppo", "--preset", "digits_impared"), "digits_impaired"),
    (("ppo", "--blueprints", "depthwize"), "depthwise"),
    (("ppo", "--evaluation-envs", "0"), "--evaluation-envs 0"),
    (("ppo", "--seed", "10000019"), "reserved for evaluation"),
    (("ppo", "--rounds", "0"), "rounds=0"),
    (("ppo", "--rollout-steps", "99"), "has 24 steps"),
    (("ppo", "--frozen-heads", "STYLE", "9"), "frozen head STYLE: index 9"),
    (("ppo", "--config", "none.toml"), "none.toml cannot be read"),
    (("ppo", "--config", "none.ini"), "must end in .toml or .json"),
    (("ppo", "--device", "cuda:7"), "cuda:7"),
    (("ppo", "--resume", "nowhere"), "nowhere does not exist"),
    (("ppo", "--resume"), "runs does not exist"),
    (("ppo", *TINY, "--run-name", "a/b"), "run name 'a/b'"),
    (("ppo", *TINY, "--runs", "/proc/nowhere"), "cannot write to /proc/nowhere"),
    (("ppo", *TINY, "--precision", "bf16"), "a CPU supports fp32 only"),
    (("ppo", "--keep", "0"), "--keep 0"),
    (("ppo", "--rent", "-1"), "rent=-1.0"),
    (("ppo", "--task", "cifar_baseline"), "$ESPER_DATA_DIR"),
    (("ppo", "--task", "cifar_baseline"), "./data"),
    (("ppo", "--task", "cifar_baseline"), "--data synthetic"),
    (("ppo", "--learning-rate", "1", "2"), "START END UPDATES"),
    (("wait", "--config", "none.toml"), "none.toml cannot be read"),
    (("--task", "synthetic", "wait"), "name the policy before any flag"),
    (("wait", "--seed", "10020018"), "reserved for evaluation"),
    (("wait", "--evaluation-envs", "3"), "--evaluation-envs"),
    (("wait", "--task", "digits_impared"), "digits_impaired"),
    (("wait", "--envs", "0"), "envs=0"),
    (("wait", "--rounds", "0"), "--rounds 0"),
    (("wait", "--task", "synthetic", "--batch-size", "5000"), "batch size 5000"),
    (("wait", "--device", "cuda:7"), "cuda:7"),
    (("wait", "--rollout-steps", "3"), "--rollout-steps has no meaning for wait"),
    (("fixed:conv_hevy", *TINY), "conv_heavy"),
    (("static-full:norm:r9c9", *TINY), "r9c9"),
    (("heuristic:norm,conv_lite", *TINY), "conv_light"),
    (("wait", *TINY, "--precision", "bf16"), "a CPU supports fp32 only"),
    (("static-final", *TINY), "give a topology"),
    (("static-final:r0c0=norm,r0c0=norm", *TINY), "r0c0 is named twice"),
    (("fixed:norm:r0c0,r0c0", *TINY), "r0c0 is named twice"),
    (("fixed:norm@8", *TINY), "step 8 is too late for an episode of 9 steps"),
    (("static-final:r0c0=", *TINY), "expected slot=blueprint"),
    (("static-final:r0c0=conv_lite", *TINY), "conv_light"),
    (("static-final:heuristic", *TINY), "esper compare 'static-final:heuristic'"),
    (("static-final:heurstic", *TINY), "did you mean 'heuristic'"),
    ((".", *TINY), "esper eval '.'"),
    (("sampled:.", *TINY), "esper eval '.'"),
    (("wait:0", *TINY), "expected wait:FACTOR"),
    (("pp0", *TINY), "did you mean 'ppo'"),
    (("wait", "--episode-length", "0"), "episode_length=0"),
    (("wait", "--task", "cifar_baseline"), "--data synthetic"),
    (("wait", "--task", "cifar_baseline", "--data-dir", "nowhere"), "nowhere"),
    (("wiat",), "wait"),
    ((), "static-full"),
    (("wait", "--env", "3"), "--envs"),
]


@pytest.mark.parametrize("some", [pytest.param(BAD, id="all"), pytest.param(BAD[:2], id="two")])
def test_bad_flags_are_refused_in_one_line(some, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ESPER_DATA_DIR", raising=False)
    for flags, word in some:
        assert call(*flags) == 2, flags
        said = capsys.readouterr().err
        assert said.startswith("error: "), flags
        assert said.count("\n") == 1, said
        assert word in said, flags


def test_a_task_without_its_data_runs_on_made_up_data_of_its_shape(tmp_path):
    flags = ("--task", "mnist1d", "--data", "synthetic", *TINY[2:], "--quiet", "--out", tmp_path)
    assert call("wait", *flags) == 0
    record = json.loads((tmp_path / "train_wait_mnist1d.json").read_text())
    assert record["settings"]["task"]["data"] == "synthetic"


def test_a_learners_settings_give_whole_episodes_to_a_policy_that_does_not_learn(tmp_path):
    """Where it updates in the middle of an episode is nothing to who never updates."""
    file = tmp_path / "learner.toml"
    file.write_text("[population]\nrollout_steps = 3\n")
    flags = ("--config", file, *TINY, "--rounds", 2, "--quiet", "--out", tmp_path)
    assert call("wait", *flags) == 0
    rounds = numbers(tmp_path, "wait")["rounds"]
    assert [np.isfinite(done["score_TE"]).all() for done in rounds] == [True, True]
    assert rounds[0]["score_TE"] != rounds[1]["score_TE"]


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


REWARD = """
from esper.leyline.rewards import RewardComponentsTelemetry

def mine(inputs, /):
    parts = {"accuracy": inputs.accuracy_E - inputs.accuracy_before_E}
    components = RewardComponentsTelemetry.of(parts, inputs.members)
    return components.total, components
"""


@pytest.mark.parametrize("own_reward", [False, True])
def test_a_learner_that_is_stopped_saves_and_says_how_to_resume(own_reward, tmp_path):
    reward = tmp_path / "mine.py"
    reward.write_text(REWARD)
    own = ("--reward", f"{reward}:mine") if own_reward else ()
    process = start(*LEARN, *own, "--rounds", "500", "--runs", tmp_path / "runs")
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("runs/*/checkpoints/round-*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    run = only_run(tmp_path / "runs")
    (said,) = [line for line in err.splitlines() if "resume with: " in line]
    consent = " --trust" if own_reward else ""
    assert said.endswith(f"resume with: esper train ppo --resume {run}{consent}")
    assert [copy.read_text() for copy in run.glob("source/*")] == [REWARD] * own_reward
    kinds = [event.type.name for event in read_jsonl(run / "events.jsonl")]
    assert kinds[-1] == "RUN_FINISHED"
    assert read_info(run).sessions[-1].end.value == "interrupted"
