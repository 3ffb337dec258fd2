"""Two ranks compute what one process computes: collectives, and updates on noise."""

from __future__ import annotations

import numpy as np
import pytest

from esper.leyline.errors import EsperError
from esper.simic.distributed.environment import world_size
from esper.simic.distributed.ranks import SINGLE_PROCESS
from esper.simic.distributed.world import World
from rank_driver import fork_ranks, update_on_noise

MEMBERS = 5
PPO = {"minibatches": 3, "epochs": 3, "target_kl": 0.004}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, alone):
    """Forked behind the update of this process, which imports what they need."""
    out = tmp_path_factory.mktemp("ranks")
    return fork_ranks("pieces", 2, out, members=MEMBERS, ppo=PPO)


@pytest.fixture(scope="module")
def alone():
    return update_on_noise(SINGLE_PROCESS, MEMBERS, PPO)


def test_every_member_has_one_rank(ranks):
    assert [it["own"] for it in ranks] == [[0, 1, 2, 3], [4, 5, 6]]
    assert [it["fits"] for it in ranks] == [1, 1]


@pytest.mark.parametrize(("size", "total"), [(3, 16), (4, 16), (5, 5), (7, 30)])
def test_shares_differ_by_one_at_most_and_cover_all(size, total):
    worlds = [World(rank, size) for rank in range(size)]
    counts = [world.share_members(total) for world in worlds]
    numbers = [world.numbers(count) for world, count in zip(worlds, counts, strict=True)]
    assert np.concatenate(numbers).tolist() == list(range(total))
    assert max(counts) - min(counts) <= 1
    owners = [worlds[0].owner_of(number) for number in range(total)]
    assert owners == [rank for rank, count in enumerate(counts) for _ in range(count)]


def test_arrays_are_joined_in_the_order_of_ranks(ranks):
    assert [it["gathered"] for it in ranks] == [[2.5 * n for n in range(7)]] * 2
    assert [it["nothing"] for it in ranks] == [[4]] * 2, "rank 0 had none to give"


def test_moments_are_those_of_all_values(ranks):
    values = np.arange(7.0) ** 2
    for it in ranks:
        assert it["moments"]["mean"] == pytest.approx(values.mean())
        assert it["moments"]["variance"] == pytest.approx(values.var())
        assert it["moments"]["deviation"] == pytest.approx(values.std())


def test_any_rank_can_send_to_all(ranks):
    assert [it["said"] for it in ranks] == ["from one"] * 2


def test_an_error_of_one_rank_is_an_error_of_all_and_names_it(ranks):
    assert [it["failed"].partition(" (")[0] for it in ranks] == ["rank 1", "no data"]
    assert ranks[0]["failed"].endswith("): no data")
    assert [it["stopped"] for it in ranks] == ["TERM"] * 2
    assert [it["stopped_kind"] for it in ranks] == ["PeerInterrupted", "KeyboardInterrupt"]


def test_more_ranks_than_members_are_refused(ranks):
    for it in ranks:
        assert "envs=1 on 2 ranks: each rank needs a member" in it["crowded"]


def test_ranks_sample_what_one_process_samples(ranks, alone):
    joined = [[*one, *two] for one, two in zip(*(it["actions"] for it in ranks), strict=True)]
    assert joined == alone["actions"]


def test_ranks_learn_what_one_process_learns(ranks, alone):
    """Uneven shares, minibatches without a member of some rank, heads that one rank never uses, and
    an update that the KL limit ends."""
    assert any(m["early_stopped"] for m in alone["metrics"]), "or the KL limit is not tested"
    assert ranks[0]["weights"] == ranks[1]["weights"], "bit for bit"
    for it in ranks:
        for name, expected in alone["weights"].items():
            np.testing.assert_allclose(it["weights"][name], expected, atol=2e-6, err_msg=name)
        for name, expected in alone["observation"].items():
            np.testing.assert_allclose(it["observation"][name], expected, rtol=1e-9, atol=1e-12)
        assert it["scale"] == pytest.approx(alone["scale"], rel=1e-12)


def test_metrics_are_those_of_all_members(ranks, alone):
    for mine, expected in zip(ranks[1]["metrics"], alone["metrics"], strict=True):
        assert mine.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(mine[name], value, rtol=2e-5, atol=2e-6, err_msg=name)


def test_a_size_that_is_no_number_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(EsperError, match="WORLD_SIZE='many' in the environment"):
        world_size()


def test_ranks_of_one_machine_have_a_gpu_each():
    with pytest.raises(EsperError, match="use cuda or auto"):
        World(0, 2, 0, 2).device_of("cuda:0")
    assert World(0, 2, 0, 2).device_of("cpu") == "cpu"
