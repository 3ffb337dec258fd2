"""The search: honest budgets, controls, copies, and runs that survive whatever interrupts them."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import esper
from esper.growing.data import read_data
from esper.growing.folder import GrowFolder, read_state
from esper.growing.records import Candidate
from esper.growing.search import Search, control_numbers, frontier_numbers
from esper.growing.training import BracketTrainer, rate_share
from support import refused


def data(samples: int = 240, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((samples, 6)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int64) + 2 * (x[:, 2] > 0.3)
    return x, y


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 4))


def grow(folder: Path, **settings) -> esper.GrowResult:
    chosen = {"budget": esper.Budget(host_runs=12), "epochs": 8, "widths": (2.0,)} | settings
    return esper.grow(model, data(), folder=folder, verbose=False, device="cpu", **chosen)


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> esper.GrowResult:
    return grow(tmp_path_factory.mktemp("whole"))


def candidates(result: esper.GrowResult):
    return read_state(result.folder).candidates


def test_the_compute_of_all_candidates_is_within_the_budget_and_adds_up(result):
    found, length = candidates(result), result.info.length
    assert result.record.runs <= 12.0
    assert sum(c.compute for c in found) / length == pytest.approx(result.record.runs, rel=1e-9)


def test_the_model_as_given_is_among_those_trained_in_full(result):
    assert result.host.params == sum(p.numel() for p in model().parameters())
    assert control_numbers(candidates(result)) == {result.record.host.number}
    assert result.best.val_score >= result.host.val_score


def test_the_frontier_is_saved_and_nothing_on_it_is_dominated(result):
    found = candidates(result)
    assert {n.record.number for n in result.frontier} == frontier_numbers(found)
    for network in result.frontier:
        assert (result.folder / "networks" / f"{network.record.number:04d}").is_dir()
        better = [c for c in found if c.finished and c.params <= network.params]
        assert max(c.score for c in better) == network.val_score


def test_the_plain_model_has_the_validation_score_of_its_member(result):
    """Judged by the exported network, on the user's own samples."""
    x, y = data()
    val = read_data((x, y), seed=0).val
    for network in result.frontier:
        with torch.no_grad():
            accuracy = (network.model(val.inputs).argmax(1) == val.targets).float().mean()
        assert float(accuracy) == pytest.approx(network.val_score, abs=1e-6)
        assert "esper" not in {type(m).__module__.split(".")[0] for m in network.model.modules()}


def test_the_same_seed_is_the_same_search_bit_for_bit(result, tmp_path):
    again = grow(tmp_path)
    assert candidates(again) == candidates(result)
    a, b = (r.model.state_dict() for r in (result, again))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_another_seed_is_another_search(result, tmp_path):
    assert candidates(grow(tmp_path, seed=1)) != candidates(result)


@pytest.mark.parametrize("runs", [1.0, 1.5, 2.0, 2.5, 3.0])
def test_however_small_the_budget_the_model_itself_is_trained_in_full(tmp_path, runs):
    """Narrower copies would fit where it does not."""
    small = grow(tmp_path, budget=esper.Budget(host_runs=runs), epochs=2)
    assert control_numbers(candidates(small)) == {small.record.host.number}
    assert small.record.runs <= max(1.0, runs)


class Stop(BaseException):
    """Ends a search like a kill: nothing catches it."""


@pytest.mark.slow  # resuming bit for bit is tested after Ctrl-C by default
@pytest.mark.parametrize(("batch", "seconds"), [(30, 60.0), (15, -1.0), (30, -1.0), (65, -1.0)])
def test_a_killed_search_resumes_bit_for_bit(result, tmp_path, monkeypatch, batch, seconds):
    """Saved at the end of each stage, or after every chunk; killed in the middle of a stage."""
    monkeypatch.setattr("esper.growing.search.SAVE_SECONDS", seconds)
    train = BracketTrainer._train_chunk

    def killed(self, count):
        if self.length != 1000 and self.batch >= batch:  # 1000: the probe
            raise Stop
        train(self, count)

    monkeypatch.setattr(BracketTrainer, "_train_chunk", killed)
    with pytest.raises(Stop):
        grow(tmp_path)
    monkeypatch.setattr(BracketTrainer, "_train_chunk", train)
    (folder,) = tmp_path.iterdir()
    assert read_state(folder).members
    again = grow(tmp_path, resume=folder)
    assert list(tmp_path.iterdir()) == [folder]
    assert candidates(again) == candidates(result)
    a, b = (r.model.state_dict() for r in (result, again))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_ctrl_c_returns_the_best_so_far_and_the_run_resumes(result, tmp_path, monkeypatch):
    train = BracketTrainer._train_chunk

    def interrupted(self, count):
        if self.length != 1000 and self.batch >= 30:
            raise KeyboardInterrupt
        train(self, count)

    monkeypatch.setattr(BracketTrainer, "_train_chunk", interrupted)
    early = grow(tmp_path)
    assert not early.record.complete
    assert early.host.params == result.host.params
    assert early.model(torch.zeros(2, 6)).shape == (2, 4)
    monkeypatch.setattr(BracketTrainer, "_train_chunk", train)
    again = grow(tmp_path, resume=early.folder)
    assert again.record.complete
    assert candidates(again) == candidates(result)


def test_a_resume_with_other_data_or_another_model_is_refused(result, tmp_path):
    other = data(seed=5)
    settings = {"verbose": False, "resume": result.folder, "device": "cpu", "folder": tmp_path}
    assert "other data" in refused(lambda: esper.grow(model, other, **settings))

    def wider() -> nn.Module:
        return nn.Sequential(model()[0], nn.ReLU(), nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 4))

    assert "other model" in refused(lambda: esper.grow(wider, data(), **settings))
    assert not list(tmp_path.iterdir()), "no folder is left behind"


def test_two_processes_cannot_share_a_run(result):
    held = GrowFolder.open(result.folder)
    try:
        message = refused(lambda: grow(result.folder.parent, resume=result.folder))
        assert "is in use" in message
    finally:
        held.close()


def test_a_member_that_diverges_costs_nothing_but_itself(tmp_path):
    found = grow(tmp_path, lr=(1e-3, 3e-3, 1e30), budget=esper.Budget(host_runs=5), widths=())
    scores = [c.score for c in candidates(found) if c.rate == 1e30 and c.curve]
    assert scores, "some candidate had the absurd rate"
    assert math.isfinite(found.best.val_score)
    assert found.best.record.rate < 1


def test_a_time_limit_ends_the_search(tmp_path):
    found = grow(tmp_path, budget=esper.Budget(minutes=0.02), epochs=500)
    assert found.record.seconds < 15
    assert found.host.params


def test_the_limits_on_size_hold_for_every_candidate(tmp_path):
    host = sum(p.numel() for p in model().parameters())
    budget = esper.Budget(params=host + 30, host_runs=4)
    found = grow(tmp_path, budget=budget, epochs=4, widths="auto")
    assert max(c.params for c in candidates(found)) <= host + 30


def test_copies_join_the_survivors_with_a_seed_less_or_more(result):
    copies = [c for c in candidates(result) if c.origin in ("pruned", "grown")]
    assert copies
    by_number = {c.number: c for c in candidates(result)}
    for copy in copies:
        parent = by_number[copy.parent]
        changed = [i for i, n in enumerate(copy.topology) if n != parent.topology[i]]
        assert len(changed) <= 1
        if copy.origin == "pruned":
            assert all(copy.topology[i] == "" for i in changed)


@pytest.mark.parametrize("runs", [0.5, 2.0, 2.9])
def test_a_small_budget_still_trains_the_model_itself(tmp_path, runs):
    found = grow(tmp_path, budget=esper.Budget(host_runs=runs), epochs=4)
    assert found.host.params == sum(p.numel() for p in model().parameters())


class Choosy(nn.Module):
    """Its path depends on the data, so it can neither be traced nor vmapped."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if float(x.sum()) > 0 else torch.relu(self.layer(x))


def test_a_part_that_depends_on_the_data_is_kept_whole_and_grown_around(tmp_path):
    def choosy() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), Choosy(), nn.ReLU(), nn.Linear(5, 4))

    budget = esper.Budget(host_runs=2)
    settings = {"epochs": 2, "verbose": False, "device": "cpu", "widths": (), "folder": tmp_path}
    found = esper.grow(choosy, data(), budget=budget, **settings)
    assert found.host.params == sum(p.numel() for p in choosy().parameters())


def test_the_best_run_of_the_given_model_is_protected_however_it_ranks():
    """Narrower variants may dominate it; seeds and other widths are not controls."""

    def one(number: int, host: int, topology: tuple[str, ...]) -> Candidate:
        origin = "planted" if any(topology) else "host"
        return Candidate(number, host, topology, 0.01, origin, None, 0, 100, 100)

    here = [one(0, 0, ("",)), one(1, 0, ("",)), one(2, 1, ("",)), one(3, 0, ("norm",))]
    search = object.__new__(Search)
    found = search._controls(here, np.array([0.1, 0.2, 0.9, 0.8]))
    assert found.tolist() == [False, True, False, False]
    found = search._controls(here, np.array([math.nan, 0.0, 0.9, 0.8]))
    assert found.tolist() == [False, True, False, False]


def test_samples_of_weight_0_teach_nothing(tmp_path):
    """Half of the labels are wrong; the weights say which, and validation is right."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((300, 2)).astype(np.float32)
    right = (x[:, 0] > 0).astype(np.int64)
    wrong = np.arange(300) % 2 == 0
    train, val = slice(0, 200), slice(200, 300)
    found = esper.grow(
        nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)),
        (x[train], np.where(wrong, 1 - right, right)[train]), (x[val], right[val]),
        budget=esper.Budget(host_runs=1), epochs=10, lr=0.03, widths=(), device="cpu",
        folder=tmp_path, verbose=False, sample_weights=np.where(wrong, 0.0, 1.0)[train],
    )  # fmt: skip
    assert found.info.loss == "cross_entropy"
    assert found.best.val_score > 0.9


def test_the_rate_rises_then_falls_to_0():
    shares = [rate_share(batch, 200) for batch in range(200)]
    top = int(np.argmax(shares))
    assert 5 <= top <= 15
    assert shares[top] == 1.0
    assert all(a < b for a, b in pairwise(shares[: top + 1]))
    assert all(a > b for a, b in pairwise(shares[top:]))
    assert shares[-1] < 1e-3


def test_progress_is_reported_to_the_caller(tmp_path):
    seen = []
    grow(tmp_path, on_round=seen.append)
    assert [p.stage for p in seen][:2] == [0, 1]
    assert seen[-1].runs <= 12.0


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from growing.test_search import data, model
import esper
budget = esper.Budget(host_runs=200)
esper.grow(model, data(), budget=budget, epochs=200, device="cpu", folder={out!r})
"""


def test_a_signal_from_the_keyboard_ends_a_real_process_with_a_result(tmp_path):
    script = SCRIPT.format(tests=str(Path(__file__).parent.parent), out=str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-c", script], stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "at batch" in line:
            break
    os.kill(process.pid, signal.SIGINT)
    process.stderr.read()
    assert process.wait(60) == 0
    (folder,) = tmp_path.iterdir()
    outcome = json.loads((folder / "result.json").read_text())
    assert outcome["complete"] is False
