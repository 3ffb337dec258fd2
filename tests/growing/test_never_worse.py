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
from esper.growing.data import read_data
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
    finished = [c for c in result.search_state().candidates if c.finished]
    bare = [c for c in finished if c.host == 0 and not any(c.topology)]
    planted = [c for c in finished if c.origin not in ("pruned", "grown")]
    assert bare, "the model as given was not trained in full"
    assert all(len(c.curve) and c.curve[-1][0] == result.info.length for c in finished)
    best = result.best.val_score
    assert np.isfinite(best)
    assert best >= max(c.score for c in (*bare, *planted))
    assert result.host.val_score == max(c.score for c in bare)
    assert result.host.params == bare[0].params


def check_budget(problem: RandomProblem, result: esper.GrowResult) -> None:
    budget, candidates = problem.budget, result.search_state().candidates
    assert result.record.runs <= budget.host_runs
    spent = sum(c.compute for c in candidates) / result.info.length
    assert spent == pytest.approx(result.record.runs, rel=1e-9)
    assert max(c.params for c in candidates) <= (budget.params or np.inf)
    assert max(c.macs for c in candidates) <= (budget.macs or np.inf)
    one = problem.train[0][:1]
    for network in (*result.frontier, result.host, result.best):
        plain = network.model
        assert sum(p.numel() for p in plain.parameters()) == network.params
        assert measured_macs(plain, one) <= network.macs


def check_validation(problem: RandomProblem, result: esper.GrowResult) -> None:
    """Plain networks on the user's own samples have the scores of the record."""
    data = read_data(problem.train, problem.val, seed=problem.settings["seed"])
    if problem.val is not None:
        assert torch.equal(data.val.inputs, problem.val[0])
    for model, said in ((result.model, result.best), (result.host.model, result.host)):
        assert isinstance(model, nn.Module)
        assert not model.training
        with torch.no_grad():
            outputs = model(data.val.inputs)
        found = score(problem, outputs, data.val.targets)
        assert found == pytest.approx(said.val_score, abs=1e-5)
