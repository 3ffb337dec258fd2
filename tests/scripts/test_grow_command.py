"""`esper grow`, `show`, `export`, `report` and `runs` on a small run of a user's own file."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from esper.growing.progress import ProgressPrinter
from esper.growing.result import GrowResult
from esper.karn.views import run_summary
from esper.leyline.errors import EsperError
from esper.scripts import export, grow, report, runs, show
from esper.storage.folder_lock import FolderLock
from esper.storage.sealed_json import read_document, seal
from esper.tasks.user_objects import _read_csv, _read_npz, user_files
from support import refused

MINE = """
import numpy as np
import torch
from torch import nn
from beside_mine import N

x = np.random.default_rng(0).normal(size=(N, 6)).astype(np.float32)
y = (x[:, 0] * x[:, 1] > 0).astype(np.int64)
both = (x, y)
number = 3


def train():
    return x, y


def model():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def fails():
    raise KeyError("here")


def wide():
    return nn.Linear(9, 2)
"""
TINY = ["--epochs", "2", "--host-runs", "5", "--lr", "0.01", "--widths", "2", "--device", "cpu"]
needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="needs the extra export",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with the user's files and one run, grown from elsewhere."""
    root = tmp_path_factory.mktemp("grow")
    (root / "mine.py").write_text(MINE)
    (root / "beside_mine.py").write_text("N = 200\n")
    words = [f"{root}/mine.py:model", "--train", f"{root}/mine.py:train", "--quiet"]
    assert grow.main([*words, *TINY, "--folder", str(root / "runs"), "--name", "tiny"]) == 0
    return root


@pytest.fixture
def run(place) -> Path:
    (found,) = (place / "runs").glob("tiny__grow__*")
    return found


@pytest.fixture
def copy(run, tmp_path) -> Path:
    """A copy of the run that a test may change."""
    return Path(shutil.copytree(run, tmp_path / "runs" / "copy"))


def line_of(status: int, capsys) -> str:
    """The one line of a command that was refused."""
    said = capsys.readouterr().err
    assert status == 2, said
    assert said.startswith("error: ")
    assert said.count("\n") == 1, said
    return said


# ---- grow -------------------------------------------------------------------------------------


def test_the_run_folder_holds_report_networks_and_source(place, run):
    assert (run / "source" / "mine.py").read_text() == MINE
    assert "<svg" in (run / "report.html").read_text()
    assert list((run / "networks").glob("*-plain/manifest.json"))
    assert not list(run.rglob("*.pt2")), "written when asked for"


def test_data_files_and_objects_are_grown_on(place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with user_files() as files:
        x, y = files.data(f"{place}/mine.py:both")
        assert files.find(f"{place}/mine.py:x") is x, "run once"
    np.savez("data.npz", x=x, y=y)
    words = [f"{place}/mine.py:model", "--train", "data.npz", "--val", f"{place}/mine.py:both"]
    assert grow.main([*words, "--epochs", "1", "--host-runs", "1", "--lr", "0.01", "--quiet"]) == 0
    said = capsys.readouterr()
    assert "test accuracy" in said.out
    assert "report: runs/Sequential__grow__0__" in said.out
    assert said.err == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "name your model"),
        ("mine.py:model", "--train is missing"),
        ("--demo --train data.npz", "--demo brings its own train"),
        ("mine.py:modle --train mine.py:train", "unknown name 'modle' in mine.py: did you mean"),
        ("mine.py --train mine.py:train", "name an object in it, as in mine.py:model"),
        ("model --train mine.py:train", "as in mine.py:model"),
        ("nowhere.py:model --train mine.py:train", "nowhere.py: no such file"),
        ("mine.py:model --train mine.py:fails", "fails: KeyError at mine.py:22: 'here'"),
        ("mine.py:model --train data.parquet", "give FILE.py:NAME, FILE.npz"),
        ("mine.py:model --train nowhere.npz", "nowhere.npz: no such file"),
        ("mine.py:number --train mine.py:train", "give an nn.Module"),
        ("mine.py:wide --train mine.py:train", "6"),
        ("broken.py:model --train mine.py:train", "fails: ZeroDivisionError at broken.py:2"),
        ("syntax.py:model --train mine.py:train", "syntax.py fails: SyntaxError"),
        ("mine.py:model --train mine.py:train --params 3", "your model has 146, and the smallest"),
        ("mine.py:model --train mine.py:train --minutes -1", "must be above 0"),
        ("mine.py:model --train mine.py:train --slots nowhere", "no module of that name"),
        ("mine.py:model --train mine.py:train --loss hinge", "hinge"),
        ("mine.py:model --train mine.py:train --resume nowhere", "no run nowhere"),
        ("mine.py:model --train mine.py:train --resume .", "holds no run of esper.grow"),
        ("mine.py:model --train mine.py:train --device tpu", "tpu"),
    ],
)
def test_mistakes_are_one_line(words, says, place, tmp_path, monkeypatch, capsys):
    for name in ("mine.py", "beside_mine.py"):
        shutil.copy(place / name, tmp_path)
    (tmp_path / "broken.py").write_text("\n1 / 0\n")
    (tmp_path / "syntax.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    assert says in line_of(grow.main([*words.split(), "--quiet"]), capsys)
    assert not (tmp_path / "runs").exists(), "nothing was started"


@pytest.mark.parametrize(
    ("given", "minutes"), [([], grow.DEMO_MINUTES), (["--host-runs", "3"], None)]
)
def test_the_demo_ends_within_a_minute_unless_told_otherwise(given, minutes, monkeypatch):
    """Less than a minute with what starting and the report take."""
    seen: list[Any] = []

    def noted(config: Any, budget: Any, *more: Any) -> Any:
        seen.append(budget.minutes)
        raise EsperError("that is enough")

    monkeypatch.setattr(grow, "_grow", noted)
    assert grow.main(["--demo", *given]) == 2
    assert seen == [minutes]
    assert 0.5 < grow.DEMO_MINUTES < 0.75


def test_an_interrupted_run_returns_the_best_and_resumes(place, tmp_path, monkeypatch, capsys):
    words = [f"{place}/mine.py:model", "--train", f"{place}/mine.py:train", *TINY, "--quiet"]
    words += ["--folder", str(tmp_path)]

    ended = ProgressPrinter.on_rung

    def stop(*given: Any) -> None:
        ended(*given)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(ProgressPrinter, "on_rung", stop)
        assert grow.main(words) == 0
    said = capsys.readouterr()
    assert "test accuracy" in said.out
    pasted = shlex.split(said.err.partition("interrupted; resume with: ")[2])
    (begun,) = tmp_path.iterdir()
    assert states(tmp_path, capsys) == ["interrupted"]
    assert shlex.split(run_summary(begun).resume) == pasted, "views say the same"
    assert pasted == ["esper", "grow", *words, "--resume", str(begun)]
    assert grow.main(pasted[2:]) == 0
    assert "interrupted" not in capsys.readouterr().err
    assert states(tmp_path, capsys) == ["finished"]
    assert list(tmp_path.iterdir()) == [begun]


# ---- data files -------------------------------------------------------------------------------


def test_csv_has_numbers_and_a_label(tmp_path):
    path = tmp_path / "data.csv"
    for text, labels in (
        ("a,b,kind\n1,2.5,cat\n3,4,dog\n", ["cat", "dog"]),
        ("1,2.5,0\n\n3,4,1\n", [0, 1]),
        ("1,2.5,0.5\n3,4,1\n", [0.5, 1.0]),
    ):
        path.write_text(text)
        x, y = _read_csv(path, False)
        assert x.tolist() == [[1.0, 2.5], [3.0, 4.0]]
        assert y.tolist() == labels
    for text, says in (
        ("", "give rows of numbers"),
        ("1,x,0\n2,3,1\n", "row 1: 'x' is not a number"),
        ("1,2,0\n2,3\n", "row 2: 2 columns"),
    ):
        path.write_text(text)
        assert says in refused(lambda: _read_csv(path, False))


def test_csv_may_have_columns_of_text(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("age,city,kind\n1,Rome,cat\n2, Oslo,dog\n3,,cat\n")
    columns, y = _read_csv(path, True)
    assert {name: values.tolist() for name, values in columns.items()} == {
        "age": [1.0, 2.0, 3.0], "city": ["Rome", "Oslo", None]}  # fmt: skip
    assert y.tolist() == ["cat", "dog", "cat"]
    path.write_text("1,Rome,0\n,Oslo,1\n")
    columns, _ = _read_csv(path, True)
    assert list(columns) == ["0", "1"]
    assert np.isnan(columns["0"][1])


def test_npz_has_x_and_y(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, x=np.ones((2, 3)), labels=np.ones(2))
    assert "has no array 'y' (it has x, labels)" in refused(lambda: _read_npz(path))
    path.write_bytes(b"no archive")
    assert "cannot be read as .npz" in refused(lambda: _read_npz(path))
    np.savez(path, x=np.array([object()]), y=np.ones(1))
    assert "cannot be read as .npz" in refused(lambda: _read_npz(path)), "pickles are not run"


# ---- show, runs -------------------------------------------------------------------------------


def states(root: Path, capsys) -> list[str]:
    capsys.readouterr()
    assert runs.main(["--runs", str(root), "--json"]) == 0
    return [entry["state"] for entry in json.loads(capsys.readouterr().out)]


def test_a_run_is_shown_with_its_settings(run, monkeypatch, capsys):
    monkeypatch.chdir(run.parents[1])
    assert show.main([run.name]) == 0, "by its name in ./runs"
    said = capsys.readouterr().out
    result = GrowResult.load(run)
    for words in (
        result.verdict,
        "5 training runs of your model",
        "finished",
        "cross_entropy",
        "test accuracy",
    ):
        assert words in said
    assert show.main([str(run), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert (reported["kind"], reported["state"], reported["seed"]) == ("grow", "finished", 0)
    assert reported["result"]["pick"] == result.record.pick
    assert reported["settings"]["metric"] == "accuracy"


def test_runs_are_listed_with_their_state(run, copy, capsys):
    root = copy.parent
    assert runs.main(["--runs", str(root)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"copy +finished .* \d(\.\d)? s +\d\d-\d\d \d\d:\d\d", said)
    assert states(root, capsys) == ["finished"]
    lock = FolderLock(copy)
    assert states(root, capsys) == ["running"]
    lock.release()
    document = read_document(copy / "result.json")
    (copy / "result.json").write_text(json.dumps(seal(document | {"complete": False})))
    assert states(root, capsys) == ["interrupted"]
    (copy / "result.json").unlink()
    assert states(root, capsys) == ["killed"]
    assert show.main([str(copy)]) == 0
    assert "killed: " in capsys.readouterr().out
    (copy / "grow.json").write_text("{")
    assert states(root, capsys) == ["broken"]
    assert runs.main(["--runs", str(root)]) == 0
    assert "is damaged" in capsys.readouterr().out
    (copy / "grow.json").unlink()
    lock = FolderLock(copy)
    assert states(root, capsys) == ["running"], "it has just begun"
    lock.release()


def test_unusable_runs_are_one_line(copy, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    page = ["--out", "page.html"]
    for command, rest in ((show, []), (report, page), (export, ["out.pt2"])):
        assert "no run coy: did you mean runs/copy?" in line_of(
            command.main(["coy", *rest]), capsys
        )
        assert "is a file" in line_of(command.main(["file", *rest]), capsys)
        line_of(command.main(["other", *rest]), capsys)
    damaged = (copy / "result.json").read_text().replace('"pick": ', '"pick": 1')
    (copy / "result.json").write_text(damaged)
    for command, rest in ((show, []), (export, ["out.pt2"])):
        said = line_of(command.main([str(copy), *rest]), capsys)
        assert "does not match its checksum" in said
    assert not list(tmp_path.glob("*.pt2")) + list(tmp_path.glob("*.html"))
    assert report.main([str(copy), *page]) == 0
    assert "does not match its checksum" in (tmp_path / "page.html").read_text()
    (copy / "result.json").unlink()
    assert "the run has not finished" in line_of(export.main([str(copy), "out.pt2"]), capsys)
    assert not list(tmp_path.glob("*.pt2"))
    assert report.main([str(copy), *page]) == 0
    said = (tmp_path / "page.html").read_text()
    assert "<strong>" in said
    assert "<strong>finished" not in said, "runs are, the search is not"


# ---- report, export ---------------------------------------------------------------------------


def test_the_report_is_rebuilt_from_the_folder(run, tmp_path, capsys):
    assert report.main([str(run), "--out", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}\n"
    assert GrowResult.load(run).verdict in (tmp_path / "page.html").read_text()


def test_networks_are_exported_from_the_folder_alone(run, tmp_path, capsys):
    model, x = GrowResult.load(run).model, torch.randn(7, 6)
    with torch.no_grad():
        expected = model(x)
    assert export.main([str(run), str(tmp_path / "out.pt2")]) == 0
    assert "parameters" in capsys.readouterr().out
    with torch.no_grad():
        torch.testing.assert_close(torch.export.load(tmp_path / "out.pt2").module()(x), expected)
    from safetensors.torch import load_file

    assert export.main([str(run), str(tmp_path / "new" / "out.safetensors")]) == 0
    weights = load_file(tmp_path / "new" / "out.safetensors")
    for name, value in model.state_dict().items():
        torch.testing.assert_close(weights[name], value)


@needs_onnx
def test_onnx_of_a_size_equals_the_network(run, tmp_path):
    import onnxruntime

    result = GrowResult.load(run)
    host = result.host.params
    assert export.main([str(run), "--params", str(host), str(tmp_path / "out.onnx")]) == 0
    session = onnxruntime.InferenceSession(tmp_path / "out.onnx")
    for size in (1, 5):
        x = torch.randn(size, 6)
        (found,) = session.run(["y"], {"x": x.numpy()})
        with torch.no_grad():
            expected = result.pick(params=host).model(x).numpy()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_failed_exports_are_one_line(copy, tmp_path, capsys):
    out, number = str(tmp_path / "out.pt2"), GrowResult.load(copy).record.pick
    (file,) = (copy / "networks" / f"{number:04d}-plain").glob("*.safetensors")
    for words, says in (
        ([str(tmp_path / "out.tflite")], "use .pt2, .onnx or .safetensors"),
        (["--params", "3", out], "no network within params=3"),
        ([str(copy / "grow.json" / "out.pt2")], "cannot be written"),
    ):
        assert says in line_of(export.main([str(copy), *words]), capsys)
    file.write_bytes(file.read_bytes()[:100])
    assert "is damaged" in line_of(export.main([str(copy), out]), capsys)
    file.unlink()
    assert f"{file.name} is missing" in line_of(export.main([str(copy), out]), capsys)
    assert not Path(out).exists()
