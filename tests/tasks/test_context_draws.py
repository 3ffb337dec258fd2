"""Draws of contexts: which seed decides what, and that no draw follows from another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine_support import small_task
from esper.kasmina.lifecycle.caps import SeedCosts
from esper.leyline import VARIED
from esper.leyline.context import RoundContext
from esper.tasks.context_data import RoundData
from esper.tasks.contexts import draw_members, draw_round

COSTS = SeedCosts(100, 1000, np.array([[50, 200]]), np.array([[500, 4000]]), np.array([8]))
TASK = small_task()
ROUNDS = 200


def rounds(seed: int, hidden_seed: int) -> list[RoundContext]:
    return [draw_round(VARIED, TASK, seed, r, 6.0, hidden_seed) for r in range(ROUNDS)]


def test_what_policies_see_of_a_round_is_drawn_by_the_seed_and_the_rest_by_the_hidden_one():
    one, other, third = rounds(1, 7), rounds(1, 8), rounds(2, 7)

    def share_alike(name: str, left: list[RoundContext], right: list[RoundContext]) -> float:
        pairs = zip(left, right, strict=True)
        return float(np.mean([getattr(a, name) == getattr(b, name) for a, b in pairs]))

    for name in ("budget", "data_share", "groups"):
        assert share_alike(name, one, other) == 1.0, name
        assert share_alike(name, one, third) < 0.5, name
    for name in ("pixel_noise", "label_noise", "permuted"):
        assert share_alike(name, one, third) == 1.0, name
        assert share_alike(name, one, other) < 0.9, name
    same_groups = [(a, b) for a, b in zip(one, third, strict=True) if a.groups == b.groups]
    assert all(a.label_map == b.label_map for a, b in same_groups), "which classes: hidden"
    assert share_alike("label_map", one, other) < 0.5


def correlations(*columns: np.ndarray) -> np.ndarray:
    """Largest absolute correlation of any two columns."""
    found = np.abs(np.corrcoef(np.stack(columns)))
    return found[~np.eye(len(columns), dtype=bool)].max()


def test_draws_of_a_round_do_not_follow_from_each_other_and_fill_their_ranges():
    drawn = rounds(1, 1)
    names = ("budget", "data_share", "pixel_noise", "label_noise", "permuted")
    columns = [np.array([float(getattr(c, name)) for c in drawn]) for name in names]
    columns[0], columns[1] = np.log(columns[0]), np.log(columns[1])
    assert correlations(*columns) < 0.25
    assert np.median(columns[0]) == pytest.approx(np.log(6.0) / 2, abs=0.25)
    whole = np.mean([c.label_map is None for c in drawn])
    assert whole == pytest.approx(1 / (TASK.num_classes - 1), abs=0.06), "every class its own group"


def test_draws_of_members_do_not_follow_from_each_other():
    spec = replace(VARIED, capped=1.0)
    found = draw_members(spec, 1, 0, np.arange(400), COSTS, np.ones((1, 2), dtype=bool))
    columns = found.price_E, found.learning_rate_E, found.params_cap_E, found.macs_cap_E
    assert correlations(*(np.log(column) for column in columns)) < 0.2
    assert (found.macs_cap_E >= 1000).all()
    assert np.median(found.price_E) == pytest.approx(np.sqrt(0.1 * 4.0), rel=0.25)


def test_parts_have_noise_of_their_own():
    data = TASK.load()
    same = replace(data, val_control=data.train, val_score=data.train)
    made = RoundData(same, RoundContext(pixel_noise=1.0), 3, 0)
    train, control = (made.part(n, torch.device("cpu"))[0] for n in ("train", "val_control"))
    assert not torch.equal(train, control)
