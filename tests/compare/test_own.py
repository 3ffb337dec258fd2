"""Policies of one's own in `esper compare`: FILE.py:NAME."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from esper.compare import Compare, compare_policies
from esper.leyline import statistics
from esper.leyline.errors import EsperError
from esper.scripts import train
from esper.scripts.compare import main
from esper.simic.training.config import TaskConfig
from esper.simic.training.runs.policy_file import read_policy

TASK = TaskConfig("synthetic", episode_length=4, batches_per_step=1, batch_size=16)
TINY = Compare(("wait",), TASK, seeds=2, device="cpu", executor="loop", quiet=True)

SOURCE = """
import esper

class Grow(esper.Policy):
    def act(self, signals, masks):
        return self.first(self.advance(), self.germinate(True, None, "norm"))

class Plan(esper.Policy):
    plans = True

    def act(self, signals, masks):
        return self.plant(True, "norm") if signals.planning else self.wait()

class Broken(esper.Policy):
    def act(self, signals, masks):
        raise RuntimeError("no idea")

class Picky(esper.Policy):
    def __init__(self, how):
        self.how = how

NUMBER = 3

class Other:
    pass
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(statistics, "RESAMPLES", 200)
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(SOURCE)
    return tmp_path


def compared(*policies: str):
    return compare_policies(replace(TINY, policies=policies, out=Path("out")))


def test_own_policies_enter_a_comparison_like_any_other():
    found = compared("wait", "mine.py:Grow", "mine.py:Plan", "static-full:norm")
    assert (found["Grow"].result.germinated_N > 0).all()
    plan, static = found["Plan"].result, found["static-full:norm"].result
    assert plan.score_N.tolist() == static.score_N.tolist(), "a plan is the static network"


def test_a_changed_file_is_run_again_and_an_unchanged_one_is_not():
    first = compared("mine.py:Grow")
    saved = {path.name: path.stat().st_mtime_ns for path in Path("out/policies").iterdir()}
    compared("mine.py:Grow")
    assert {p.name: p.stat().st_mtime_ns for p in Path("out/policies").iterdir()} == saved
    Path("mine.py").write_text(SOURCE.replace('self.germinate(True, None, "norm")', "self.wait()"))
    second = compared("mine.py:Grow")
    assert len(list(Path("out/policies").iterdir())) == 2
    assert (first["Grow"].result.germinated_N > 0).all()
    assert (second["Grow"].result.germinated_N == 0).all()


def test_what_an_own_policy_ends_with_can_be_planted_and_replayed():
    found = compared("mine.py:Plan", "static-final:mine.py:Plan", "replay:mine.py:Plan")
    assert len(found.policies) == 3


def test_only_a_file_that_the_command_line_names_is_run():
    Path("mine.py").write_text('open("ran", "w")\n' + SOURCE)
    flags = ["--task", "synthetic", "--seeds", "2", "--episode-length", "4", "--batch-size", "16",
             "--batches-per-step", "1", "--device", "cpu", "--quiet", "--out", "out"]  # fmt: skip
    assert main(["wait", "mine.py:Grow", *flags]) == 0
    Path("ran").unlink()
    assert main(["wait", *flags]) == 0, "its result is in the folder"
    assert not Path("ran").exists()


@pytest.mark.parametrize("name", ["Grow", "Plan"])
def test_an_own_policy_trains_in_a_run_folder_and_resumes_with_the_same_file(name, capsys):
    flags = ["--task", "synthetic", "--envs", "2", "--episode-length", "4", "--batch-size", "16",
             "--batches-per-step", "1", "--device", "cpu", "--quiet", "--keep-members", "0",
             "--telemetry", "off"]  # fmt: skip
    assert train.main([f"mine.py:{name}", *flags]) == 0
    (run,) = Path("runs").iterdir()
    assert read_policy(run).policy == f"mine.py:{name}"
    assert train.main([f"mine.py:{name}", "--resume", str(run), "--rounds", "2", "--quiet"]) == 0
    Path("mine.py").write_text(SOURCE + "# edited")
    capsys.readouterr()
    assert train.main([f"mine.py:{name}", "--resume", str(run), "--rounds", "3", "--quiet"]) != 0
    assert "has changed: start a new run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        ("mine.py:Grwo", "Grow"),
        ("mine.py:NUMBER", "derived from esper.Policy"),
        ("mine.py:Other", "is not an esper.Policy"),
        ("mine.py:Picky", "called without arguments"),
        ("mine.py:Broken", "Broken.act fails: RuntimeError at mine.py:"),
        ("none.py:Grow", "does not exist"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(policy, line):
    with pytest.raises(EsperError) as refused:
        compared(policy)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)
