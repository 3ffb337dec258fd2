"""Parts have exactly the sizes asked for, every class its share, and no text is in two of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.tasks.splits import sequences, split_blocks, stratified_indices
from support import refused


@given(
    st.lists(st.integers(0, 4), min_size=10, max_size=200),
    st.lists(st.integers(1, 30), min_size=1, max_size=3),
)
def test_parts_are_disjoint_complete_and_of_the_sizes_asked_for(labels, sizes):
    labels_N = np.array(labels)
    if sum(sizes) >= len(labels):
        assert "samples out of" in refused(lambda: stratified_indices(labels_N, sizes))
        return
    parts = stratified_indices(labels_N, sizes)
    assert [len(part) for part in parts] == [*sizes, len(labels) - sum(sizes)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    left = np.bincount(labels_N, minlength=5)
    for size, part in zip(sizes, parts, strict=False):
        counts = np.bincount(labels_N[part], minlength=5)
        assert np.abs(counts - left * size / left.sum()).max() < 1 + 1e-9
        left = left - counts


def test_the_same_seed_cuts_the_same_and_another_otherwise():
    labels = np.arange(100) % 10
    assert all(
        (a == b).all()
        for a, b in zip(
            stratified_indices(labels, (20,)), stratified_indices(labels, (20,)), strict=True
        )
    )
    assert (
        stratified_indices(labels, (20,))[0] != stratified_indices(labels, (20,), seed=1)[0]
    ).any()


def test_blocks_share_no_token():
    parts = split_blocks(np.arange(1003), 100, (2, 3))
    assert [part.shape for part in parts] == [(2, 100), (3, 100), (5, 100)]
    assert sorted(np.concatenate([part.ravel() for part in parts]).tolist()) == list(range(1000))
    assert all((np.diff(part, axis=1) == 1).all() for part in parts)


@pytest.mark.parametrize("context", [1, 3, 7, 20])
def test_sequences_predict_the_next_token_and_stay_in_their_block(context):
    blocks = np.arange(84).reshape(4, 21)
    inputs, labels = sequences(blocks, context)
    assert inputs.shape == labels.shape == (4 * (20 // context), context)
    assert inputs.dtype == labels.dtype == np.int64
    assert (labels == inputs + 1).all()
    assert (inputs[:, 0] // 21 == labels[:, -1] // 21).all()


def test_too_little_text_is_one_line():
    assert "has 3 blocks of 10" in refused(lambda: split_blocks(np.arange(39), 10, (2, 1)))
