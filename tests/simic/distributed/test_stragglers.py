"""A straggler's rollout is cut where asked for, and the update is that of the steps taken."""

from __future__ import annotations

import pickle
import time

import numpy as np
import pytest
import torch

from esper.simic.agent import PPOAgent
from rank_driver import run_ranks, start_ranks
from straggler_support import RaggedUpdate

MEMBERS, STEPS = 5, 8
CUT = {"0": {"0": 3}, "2": {"1": 2}}
"""Rank 0 straggles in round 0 after step 3, rank 2 in round 1 after step 2."""
TAKEN = [[4, 4, 8, 8, 8], [8, 8, 8, 8, 3]]
PPO = {"target_kl": None, "epochs": 2, "minibatches": 2}


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    out = tmp_path_factory.mktemp("cut")
    settings = {"rounds": 2, "envs": MEMBERS, "share": 0.6, "stalls": CUT, "ppo": PPO}
    return out, run_ranks("straggle", 3, out, **settings)


def test_a_straggler_stops_when_enough_ranks_have_finished(cut):
    _, ranks = cut
    for it in ranks:
        assert it["steps"] == [STEPS] * 2
        assert it["member_steps"] == TAKEN
        assert it["cut_steps"] == [8, 5]


def test_scores_of_cut_episodes_do_not_enter_the_mean(cut):
    _, ranks = cut
    for it in ranks:
        for scores, steps, mean in zip(it["scores"], TAKEN, it["mean_scores"], strict=True):
            whole = np.array(scores)[np.array(steps) == STEPS]
            assert mean == pytest.approx(whole.mean(), abs=1e-12)


@pytest.mark.parametrize("round_index", [0, 1])
def test_the_update_is_that_of_one_process_over_the_steps_taken(cut, round_index):
    out, _ = cut
    kept = [pickle.loads((out / f"update-{round_index + 1}-{r}").read_bytes()) for r in range(3)]
    agent = PPOAgent.load(out / f"agent-{round_index + 1}-0")
    agent.run_updates = kept[0]["run_updates"]
    buffers = [it["buffer"] for it in kept]
    taken = [b.filled for b in buffers for _ in range(b.members)]
    assert taken == TAKEN[round_index]
    assert all(b.truncated_TE[b.filled - 1].any() == (b.filled < STEPS) for b in buffers)
    RaggedUpdate(agent, buffers).run()
    for rank in range(3):
        found = torch.load(out / f"weights-{round_index + 1}-{rank}")
        for name, parameter in agent.network.named_parameters():
            torch.testing.assert_close(
                found[name], parameter.detach(), atol=1e-5, rtol=0.0, msg=lambda m, n=name: n + m
            )


def test_statistics_are_those_of_the_steps_taken(cut):
    out, ranks = cut
    seen = [
        pickle.loads((out / f"update-{number}-{rank}").read_bytes())["seen"]
        for number in (1, 2)
        for rank in range(3)
    ]
    whole = np.concatenate([obs_ED for part in seen for obs_ED in part]).astype(np.float64)
    assert len(whole) == sum(map(sum, TAKEN)), "the observation behind a cut is none of a step"
    for it in ranks:
        found = it["observation"]
        assert found["global_count"] == [len(whole)]
        np.testing.assert_allclose(found["global_mean"], whole.mean(axis=0), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(
            found["global_squares"], whole.var(axis=0) * len(whole), rtol=1e-6, atol=1e-9
        )
        assert it["scale"] == ranks[0]["scale"]
        assert not any(it["running_returns"]), "the next round begins with new episodes"


def test_a_cut_that_does_not_come_changes_nothing(cut, tmp_path):
    """All ranks must finish before one is cut: bit for bit what a run without the option does."""
    settings = {"rounds": 2, "envs": MEMBERS, "stalls": {}, "ppo": PPO}
    run_ranks("straggle", 2, tmp_path / "on", share=0.9, **settings)
    run_ranks("straggle", 2, tmp_path / "off", share=None, **settings)
    for number in (1, 2):
        on, off = (torch.load(tmp_path / it / f"weights-{number}-0") for it in ("on", "off"))
        assert all(torch.equal(on[name], off[name]) for name in off)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_while_it_is_cut_ends_all_at_once(victim, tmp_path):
    settings = {"rounds": 2, "envs": MEMBERS, "share": 0.6, "stalls": {str(victim): {"0": 3}}}
    processes = start_ranks("straggle", 3, tmp_path, dies=victim, **settings)
    begun = time.monotonic()
    done = [process.wait(timeout=90) for process in processes]
    assert done[victim] == -9
    for rank in {0, 1, 2} - {victim}:
        assert done[rank] == 1
        assert "lost contact with the others" in (tmp_path / f"{rank}.err").read_text()
    assert time.monotonic() - begun < 90
