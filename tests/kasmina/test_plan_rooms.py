"""Buffers of padded plans over many rounds of a population that starts without seeds each time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esper.kasmina.lifecycle.lifecycle import Lifecycle, LifecycleConfig
from esper.kasmina.rows.padding import PlanBufferCache
from esper.kasmina.rows.rows import shape_of, training_rows
from esper.leyline.stages import SeedStage

MEMBERS, KINDS = 32, 6


@pytest.fixture(autouse=True)
def profile_fast():
    """Under `exact` a room does not depend on earlier plans."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    yield
    torch.use_deterministic_algorithms(before)


def grow(life: Lifecycle, rng: np.random.Generator) -> None:
    """Germinate a seed of any kind in a free slot of up to four members."""
    free = rng.permutation(np.argwhere(life.stage_ES == SeedStage.DORMANT))[:4]
    members, first = np.unique(free[:, 0], return_index=True)
    life.germinate(members, free[first, 1], rng.integers(0, KINDS, len(members)))
    life.begin_step()


def test_a_round_that_starts_over_takes_the_room_of_earlier_ones():
    """Few seeds at first, many later: small plans do not get room of their own in every round."""
    life = Lifecycle(MEMBERS, ("a", "b", "c"), np.ones((3, KINDS), np.bool_), LifecycleConfig())
    rooms, rng = PlanBufferCache(), np.random.default_rng(0)
    new = []
    for _ in range(6):
        life.reset()
        before = len(rooms)
        for _ in range(12):
            grow(life, rng)
            table = training_rows(life)
            assert rooms.find("train", table, life, True).shape.covers(shape_of(table, life))
        new.append(len(rooms) - before)
    assert new[0] > 3
    assert sum(new[2:]) <= 2
