"""N ranks of E members train what one process with N * E members trains."""

from __future__ import annotations

import numpy as np
import pytest

from rank_driver import run_ranks

MEMBERS = 16


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    (found,) = run_ranks("train", 1, tmp_path_factory.mktemp("alone"), envs=MEMBERS)
    return found


@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_train_the_controller_of_one_process(alone, size, tmp_path):
    ranks = run_ranks("train", size, tmp_path, envs=MEMBERS)
    for step, actions in enumerate(alone["first_actions"]):
        for head, expected in enumerate(actions):
            joined = [choice for it in ranks for choice in it["first_actions"][step][head]]
            assert joined == expected, f"step {step} of round 1"
    for it in ranks:
        assert it["weights"] == ranks[0]["weights"], "bit for bit"
        assert it["scores"] == alone["scores"]
        assert it["chosen"] == alone["chosen"]
    for name, expected in alone["weights"].items():
        np.testing.assert_allclose(ranks[0]["weights"][name], expected, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("how", ["restarts", "named"])
def test_so_they_do_where_members_restart_and_where_one_rank_has_made_the_task(how, tmp_path):
    """Counts are of all members; `train_ppo_vectorized` makes the task on rank 0 to check it."""
    names = [tmp_path / "one", tmp_path / "two"]
    for name in names:
        name.mkdir()
    (alone,) = run_ranks("train", 1, names[0], envs=6, rounds=2, **{how: True})
    ranks = run_ranks("train", 2, names[1], envs=6, rounds=2, **{how: True})
    assert [it["chosen"] for it in ranks] == [alone["chosen"]] * 2
    assert how == "named" or any(sum(round_O[-1:]) for round_O in alone["chosen"])
