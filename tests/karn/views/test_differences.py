"""Differences to a baseline are paired where both runs had the same hosts or samples, else not."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from esper.karn import views
from esper.leyline.codec import to_json
from esper.leyline.context import ContextSpec, Range
from esper.leyline.errors import EsperError
from esper.leyline.statistics import paired_difference, unpaired_difference
from esper.storage.run_files import TEST_SAMPLES
from search_folder import INFO, search_folder, write

OURS, THEIRS = [0.5, 0.7, 0.65, 0.9], [0.45, 0.6, 0.66, 0.7]


def compared(path: Path, scores: list[float], first_seed: int = 0, **settings: object) -> Path:
    """A comparison of one policy on hosts of two populations."""
    (path / "policies").mkdir(parents=True)
    (path / "settings.json").write_text(json.dumps({"task": "synthetic"} | settings))
    seeds = [first_seed + n // 2 for n in range(len(scores))]
    members = [n % 2 for n in range(len(scores))]
    result = {"seed_N": seeds, "member_N": members, "score_N": scores}
    saved = {"label": "wait", "identity": {"policy": "wait"}, "result": result}
    (path / "policies" / "wait.json").write_text(json.dumps(saved))
    return path


def only(run: Path, baseline: Path) -> views.Difference:
    (found,) = views.compare_with_baseline(run, baseline)
    return found


def test_the_same_hosts_are_compared_in_pairs(tmp_path):
    found = only(compared(tmp_path / "a", OURS), compared(tmp_path / "b", THEIRS))
    assert found.difference == paired_difference(np.array(OURS), np.array(THEIRS)).student
    assert (found.label, found.measure, found.n, found.is_paired) == ("wait", "score", 4, True)
    assert found.how == "paired: the same 4 hosts"
    assert found.ours.value - found.theirs.value == pytest.approx(found.difference.value)


def test_pairs_are_found_by_seed_and_member_not_by_place(tmp_path):
    ours, theirs = compared(tmp_path / "a", OURS), compared(tmp_path / "b", THEIRS, first_seed=1)
    found = only(ours, theirs)
    assert (found.n, found.is_paired) == (2, True)
    assert found.difference.value == pytest.approx(np.mean(np.subtract(OURS[2:], THEIRS[:2])))


@pytest.mark.parametrize(
    ("changes", "how"),
    [
        ({"first_seed": 9}, "unpaired: other seeds"),
        ({"task": "digits"}, "unpaired: task synthetic against task digits"),
    ],
)
def test_other_hosts_count_as_independent(tmp_path, changes, how):
    found = only(compared(tmp_path / "a", OURS), compared(tmp_path / "b", THEIRS, **changes))
    assert found.difference == unpaired_difference(np.array(OURS), np.array(THEIRS))
    assert (found.is_paired, found.how) == (False, how)


def test_hosts_that_share_draws_count_once(tmp_path):
    context = to_json(ContextSpec(budget=Range(1.0, 2.0), clock="compute"))
    runs = [compared(tmp_path / name, values, context=context)
            for name, values in (("a", OURS), ("b", THEIRS))]  # fmt: skip
    found = only(*runs)
    assert (found.n, found.is_paired) == (2, True)


# ---- searches ----------------------------------------------------------------------------------


def searched(path: Path, host: float | None = 0.0, **info: object) -> Path:
    """A search whose pick and model have these values of test samples; None: not recorded."""
    run = search_folder(path)
    write(run / "grow.json", INFO | info)
    if host is not None:
        pick_N = np.array([1, 1, 0, 1], np.float32)
        np.save(run / TEST_SAMPLES, np.stack([pick_N, pick_N * host]).astype(np.float32))
    return run


def test_searches_on_the_same_data_are_compared_on_each_test_sample(tmp_path):
    pick, model = views.compare_with_baseline(
        searched(tmp_path / "a", 1.0), searched(tmp_path / "b", 0.0)
    )
    assert (pick.label, model.label) == ("pick", "your model")
    assert (pick.difference.low, pick.difference.high) == (0.0, 0.0), "equal on each sample"
    assert (model.difference.value, model.is_paired) == (0.75, True)
    assert model.how == "paired: the same 4 test samples"


def test_searches_without_values_of_samples_are_compared_by_their_errors(tmp_path):
    pick, _ = views.compare_with_baseline(
        searched(tmp_path / "a", None), searched(tmp_path / "b", 1.0)
    )
    assert pick.how == "unpaired: values of single test samples are not recorded"
    reach = 1.96 * math.hypot(0.02, 0.02)  # of both standard errors
    assert (pick.difference.value, pick.difference.high) == pytest.approx((0.0, reach), abs=1e-4)


def test_searches_on_other_data_are_not_paired(tmp_path):
    pick, _ = views.compare_with_baseline(
        searched(tmp_path / "a"), searched(tmp_path / "b", fingerprint="0123456789")
    )
    assert (pick.is_paired, pick.how) == (False, "unpaired: data f against data 01234567")


def test_other_metrics_have_no_difference(tmp_path):
    run, other = searched(tmp_path / "a"), searched(tmp_path / "b", metric="auroc")
    assert views.compare_with_baseline(run, other) == ()


@pytest.mark.parametrize("content", [b"\x93NUMPY", b"PK\x03\x04", np.zeros(3).tobytes()])
def test_damaged_samples_are_named(tmp_path, content):
    run, other = searched(tmp_path / "a"), searched(tmp_path / "b")
    (run / TEST_SAMPLES).write_bytes(content)
    with pytest.raises(EsperError, match=TEST_SAMPLES.replace(".", r"\.")):
        views.compare_with_baseline(run, other)


# ---- training ----------------------------------------------------------------------------------


def test_training_runs_are_compared_in_the_last_round_that_both_have(ppo, tmp_path):
    other = shutil.copytree(ppo, tmp_path / "other")
    found = only(ppo, other)
    assert (found.label, found.n, found.is_paired) == ("training, round 3", 2, True)
    assert (found.difference.low, found.difference.high) == (0.0, 0.0)
    assert found.ours == views.read_rounds(ppo)[-1].score
