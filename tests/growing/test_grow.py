"""One call of `esper.grow`: an honest budget, a frontier of plain networks, the same every time."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import esper
from esper.growing.api import prepare_run
from esper.growing.folder import GrowFolder, read_table, weights_path
from esper.growing.progress import ProgressPrinter
from esper.growing.runs import Table
from esper.growing.search import control_numbers, frontier_numbers
from esper.growing.settings import GrowSettings
from grow_support import read_parts, runs_of
from support import refused


def data(samples: int = 240, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((samples, 6)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int64) + 2 * (x[:, 2] > 0.3)
    return x, y


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 4))


def grow(folder: Path, **settings) -> esper.GrowResult:
    chosen = {"budget": esper.Budget(host_runs=8), "epochs": 8, "widths": (2.0,)} | settings
    return esper.grow(model, data(), folder=folder, verbose=False, device="cpu", **chosen)


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> esper.GrowResult:
    return grow(tmp_path_factory.mktemp("whole"))


def test_the_compute_of_all_runs_is_within_the_budget_and_adds_up(result):
    rows, length = runs_of(result.folder), result.info.length
    assert 4.0 < result.record.runs <= 8.0
    assert sum(row.compute for row in rows) / length == pytest.approx(result.record.runs, rel=1e-9)
    assert result.record.ended


def test_the_model_as_given_is_the_first_and_trained_in_full(result):
    first = runs_of(result.folder)[0]
    assert (first.origin, first.trained) == ("given", result.info.length)
    assert result.host.params == sum(p.numel() for p in model().parameters())
    assert control_numbers(runs_of(result.folder)) == {result.record.host.number}
    assert result.best.val_score >= result.host.val_score


def test_the_frontier_is_saved_and_nothing_on_it_is_dominated(result):
    rows = runs_of(result.folder)
    assert {n.record.number for n in result.frontier} == frontier_numbers(rows)
    for network in result.frontier:
        assert weights_path(result.folder, network.record.number).is_file()
        better = [row for row in rows if row.ended and row.params <= network.params]
        assert max(row.score for row in better if not row.diverged) == network.val_score


def test_the_plain_model_has_the_validation_score_of_its_run(result):
    """Judged by the network that comes back, on the user's own samples."""
    val = read_parts(data(), seed=0).val
    for network in result.frontier:
        with torch.no_grad():
            accuracy = (network.model(val.inputs).argmax(1) == val.targets).float().mean()
        assert float(accuracy) == pytest.approx(network.val_score, abs=1e-6)
        assert "esper" not in {type(m).__module__.split(".")[0] for m in network.model.modules()}


def test_another_seed_is_another_search(result, tmp_path):
    other = grow(tmp_path, seed=1, budget=esper.Budget(host_runs=1))
    assert runs_of(other.folder)[0].loss != runs_of(result.folder)[0].loss


@pytest.mark.parametrize("runs", [0.5, 1.0])
def test_however_small_the_budget_the_model_itself_is_trained_in_full(tmp_path, runs):
    small = grow(tmp_path, budget=esper.Budget(host_runs=runs), epochs=2)
    first = runs_of(small.folder)[0]
    assert (first.origin, first.trained, first.status) == ("given", small.info.length, "finished")
    assert small.record.runs <= max(1.0, runs)


def test_a_rate_that_diverges_costs_nothing_but_itself(tmp_path):
    found = grow(tmp_path, lr=(1e-3, 3e-3, 1e30), budget=esper.Budget(host_runs=6), widths=())
    absurd = [row for row in runs_of(found.folder) if row.recipe.lr == 1e30]
    assert absurd
    assert all(row.diverged for row in absurd)
    assert math.isfinite(found.best.val_score)
    assert found.best.recipe.lr < 1


def test_a_time_limit_ends_the_search(tmp_path):
    found = grow(tmp_path, budget=esper.Budget(minutes=0.03), epochs=500)
    assert found.record.seconds < 6
    assert found.host.params


def test_the_limits_on_size_hold_for_every_network(tmp_path):
    host = sum(p.numel() for p in model().parameters())
    budget = esper.Budget(params=host + 30, host_runs=4)
    found = grow(tmp_path, budget=budget, epochs=4, widths="auto")
    assert max(row.params for row in runs_of(found.folder)) <= host + 30


def test_a_model_is_fitted_into_a_cap_below_it(tmp_path):
    """It is trained in full as the reference, and smaller networks compete under the cap."""
    budget = esper.Budget(params=40, host_runs=4)
    found = grow(tmp_path, budget=budget, epochs=2, widths="auto")
    first, *others = runs_of(found.folder)
    assert (first.origin, first.trained, first.params) == ("given", found.info.length, 89)
    assert 30 < max(row.params for row in others) <= 40
    assert found.host.params == 89
    assert all(network.params <= 40 for network in (found.best, *found.frontier))
    assert found.pick(params=1000).params <= 40
    said = str(found)
    assert said.startswith("width x0.")
    assert f": {found.best.params} parameters (your model: 89), test accuracy" in said
    assert "   your model, above the budget  " in said
    assert str(esper.GrowResult.load(found.folder)) == said
    again = grow(tmp_path, budget=budget, epochs=2, widths="auto", resume=found.folder)
    assert str(again) == said


def test_a_cap_below_the_model_and_nothing_smaller_is_one_line(tmp_path):
    budget = esper.Budget(params=40, host_runs=1)
    said = refused(lambda: grow(tmp_path, budget=budget, epochs=1, widths="auto"))
    assert said.startswith(
        "budget params=40: your model, the reference, has 89; of networks within the limit none "
        "was trained yet; give the search more host_runs or minutes, with resume='"
    )
    assert refused(lambda: grow(tmp_path, budget=budget, widths=())) == (
        "budget params=40: your model has 89, and widths=() leaves no smaller one; give params=89 "
        "or more, or widths='auto'"
    )


def test_the_reference_of_a_cap_leaves_most_of_the_time_to_smaller_networks(monkeypatch):
    monkeypatch.setattr("esper.growing.run.GrowRun._probe", lambda _: 0.1)

    def seconds(params: int) -> float:
        budget, printer = esper.Budget(params=params, minutes=1.0), ProgressPrinter(verbose=False)
        settings = GrowSettings(device="cpu", epochs=500, batch_size=16)
        run = prepare_run(model, (data(), None, None), budget, settings, printer)
        return 0.1 * run.length.batches

    assert seconds(89) == pytest.approx(20.0, rel=0.1)
    assert seconds(88) == pytest.approx(8.5, rel=0.1)


@pytest.mark.parametrize(("prioritises", "minutes"), [(True, 1.0), (True, None), (False, 1.0)])
def test_a_good_network_comes_early_where_time_is_limited_and_others_can_wait(
    tmp_path, monkeypatch, prioritises, minutes
):
    monkeypatch.setattr("esper.growing.run.GrowRun._probe", lambda _: 0.1)
    budget, printer = esper.Budget(host_runs=5, minutes=minutes), ProgressPrinter(verbose=False)
    run = prepare_run(model, (data(), None, None), budget, GrowSettings(device="cpu"), printer)
    monkeypatch.setattr(run.trainer, "prioritises", prioritises)
    search = run._make_search(GrowFolder(tmp_path), Table())
    assert search.ladder.settings.early == (prioritises and minutes is not None)


class Choosy(nn.Module):
    """Its path depends on the data, so it can neither be traced nor captured."""

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


def test_a_network_that_grew_starts_as_its_parent(tmp_path):
    """With one seed more, its last scale 0, it computes what the finished run computes."""
    found = grow(tmp_path, budget=esper.Budget(host_runs=1), widths=())
    run = prepare_run(
        model,
        (data(), None, None),
        None,
        GrowSettings(device="cpu"),
        ProgressPrinter(verbose=False),
    )
    run.networks.folder = found.folder
    (parent,) = read_table(found.folder).rows
    base = run.networks.base
    x = torch.from_numpy(data()[0])
    expected = run.networks.trained(parent).eval()(x)
    for name in base.options(0):
        grown = replace(parent, topology=(name, *base.bare[1:]), start=0, number=1)
        network = run.networks.build(grown, (parent,)).eval()
        torch.testing.assert_close(network(x), expected, atol=1e-6, rtol=1e-6)
        pruned = replace(parent, start=0, number=1)
        assert torch.equal(run.networks.build(pruned, (grown,)).eval()(x), expected)


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


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from growing.test_grow import data, model
import esper
budget = esper.Budget(host_runs=200)
esper.grow(model, data(), budget=budget, epochs=20000, device="cpu", folder={out!r})
"""


def test_a_signal_from_the_keyboard_ends_a_real_process_with_a_result(tmp_path):
    script = SCRIPT.format(tests=str(Path(__file__).parent.parent), out=str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-c", script], stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("training"):
            break
    os.kill(process.pid, signal.SIGINT)
    process.stderr.read()
    assert process.wait(60) == 0
    (folder,) = tmp_path.iterdir()
    outcome = json.loads((folder / "result.json").read_text())
    assert outcome["complete"] is False
    assert [row.status for row in read_table(folder).rows] == ["cut"]
