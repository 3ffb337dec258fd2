"""Which topologies an audit trains."""

from __future__ import annotations

import numpy as np
import pytest

from esper.kasmina.costs.seed_costs import TrainingCosts
from esper.kasmina.lifecycle.caps import SeedCosts
from esper.leyline.errors import EsperError
from esper_lab.audit.topologies import choose_topologies, number_of_topologies
from esper_lab.audit.topology_space import TopologySpace

NAMES = ("small", "middle", "large")


def space(slots: int) -> TopologySpace:
    """Seeds of 10, 100 and 1000 parameters on a host of 50; the last slot takes no large one."""
    fits_SK = np.ones((slots, 3), dtype=np.bool_)
    fits_SK[-1, 2] = False
    params_SK = np.where(fits_SK, [10, 100, 1000], 0)
    nothing_S = np.zeros(slots, dtype=np.int64)
    costs = SeedCosts(50, 500, params_SK, params_SK, nothing_S)
    training = TrainingCosts(1500, nothing_S, 3 * params_SK, params_SK, params_SK)
    return TopologySpace(NAMES, fits_SK, costs, training)


@pytest.mark.parametrize(("slots", "count"), [(1, 3), (2, 12), (3, 20), (3, 48), (10, 60)])
def test_no_topology_is_chosen_twice_and_all_fit(slots, count):
    here = space(slots)
    chosen = choose_topologies(here, count, seed=5)
    assert len(set(chosen)) == len(chosen) == count
    assert all(here.holds(topology) for topology in chosen)
    assert chosen[0] == here.host
    assert chosen == choose_topologies(here, count, seed=5)


def test_all_topologies_can_be_had():
    here = space(3)
    total = number_of_topologies(here)
    assert total == 4 * 4 * 3
    assert len(set(choose_topologies(here, total, seed=0))) == total
    with pytest.raises(EsperError, match=r"--topologies 49: the task has 48 topologies"):
        choose_topologies(here, total + 1, seed=0)


def test_host_uniform_and_single_ones_come_first():
    here = space(3)
    chosen = choose_topologies(here, 12, seed=0)
    assert chosen[1:4] == (("small",) * 3, ("middle",) * 3, ("large", "large", ""))
    assert all(sum(map(bool, topology)) == 1 for topology in chosen[4:8])
    assert chosen[8:] != choose_topologies(here, 12, seed=1)[8:]


def test_random_ones_are_spread_over_sizes():
    here = space(10)
    sizes = [here.size(topology).params for topology in choose_topologies(here, 100, seed=0)]
    shares = np.log(np.array(sizes[20:]) / 50) / np.log(max(sizes) / 50)
    counts, _ = np.histogram(shares, bins=4, range=(0, 1))
    assert counts.min() >= 8, counts
