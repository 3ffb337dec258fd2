"""The promises of `esper.grow`, on 50 random problems: data, model and budget are drawn.

The pick is never worse on validation than the model as given or any network trained from the start;
caps and compute are kept; and the plain network has the score that the record says.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import r2_score
from torch import Tensor, nn

import esper
from esper.growing.data.reading import read_data
from esper.growing.settings import GrowSettings
from random_problems import RandomProblem, draw_problem, measured_macs

PROBLEMS = 50


def grow(problem: RandomProblem, folder) -> esper.GrowResult:
    return esper.grow(
        problem.model, problem.train, problem.val, budget=problem.budget, device="cpu",
        folder=folder, verbose=False, **problem.settings,
    )  # fmt: skip


def score(problem: RandomProblem, outputs: Tensor, targets: Tensor) -> float:
    """The default metric, written down once more."""
    if problem.kind == "classes":
        return float((outputs.argmax(1) == targets).double().mean())
    targets = targets.reshape(len(targets), -1).double()
    if problem.kind in ("binary", "multilabel"):
        return float(((outputs > 0) == (targets > 0)).double().mean())
    return float(r2_score(targets, outputs.double()))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(PROBLEMS))
def test_a_random_problem_keeps_every_promise(number, tmp_path):
    problem = draw_problem(number)
    result = grow(problem, tmp_path)
    check_controls(result)
    check_budget(problem, result)
    check_validation(problem, result)


def check_controls(result: esper.GrowResult) -> None:
    """The pick against every finished run of the model as given, and every static network."""
    done = [row for row in result.table().rows if row.status == "finished" and not row.diverged]
    bare = [row for row in done if row.variant == 0 and not any(row.topology)]
    assert any(row.trained == result.info.length for row in bare), "the model as given, in full"
    assert all(row.trained == row.recipe.batches for row in done)
    best = result.best.val_score
    assert np.isfinite(best)
    assert best == max(row.score for row in done)
    assert result.host.val_score == max(row.score for row in bare)
    assert result.host.params == bare[0].params


def check_budget(problem: RandomProblem, result: esper.GrowResult) -> None:
    budget, rows = problem.budget, result.table().rows
    assert result.record.runs <= budget.host_runs
    spent = sum(row.compute for row in rows) / result.info.length
    assert spent == pytest.approx(result.record.runs, rel=1e-9)
    assert max(row.params for row in rows) <= (budget.params or np.inf)
    assert max(row.macs for row in rows) <= (budget.macs or np.inf)
    one = problem.train[0][:1]
    for network in (*result.frontier, result.host, result.best):
        plain = network.model
        assert sum(p.numel() for p in plain.parameters()) == network.params
        assert measured_macs(plain, one) <= network.macs


def check_validation(problem: RandomProblem, result: esper.GrowResult) -> None:
    """Plain networks on the user's own samples have the scores of the record."""
    settings = GrowSettings(seed=problem.settings["seed"])
    data = read_data(problem.train, problem.val, settings=settings)
    if problem.val is not None:
        assert torch.equal(data.val.inputs, problem.val[0])
    for model, said in ((result.model, result.best), (result.host.model, result.host)):
        assert isinstance(model, nn.Module)
        assert not model.training
        with torch.no_grad():
            outputs = model(data.val.inputs)
        found = score(problem, outputs, data.val.targets)
        assert found == pytest.approx(said.val_score, abs=1e-5)
