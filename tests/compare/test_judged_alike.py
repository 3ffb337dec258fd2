"""`train ppo`, `eval` and `compare` give the same scores on the same hosts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from esper.scripts import compare, evaluate, train
from esper.simic.training.runs.checkpoints import find_checkpoint

HOSTS = 3
TASK = ("--task", "synthetic", "--episode-length", "12", "--batches-per-step", "1",
        "--batch-size", "16")  # fmt: skip
LIMITED = ("--blueprints", "norm", "conv_light", "--counterfactual-stride", "4",
           "--frozen-heads", "STYLE", "0", "TEMPO", "2")  # fmt: skip
"""What the controller is trained with: other policies are not bound by it."""
UNLEARNED = ("wait", "random", "heuristic")


def call(main: Any, *flags: object) -> None:
    assert main([str(flag) for flag in flags]) == 0


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    call(train.main, "ppo", *TASK, *LIMITED, "--rounds", 1, "--envs", 2, "--device", "cpu",
         "--evaluation-envs", HOSTS, "--quiet", "--runs", root)  # fmt: skip
    (path,) = root.glob("synthetic__*")
    return path


@pytest.fixture(scope="module")
def found(run, tmp_path_factory) -> dict[str, dict[str, Any]]:
    """What each command found, by policy."""
    out = tmp_path_factory.mktemp("out")
    call(evaluate.main, run, "--envs", HOSTS, "--out", out)
    argv = (*UNLEARNED, f"ppo={run}", f"drawn=sampled:{run}")
    call(compare.main, *argv, *TASK, "--seeds", HOSTS, "--device", "cpu", "--quiet",
         "--out", out / "compared")  # fmt: skip
    kept = [json.loads(path.read_text()) for path in (out / "compared/policies").iterdir()]
    compared = {record["label"]: record for record in kept}
    compared["ppo, sampled"] = compared.pop("drawn")
    compared["untrained"] = compared.pop("ppo, untrained")
    compared["untrained, sampled"] = compared.pop("drawn, untrained")
    return {
        "train": json.loads((run / "report" / "learning.json").read_text())["judged"],
        "eval": json.loads((out / "eval_synthetic_judged.json").read_text())["judged"],
        "compare": compared,
    }


@pytest.mark.parametrize(
    "policy", [*UNLEARNED, "ppo", "ppo, sampled", "untrained", "untrained, sampled"]
)
def test_a_policy_has_the_same_scores_from_train_eval_and_compare(found, run, policy):
    """One round: the run's best checkpoint is the controller as it ended."""
    assert find_checkpoint(run).summary.round == 1
    wanted = found["compare"][policy]["result"]
    assert len(wanted["score_N"]) == HOSTS
    for command in ("train", "eval"):
        there = found[command][policy]
        assert there["outcome"]["score_E"] == wanted["score_N"], command
        assert there["outcome"]["blueprint_ES"] == wanted["blueprint_NS"], command
        assert there["test_E"] == wanted["test_N"], command
        assert there["blueprints"] == wanted["blueprints"], command


def test_policies_that_do_not_learn_are_not_limited_as_the_controller_is(found):
    judged = found["train"]
    for policy in UNLEARNED:
        assert len(judged[policy]["blueprints"]) > 2
    assert judged["ppo"]["blueprints"] == ["norm", "conv_light"]
    assert sum(judged["heuristic"]["outcome"]["germinated_E"]) > 0
    limits = {name: record["identity"]["limits"] for name, record in found["compare"].items()}
    assert limits["heuristic"]["counterfactual_stride"] == 1
    assert limits["ppo"]["counterfactual_stride"] == 4
