"""Cutting rollouts into sequences: nothing is lost, nothing leaks over a cut."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.tamiyo.sequences import SequenceSplit

CPU = torch.device("cpu")


def split_of(restart_TM) -> SequenceSplit:
    return SequenceSplit.at(np.array(restart_TM, dtype=bool), CPU)


@settings(max_examples=60)
@given(st.integers(1, 9), st.integers(1, 5), st.floats(0, 1), st.integers(0, 10_000))
def test_cut_steps_come_back_in_their_place(steps, members, share, seed):
    restart_TM = np.random.default_rng(seed).random((steps, members)) < share
    split = split_of(restart_TM)
    x = torch.arange(1.0, steps * members + 1).reshape(steps, members, 1)
    assert torch.equal(split.unpad(split.pad(x)), x)
    assert split.count == members + restart_TM[1:].sum()


@settings(max_examples=40)
@given(st.integers(1, 9), st.integers(1, 4), st.floats(0, 1), st.integers(0, 10_000))
def test_padded_sequences_run_as_step_by_step_with_resets(steps, members, share, seed):
    rng = np.random.default_rng(seed)
    restart_TM = rng.random((steps, members)) < share
    restart_TM[0] = False
    x = torch.from_numpy(rng.normal(size=(steps, members, 2)))
    start = torch.from_numpy(rng.normal(size=(members, 2)))
    expected, state = [], start
    for t in range(steps):
        state = torch.where(torch.from_numpy(restart_TM[t])[:, None], 0.0, state)
        state = 0.5 * state + x[t]
        expected.append(state)
    split = split_of(restart_TM)
    padded, state, out = split.pad(x), split.start(start), []
    for row in padded:
        state = 0.5 * state + row
        out.append(state)
    assert torch.allclose(split.unpad(torch.stack(out)), torch.stack(expected))


def test_the_longest_sequence_sets_the_length():
    assert split_of([[0], [0], [1], [0]]).length == 2
    assert split_of([[0], [0], [0], [1]]).length == 3


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_gradients_come_back_through_a_cut(share):
    restart_TM = np.random.default_rng(1).random((6, 3)) < share
    x = torch.ones(6, 3, 2, requires_grad=True)
    split = split_of(restart_TM)
    split.unpad(split.pad(x) * 3.0).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 3.0))
