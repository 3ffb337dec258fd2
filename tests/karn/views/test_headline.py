"""The headline is the judged result; what was only seen in training or validation is called so."""

from __future__ import annotations

import json

import numpy as np
import pytest

from esper.karn import views
from esper.karn.views.headline import Basis, training_headline
from esper.leyline.statistics import student_estimate
from search_folder import RESULT, search_folder, write
from web_support import comparison


def test_the_pick_on_test_beside_its_gain_with_an_interval(tmp_path):
    run = search_folder(tmp_path / "run")
    write(run / "result.json", RESULT | {"gain": {"value": 0.1, "low": 0.04, "high": 0.16}})
    found = views.run_summary(run).result
    assert found.text == (
        "test accuracy 0.8500 ± 0.0200, 300 parameters, +0.1 [+0.04, +0.16] against your model"
    )
    assert (found.basis, found.score, found.gain.low) == (Basis.TEST, 0.85, 0.04)
    assert [fact.name for fact in found.facts] == [
        "test accuracy", "gain over your model", "your model", "parameters",
    ]  # fmt: skip


def test_the_gain_of_the_pick_is_the_same_everywhere(tmp_path):
    run = search_folder(tmp_path / "run")
    write(run / "result.json", RESULT | {"gain": {"value": 0.12, "low": 0.04, "high": 0.2}})
    summary = views.run_summary(run)
    assert summary.result.gain is not None
    (pick,) = [point for point in views.read_frontier(run) if point.is_pick]
    assert (summary.result.gain.value, pick.gain) == (0.12, 0.12)
    assert "+0.12 [" in summary.headline
    assert not hasattr(summary, "gain")


def test_validation_is_called_validation(tmp_path):
    found = views.run_summary(search_folder(tmp_path / "run", has_result=False)).result
    assert found.basis is Basis.VALIDATION
    assert not found.is_judged
    assert found.facts[0].name == "validation accuracy"


def judged(score: list[float]) -> dict:
    outcome = {"score_E": score, "added_params_E": [0] * len(score)}
    return {"outcome": outcome, "test_E": score, "compute_E": [1.0] * len(score)}


def keep_judgement(run, rounds: int = 2) -> None:
    (run / "report").mkdir(parents=True)
    content = {
        "judged": {
            "ppo": judged([0.8, 0.9, 0.7]), "ppo, sampled": judged([0.9, 0.9, 0.9]),
            "static-final": judged([0.7, 0.9, 0.6]), "asha:2": judged([1.0, 1.0, 1.0]),
            "wait": judged([0.2, 0.2, 0.2]), "heuristic": judged([0.5, 0.6, 0.4]),
        },
        "history": [{}] * rounds,
    }  # fmt: skip
    (run / "report" / "learning.json").write_text(json.dumps(content))


def test_a_controller_is_judged_beside_its_networks_from_the_start_and_the_best_simple_policy(
    tmp_path,
):
    before = training_headline(tmp_path, 0.64, 2)
    assert (before.text, before.basis) == ("training score 0.6400", Basis.TRAINING)
    assert "not judged" in before.facts[0].beside

    keep_judgement(tmp_path)
    found = training_headline(tmp_path, 0.64, 2)
    assert found.text == "judged score 0.8000; static-final 0.7333, heuristic 0.5000"
    assert found.basis is Basis.JUDGED
    gain = student_estimate(np.array([0.1, 0.0, 0.1]))
    assert (found.gain.value, found.gain.low, found.gain.high) == pytest.approx(
        (gain.value, gain.low, gain.high)
    )
    assert [fact.name for fact in found.facts] == [
        "judged score", "static-final", "heuristic", "test accuracy",
    ]  # fmt: skip


def test_a_judgement_of_fewer_rounds_than_are_trained_says_so(tmp_path):
    keep_judgement(tmp_path)
    found = training_headline(tmp_path, 0.64, 5)
    assert found.text.startswith("judged score 0.8000 after round 2;")


def test_a_damaged_judgement_leaves_the_training_score(tmp_path):
    keep_judgement(tmp_path)
    (tmp_path / "report" / "learning.json").write_text("{")
    assert training_headline(tmp_path, 0.64, 2).basis is Basis.TRAINING
    assert training_headline(tmp_path, float("nan"), 0).text == ""


def test_a_comparison_names_its_best_policy_and_what_it_gains(tmp_path):
    run = comparison(tmp_path / "cmp")
    assert views.run_summary(run).headline == "best score 0.6000: random"
    (run / "compare.json").write_text(json.dumps({"reference": "wait"}))
    found = views.run_summary(run).result
    assert found.text.startswith("best score 0.6000: random, +0.05 [")
    assert found.text.endswith("against wait")
    (run / "policies" / "wait.json").write_text("{")
    assert views.run_summary(run).headline == "best score 0.6000: random", "of those it can read"
    for path in (run / "policies").glob("*.json"):
        path.write_text("{")
    assert views.run_summary(run).headline == ""
