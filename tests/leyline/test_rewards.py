"""Rewards: parts sum to the total exactly, terminals follow from the facts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from esper.leyline import EsperError, RewardComponentsTelemetry, RewardInputs
from esper.leyline.errors import UnknownNameError

finite = st.floats(-1e6, 1e6)


@given(
    hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=20), elements=finite)
)
def test_parts_sum_to_the_total_exactly_whatever_e_is(value_PE: np.ndarray):
    """Adding a member's parts one by one in Python gives the same bits as the array."""
    names = tuple(f"part{i}" for i in range(len(value_PE)))
    total = RewardComponentsTelemetry(names, value_PE).total
    for member in range(value_PE.shape[1]):
        by_hand = 0.0
        for part in value_PE[:, member].tolist():
            by_hand += part
        assert total[member] == by_hand
        alone = RewardComponentsTelemetry(names, value_PE[:, member : member + 1])
        assert alone.total[0] == total[member]


def test_parts_are_found_by_name():
    parts = {"score": np.array([1.0, 2.0]), "upkeep": np.array([-0.5, 0.0])}
    components = RewardComponentsTelemetry.of(parts, members=2)
    assert components.names == ("score", "upkeep")
    assert components.part("upkeep").tolist() == [-0.5, 0.0]
    with pytest.raises(UnknownNameError, match="did you mean 'upkeep'"):
        components.part("upkep")


def test_no_parts_is_a_reward_of_zero():
    assert RewardComponentsTelemetry.of({}, members=3).total.tolist() == [0.0, 0.0, 0.0]


def test_part_of_another_length_is_refused():
    with pytest.raises(EsperError, match=r"'score': shape \(1,\), not \(2,\)"):
        RewardComponentsTelemetry.of({"score": np.ones(1)}, members=2)


@pytest.mark.parametrize("names", [("a",), ("a", "a"), ("a", "b", "c")])
def test_each_part_has_its_own_name(names: tuple[str, ...]):
    with pytest.raises(EsperError, match="2 different names are needed"):
        RewardComponentsTelemetry(names, np.zeros((2, 3)))


def inputs(build, step: int, rolled_back: list[bool]) -> RewardInputs:
    wanted = {"step": step, "episode_length": 5, "rolled_back_E": np.array(rolled_back)}
    return build(RewardInputs, wanted)


def test_terminal_is_the_last_step_or_a_rollback(build):
    midway = inputs(build, 3, [False, True, False])
    assert not midway.episode_over
    assert midway.terminal.tolist() == [False, True, False]
    last = inputs(build, 4, [False, True, False])
    assert last.episode_over
    assert last.terminal.tolist() == [True, True, True]
