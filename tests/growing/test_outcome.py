"""The result of a search: which networks are judged, on which samples, with which weights."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.growing import outcome
from esper.growing.outcome import _finished, _record, judge_on_test
from esper.growing.problem import Problem
from esper.growing.refit import Refit
from esper.growing.runs import Row
from esper.growing.verdict import Facts, verdict
from esper.karn.views import run_summary
from esper.tasks.measuring import Measured
from grow_support import quick_search, runs_of
from search_support import row


def narrow() -> nn.Module:
    """Too narrow for an exclusive or: a wider one is better."""
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 3))


def samples(count: int, seed: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
    odd = (x[:, 0] > 0) ^ (x[:, 1] > 0)
    return x, torch.where(x[:, 0].abs() > 1.5, 2, odd.long())


TEST = samples(70, 2)


class Judged:
    """A search whose refit sets all weights of the user's model to 0, and leaves the pick."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = set[int]()

        def weights(refit: Refit, rows: list[Row], every: list[Row]) -> dict[int, Any]:
            self.asked = {one.number for one in rows}
            (host,) = [one.number for one in rows if one.origin == "given"]
            saved = refit._networks._saved(host)
            return {host: {name: torch.zeros_like(value) for name, value in saved.items()}}

        self.facts = list[Facts]()
        self.problem: Any = None

        def judge(model: nn.Module, problem: Problem, device: torch.device) -> Measured:
            self.problem = problem
            return judge_on_test(model, problem, device)

        monkeypatch.setattr(outcome, "judge_on_test", judge)
        monkeypatch.setattr(Refit, "weights", weights)
        monkeypatch.setattr(outcome, "verdict", lambda one: self.facts.append(one) or verdict(one))
        parts = [samples(200, 0), samples(60, 1), TEST]
        self.result = quick_search(
            home, narrow, parts, esper.Budget(host_runs=4, params=200), epochs=15, widths=(12.0,),
            slots=1, lr=0.05, refit=True,
        )  # fmt: skip


@pytest.fixture(scope="module")
def judged(tmp_path_factory) -> Judged:
    with pytest.MonkeyPatch.context() as monkeypatch:
        return Judged(tmp_path_factory.mktemp("judged"), monkeypatch)


def test_the_pick_and_the_users_model_are_refitted_and_keep_weights_of_their_own(judged):
    result = judged.result
    assert result.best.params > result.host.params
    assert judged.asked == {result.record.pick, result.record.host.number}
    assert result.host.record.refit
    assert not any(parameter.any() for parameter in result.host.model.parameters())
    assert not result.best.record.refit
    assert all(parameter.any() for parameter in result.best.model.parameters())


def test_scores_are_those_of_the_returned_networks_on_test_with_their_errors(judged):
    x, y = TEST
    for one in (*judged.result.frontier, judged.result.host):
        with torch.no_grad():
            right = (one.model(x).argmax(1) == y).double()
        assert one.test_score == pytest.approx(float(right.mean()))
        assert one.record.test_se == pytest.approx(float(right.std()) / math.sqrt(len(y)))
        assert one.params == sum(p.numel() for p in one.model.parameters())
    gained = judged.result.best.test_score - judged.result.host.test_score
    assert gained > 0.2
    (facts,) = judged.facts
    frequent = int(samples(60, 1)[1].mode().values)
    assert facts.constant == pytest.approx(float((y == frequent).float().mean())), "of test"
    assert f"better than your model by {100 * gained:.1f} points" in judged.result.verdict
    record = json.loads((judged.result.folder / "result.json").read_text())
    assert record["gain"]["value"] == pytest.approx(gained)
    assert 0.0 < record["gain"]["low"] < gained < record["gain"]["high"], "as the verdict says"
    found = run_summary(judged.result.folder).result
    assert [fact.name for fact in found.facts][:2] == ["test accuracy", "gain over your model"]


def test_a_network_that_the_device_cannot_judge_is_judged_on_the_cpu(judged):
    best = judged.result.best
    found = judge_on_test(best.model, judged.problem, torch.device("meta"))  # it has no values
    assert found.value == best.test_score
    assert {parameter.device.type for parameter in best.model.parameters()} == {"cpu"}


def test_every_run_is_told_once_and_the_compute_adds_up(judged):
    record, rows = judged.result.record, runs_of(judged.result.folder)
    every = {one.number: one for one in (*record.networks, record.host, *record.others)}
    listed = [one.number for one in (*record.networks, *record.others)]
    assert sorted({*listed, record.host.number}) == [one.number for one in rows]
    assert len(set(listed)) == len(listed)
    assert sum(one.runs for one in every.values()) == pytest.approx(record.runs)
    assert [one.params for one in record.networks] == sorted(one.params for one in record.networks)


def test_a_run_that_was_cut_or_diverged_is_not_refitted_nor_is_the_other():
    rows = [row(0), row(1), row(2, status="cut"), row(3, math.nan, diverged=True)]
    assert _finished(rows, {1, 0}) == rows[:2]
    assert _finished(rows, {0, 2}) == _finished(rows, {0, 3}) == []
    info: Any = SimpleNamespace(variants=("",), length=54)
    cut = _record(row(2, 0.5, status="cut", cost=2.0, trained=27, seed=8), info)
    assert (cut.cut, cut.runs, cut.seed) == (True, 1.0, 8)
    assert cut.val_score == 0.5
    assert math.isnan(cut.test_score), "it was not judged on test"
    assert not _record(row(0), info).cut
