"""Policies of one's own in `esper compare`: FILE.py:NAME."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from esper.compare import Compare, compare_policies
from esper.compare.host_runs import HostRunner, draw_limits
from esper.compare.policies import make_entry
from esper.leyline import ContextSpec, Range, statistics
from esper.leyline.codec import read_record, to_json
from esper.leyline.errors import EsperError
from esper.scripts import train
from esper.scripts.compare import main
from esper.simic.training.config import TaskConfig
from esper.simic.training.runs.folder import read_config
from esper.simic.training.runs.policy_file import read_policy
from esper.simic.training.runs.round_store import RoundStore
from esper.tamiyo.grammar import parse
from esper.tolaria.round_results import RoundResult

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

class Limited(Grow):
    blueprints = ("conv_light", "norm")
    frozen_heads = {"tempo": 8}
    counterfactual_stride = 3

    def act(self, signals, masks):
        assert signals.slots.blueprints == self.blueprints
        return self.first(self.advance(), self.germinate(True, None, 1))

class LimitedPlan(Limited):
    plans = True

    def act(self, signals, masks):
        return self.plant(True, 1) if signals.planning else self.wait()

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


CAPPED = ContextSpec(clock="compute", capped=1.0, cap=Range(0.2, 0.6), budget=None)


@pytest.mark.parametrize(
    ("name", "contexts"), [("Limited", ContextSpec()), ("LimitedPlan", CAPPED)]
)
def test_an_own_policy_does_in_a_run_what_it_does_in_a_comparison(name, contexts):
    """Same hosts, contexts, blueprints, heads and measurements; so the same scores."""
    task = replace(TASK, episode_length=12, contexts=contexts)
    Path("contexts.json").write_text(json.dumps(to_json(contexts)))
    flags = ["--task", "synthetic", "--envs", "2", "--episode-length", "12", "--batch-size", "16",
             "--batches-per-step", "1", "--device", "cpu", "--executor", "loop", "--quiet",
             "--contexts", "contexts.json", "--keep-members", "0",
             "--telemetry", "off"]  # fmt: skip
    assert train.main([f"mine.py:{name}", *flags]) == 0
    (run,) = Path("runs").iterdir()
    (done,) = RoundStore(run).read_all()[0]
    spec, config = task.spec(), replace(TINY, task=task, envs=2)
    entry, data = make_entry(config, parse(f"mine.py:{name}"), spec), spec.load()
    runner = HostRunner(config.population, data, draw_limits(spec, config.population, data))
    wanted = runner.run(entry, 0, 2)
    trained = read_record(RoundResult, done.result, "round")
    np.testing.assert_array_equal(trained.outcome.score_E, wanted.result.outcome.score_E)
    np.testing.assert_array_equal(trained.outcome.blueprint_ES, wanted.result.outcome.blueprint_ES)
    population, limits = read_config(run).population, entry.identity.limits
    assert population.frozen_heads == limits.frozen_heads
    assert population.counterfactual_stride == limits.counterfactual_stride
    assert train.main([f"mine.py:{name}", "--resume", str(run), "--rounds", "2", "--quiet"]) == 0


@pytest.mark.parametrize(
    "flags", [("--counterfactual-stride", "2"), ("--frozen-heads", "TEMPO", "1")]
)
def test_a_limit_that_its_class_sets_is_refused_as_a_flag(flags, capsys):
    assert train.main(["mine.py:Grow", "--task", "synthetic", *flags]) == 2
    name = flags[0][2:].replace("-", "_")
    assert f"{flags[0]}: mine.py:Grow sets {name} in its class" in capsys.readouterr().err


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
