"""Which rollouts of slow ranks end early, and which settings are refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from esper.leyline.errors import EsperError
from esper.simic.distributed.stragglers import StragglerRule
from loop_support import tiny_config

STEPS = 8


class Alone:
    """A world whose shared count is a number."""

    def __init__(self, size: int) -> None:
        self.size, self.finished = size, 0

    def shared_count(self):
        return self

    def value(self) -> int:
        return self.finished

    def add(self, amount: int) -> int:
        self.finished += amount
        return self.finished


@pytest.mark.parametrize(
    ("share", "size", "needed"), [(0.5, 2, 1), (0.6, 3, 2), (0.6, 5, 3), (0.01, 8, 1), (0.9, 2, 2)]
)
def test_the_share_is_of_ranks_and_rounded_up(share, size, needed):
    world = Alone(size)
    rule = StragglerRule(world, share, STEPS)
    for finished in range(size):
        world.finished = finished
        assert rule.ends_early(4) == (finished >= needed)
        assert not rule.ends_early(math.ceil(STEPS / 4) - 1), "a quarter is always completed"


def test_ranks_that_finished_in_earlier_rounds_do_not_count():
    world = Alone(2)
    rule = StragglerRule(world, 0.5, STEPS)
    world.finished = 1
    assert rule.ends_early(4)
    rule.finish()
    assert world.finished == 2
    assert not rule.ends_early(4)
    world.finished = 3
    assert rule.ends_early(4)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, math.nan])
def test_a_share_of_no_or_all_ranks_is_refused(share):
    with pytest.raises(EsperError, match="must be above 0 and below 1"):
        replace(tiny_config(), cut_stragglers=share)


def test_rollouts_that_are_parts_of_episodes_cannot_be_cut():
    with pytest.raises(EsperError, match="set one of both"):
        replace(tiny_config(rollout_steps=4), cut_stragglers=0.5)
