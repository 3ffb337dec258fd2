"""Report files are written before printing; obstacles are detected before the run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from esper.scripts import compare, evaluate, train
from esper.scripts.cli.report_files import json_file, write_before_printing
from esper.simic.training.runs.folder import RunFolder
from loop_support import tiny_config

TINY = ("--task", "synthetic", "--envs", "2", "--episode-length", "2", "--batches-per-step", "1",
        "--device", "cpu")  # fmt: skip


def test_all_files_are_there_before_anything_is_printed(tmp_path):
    first, second = tmp_path / "a" / "first.json", tmp_path / "b" / "second.json"
    with write_before_printing(json_file(first, [1]), json_file(second, [2])):
        assert first.is_file()
        assert second.is_file()


def test_a_file_that_fails_keeps_neither_the_others_nor_the_table(tmp_path):
    (tmp_path / "taken.json").mkdir()
    other, printed = tmp_path / "other.json", []
    taken = json_file(tmp_path / "taken.json", [1])
    with (
        pytest.raises(IsADirectoryError, match=r"taken\.json"),
        write_before_printing(taken, json_file(other, [2])),
    ):
        printed.append(other.read_text())
    assert printed == ["[\n 2\n]\n"]


def run_train(out: Path) -> int:
    return train.main(["wait", *TINY, "--quiet", "--out", str(out)])


def run_compare(out: Path) -> int:
    return compare.main(["wait", *TINY, "--seeds", "2", "--quiet", "--out", str(out)])


IN_THE_WAY = [
    (run_train, "train_wait_synthetic.json"),
    (run_compare, "settings.json"),
    (run_compare, "compare.md"),
]


@pytest.mark.parametrize(("run", "name"), IN_THE_WAY, ids=[name for _, name in IN_THE_WAY])
def test_a_folder_in_the_way_of_a_report_is_refused_before_anything_runs(
    run, name, tmp_path, capsys
):
    (tmp_path / name).mkdir()
    assert run(tmp_path) == 2
    said = capsys.readouterr()
    path = tmp_path / name
    assert said.err == (
        f"error: {path} is a folder, but a file is to be written there: move it away\n"
    )
    assert said.out == ""
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", ["judged.json", "learning.json"])
def test_a_folder_in_the_way_of_a_runs_report_is_refused_before_it_is_resumed(
    name, tmp_path, capsys
):
    with RunFolder.create(tmp_path, "x", tiny_config()) as folder:
        (folder.path / "report" / name).mkdir(parents=True)
    before = (folder.path / "run.json").read_bytes()
    assert train.main(["ppo", "--resume", str(folder.path), "--quiet"]) == 2
    assert f"report/{name} is a folder" in capsys.readouterr().err
    assert (folder.path / "run.json").read_bytes() == before, "no session began"


def test_a_folder_in_the_way_of_a_judgement_is_refused_before_it_is_made(tmp_path, capsys):
    with RunFolder.create(tmp_path, "x", tiny_config()) as folder:
        pass
    (tmp_path / "o" / "eval_synthetic_judged.json").mkdir(parents=True)
    assert evaluate.main([str(folder.path), "--out", str(tmp_path / "o")]) == 2
    assert "eval_synthetic_judged.json is a folder" in capsys.readouterr().err


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path, capsys):
    (tmp_path / "policies").write_text("")
    assert run_compare(tmp_path) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path / 'policies'} is a file, but must be a folder: move it away\n"
    )
