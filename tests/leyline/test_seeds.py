"""A seed is one of 2**64, none stands for another, and those kept to judge by stay apart."""

from __future__ import annotations

import numpy as np
import pytest

from esper.leyline.limits import MAX_COUNT, require_at_most
from esper.leyline.seeds import (
    EVALUATION_SEEDS,
    MAX_SEED,
    require_evaluation_seeds,
    require_seed,
    require_training_seed,
)
from esper.leyline.streams import stream_keys
from support import refused

NO_SEEDS = [-1, 2**64, 2**64 + EVALUATION_SEEDS[0], -(2**64) + EVALUATION_SEEDS[5], 10**5000,
            True, 1.0, "3", None]  # fmt: skip


@pytest.mark.parametrize("seed", NO_SEEDS, ids=lambda seed: str(type(seed).__name__))
def test_what_is_no_seed_is_refused_wherever_one_is_taken(seed):
    for taken in (
        lambda: require_seed(seed, "--seed"),
        lambda: require_training_seed(seed, "--seed"),
        lambda: require_evaluation_seeds(seed, 1, "--seed"),
    ):
        line = refused(taken)
        assert line.startswith("--seed ")
        assert f"0 to {MAX_SEED}" in line
    assert "seed" in refused(lambda: stream_keys(seed, "round"))


@pytest.mark.parametrize("seed", [0, 1, 2**63, MAX_SEED, np.int64(3), np.uint64(MAX_SEED)])
def test_every_seed_there_is_may_be_trained_on_unless_it_is_kept(seed):
    require_training_seed(seed, "--seed")
    assert stream_keys(seed, "a") == stream_keys(int(seed), "a")


def test_no_two_seeds_at_the_ends_of_the_range_are_one():
    seeds = [0, 1, EVALUATION_SEEDS[0], 2**63 - 1, 2**63, MAX_SEED - 1, MAX_SEED]
    assert len({int(stream_keys(seed, "a")) for seed in seeds}) == len(seeds)


@pytest.mark.parametrize("seed", [EVALUATION_SEEDS[0], np.int64(EVALUATION_SEEDS[-1])])
def test_a_seed_that_is_kept_is_not_trained_on(seed):
    assert "reserved for evaluation" in refused(lambda: require_training_seed(seed, "--seed"))


def test_a_count_is_a_whole_number_up_to_its_limit():
    for fine in (1, MAX_COUNT, np.int64(3), None):
        require_at_most("rounds=", fine)
    assert refused(lambda: require_at_most("rounds=", 12_000, 10_000)) == (
        "rounds=12000: must be 10,000 or less"
    )
    for bad in (True, 2.0, "3"):
        assert "must be an integer" in refused(lambda bad=bad: require_at_most("n=", bad))
    assert len(refused(lambda: require_at_most("n=", 10**5000))) < 100
