"""`esper eval`, `esper runs` and `esper doctor`, on valid and missing runs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from esper.karn import views
from esper.scripts import doctor, evaluate, runs, train
from esper.tasks.registry import task_names

TINY = ("--task", "synthetic", "--envs", "2", "--episode-length", "4", "--batches-per-step", "1",
        "--batch-size", "16", "--device", "cpu", "--blueprints", "norm", "conv_light")  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A finished run of two rounds."""
    root = tmp_path_factory.mktemp("runs")
    assert train.main(["ppo", *TINY, "--rounds", "2", "--runs", str(root), "--quiet"]) == 0
    (found,) = root.iterdir()
    return found


def judged(folder: Path, task: str) -> dict:
    return json.loads((folder / f"eval_{task}_judged.json").read_text())


@pytest.mark.slow
def test_a_run_is_judged_at_its_best_on_its_own_task_or_another(run, tmp_path, capsys):
    small = ("--envs", "3", "--out", str(tmp_path), "--device", "cpu")
    assert evaluate.main([str(run), *small]) == 0
    assert all(
        len(found["test_E"]) == 3 for found in judged(tmp_path, "synthetic")["judged"].values()
    )
    other = ("--task", "digits_impaired", "--episode-length", "3", "--batches-per-step", "1")
    assert evaluate.main([str(run), *other, *small]) == 0
    assert "minus ppo" in capsys.readouterr().out
    assert (tmp_path / "eval_digits_impaired.json").exists()
    assert judged(tmp_path, "digits_impaired")["checkpoint"].startswith(str(run))


def test_a_controller_that_cannot_play_is_refused_in_one_line(run, tmp_path, capsys):
    damaged = tmp_path / "damaged"
    shutil.copytree(run, damaged)
    for path in (damaged / "checkpoints").glob("*/agent/*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    for argv, says in (
        ([], "CHECKPOINT"),
        ([tmp_path / "nowhere"], "does not exist"),
        ([tmp_path], "has no run.json"),
        (["--envs", "3"], "name the checkpoint before any flag"),
        ([run, "--task", "tinyshakespeare"], "blueprint"),
        ([run, "--task", "cifar_baseline"], "--data synthetic"),
        ([run, "--device", "cuda:9"], "cuda:9"),
        ([damaged], "has no valid checkpoint"),
    ):
        assert evaluate.main([str(word) for word in argv]) == 2, argv
        said = capsys.readouterr().err
        assert said.startswith("error: ")
        assert said.count("\n") == 1
        assert says.lower() in said.lower()


def test_runs_are_listed_with_their_state(run, capsys):
    assert runs.main(["--runs", str(run.parent)]) == 0
    said = capsys.readouterr().out
    for word in (run.name, "finished", "2/2"):
        assert word in said
    assert runs.main(["--runs", str(run.parent), "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert (entry["state"], entry["done"], entry["total"]) == ("finished", 2, 2)
    assert (entry["task"], entry["policy"], entry["seed"]) == ("synthetic", "ppo", 0)
    history = json.loads((run / "report" / "learning.json").read_text())["history"]
    means = [sum(done["score_E"]) / 2 for done in history]
    assert entry["best_score"] == pytest.approx(max(means))
    assert entry["score"] == pytest.approx(means[-1])


def test_the_list_is_readable_and_fits_100_columns(monkeypatch, tmp_path, capsys):
    plain = views.RunSummary(tmp_path, "a" * 70, views.RunKind.GROW, views.RunState.FINISHED,
                             created="2026-11-18 13:39:21", seconds=83.2, score=0.98765,
                             params=1_234_567, done=3.21987, total=20.0)  # fmt: skip
    under_way = replace(plain, state=views.RunState.RUNNING, score=None, done=5.0)
    trained = replace(plain, kind=views.RunKind.TRAIN, done=1200, total=12_000)
    compared = replace(plain, kind=views.RunKind.COMPARE, done=1200, unit="contexts", task="t" * 60)
    found = (plain, under_way, trained, compared)
    monkeypatch.setattr(views, "list_runs", lambda root: found)
    assert runs.main(["--runs", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    said = [" ".join(line.split()) for line in lines]
    for words in (
        "finished 0.9877 - 1,234,567 1 min 23 s 11-18 13:39",
        "running - - 1,234,567 1 min 23 s (25%)",
        "finished 1,200/12,000 - 0.9877 1 min 23 s 11-18 13:39",
        "1,200 of 20 contexts",
    ):
        assert any(words in line for line in said), words
    assert "3.2" not in "".join(lines)


def test_before_any_run_the_list_is_empty_and_that_is_no_error(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert runs.main([]) == 0
    assert capsys.readouterr() == ("no runs in runs yet: esper grow --demo starts one\n", "")
    assert runs.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert runs.main(["--runs", "elsewhere"]) == 2, "a folder that was named must be there"


def test_a_folder_without_runs_or_with_broken_ones_is_told(tmp_path, capsys):
    assert runs.main(["--runs", str(tmp_path / "none")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert runs.main(["--runs", str(tmp_path)]) == 0
    assert "no runs in" in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    (tmp_path / "junk").mkdir()
    (tmp_path / "junk" / "run.json").write_text("{")
    assert runs.main(["--runs", str(tmp_path), "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert (entry["state"], entry["task"], entry["score"]) == ("broken", "", None)
    assert runs.main(["--runs", str(tmp_path)]) == 0
    assert "junk: " in capsys.readouterr().out


def test_the_doctor_tells_device_versions_executor_and_data(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ESPER_DATA_DIR", raising=False)
    assert doctor.main(["--device", "cpu", "--envs", "2"]) == 0
    said = capsys.readouterr().out
    for word in ("cpu (", "threads", "esper ", "torch ", "profile fast: ", "measured: vmap"):
        assert word in said, word
    assert [line for line in said.splitlines() if not line.startswith("  ")] == [
        "device", "versions", "executor", "data",
    ]  # fmt: skip
    for name in task_names():
        assert name in said
    assert "missing, get it from https://" in said
    assert not list(tmp_path.iterdir())


def test_the_doctor_times_a_task_without_its_data_on_made_up_ones(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ESPER_DATA_DIR", raising=False)
    assert doctor.main(["--task", "mnist1d", "--device", "cpu", "--envs", "2"]) == 0
    assert "mnist1d (synthetic data), 2 members" in capsys.readouterr().out
    assert doctor.main(["--device", "cuda:9"]) == 2
    assert "cuda:9" in capsys.readouterr().err
    assert doctor.main(["--task", "mnst1d"]) == 2
    assert "mnist1d" in capsys.readouterr().err
