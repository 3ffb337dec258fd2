"""Split validation parts off training data: stratified by class, at random, or by blocks of text.

The split of a task has its own seed, independent of the run's: runs differ in initial weights and
batches, not in their validation data. Users' data (`cut_samples`) are split by the seed of the run.

Shape letters: N samples, K classes, L tokens, B blocks, T tokens of a sequence.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from esper.leyline.arrays import Floats, Ints
from esper.leyline.errors import EsperError
from esper.leyline.streams import stream_seed
from esper.tasks.task_data import TaskData, TaskPart

DISTINCT: Final = 0.5
"""Share of distinct samples from which copies are kept in one part."""
LEAST_PER_CLASS: Final = 2
"""Mean number of samples per label from which integers are cut by class."""


def stratified_indices(labels_N: Ints, sizes: Sequence[int], seed: int = 0) -> tuple[Ints, ...]:
    """Return sorted indices of parts of exactly these sizes, then of the remainder.

    Every part is stratified by class, to one sample. `seed`: that of tasks is always 0.
    """
    if min(sizes) < 1 or sum(sizes) >= len(labels_N):
        raise EsperError(
            f"parts of {tuple(sizes)} samples out of {len(labels_N)}: each needs 1 or more, and "
            f"at least one sample must be left to train on"
        )
    pools = {
        int(label): np.random.default_rng(
            stream_seed(seed, "cut", "class", int(label))
        ).permutation(np.flatnonzero(labels_N == label))
        for label in np.unique(labels_N)
    }
    taken = dict.fromkeys(pools, 0)
    parts: list[Ints] = []
    for number, size in enumerate(sizes):
        left = np.array([len(pool) - taken[label] for label, pool in pools.items()])
        quota = _quotas(left, size, seed, number)
        pieces = []
        for (label, pool), count in zip(pools.items(), quota, strict=True):
            pieces.append(pool[taken[label] : taken[label] + count])
            taken[label] += int(count)
        parts.append(np.sort(np.concatenate(pieces)))
    rest = np.concatenate([pool[taken[label] :] for label, pool in pools.items()])
    return (*parts, np.sort(rest))


def _quotas(counts_K: Ints, size: int, seed: int, number: int) -> Ints:
    """Return how many samples of each class to take, `size` in total (largest remainders)."""
    share_K = counts_K * size / counts_K.sum()
    quota_K: Ints = np.floor(share_K).astype(np.int64)
    tie_K = np.random.default_rng(stream_seed(seed, "cut", "tie", number)).random(len(counts_K))
    by_remainder = np.lexsort((tie_K, -np.round(share_K - quota_K, 9)))
    quota_K[by_remainder[: size - int(quota_K.sum())]] += 1
    return quota_K


# ---- users' data ----------------------------------------------------------------------------


def has_classes(targets_N: npt.NDArray[Any]) -> bool:
    """Whether targets are class labels, one per sample."""
    if targets_N.dtype.kind == "f" or targets_N.ndim != 1:
        return False
    return LEAST_PER_CLASS * len(np.unique(targets_N)) <= len(targets_N)


def cut_samples(
    targets_N: npt.NDArray[Any],
    key_N: Ints,
    shares: Sequence[float],
    seed: int,
    by_class: bool,
) -> tuple[list[Ints], int]:
    """Return sorted numbers of the samples of each share, then of the rest.

    Samples with one key are copies, which stay in one part, unless most samples are, as in a table
    of a few categories. Returns how many copies were kept together as well.
    """

    def cut(some_N: npt.NDArray[Any]) -> list[Ints]:
        if by_class:
            return _stratified_cut(some_N, shares, seed)
        return random_cut(len(some_N), shares, seed)

    _, first_G, group_N = np.unique(key_N, return_index=True, return_inverse=True)
    copies = len(key_N) - len(first_G)
    if copies and len(first_G) >= DISTINCT * len(key_N):
        original_G = np.sort(first_G)
        with contextlib.suppress(EsperError):  # too few without the copies
            pieces = cut(targets_N[original_G])
            found = [np.isin(first_G[group_N], original_G[piece]) for piece in pieces]
            return [np.flatnonzero(piece) for piece in found], copies
    return cut(targets_N), 0


def random_cut(samples: int, shares: Sequence[float], seed: int) -> list[Ints]:
    """Return sorted numbers of the samples of each share, then of the rest."""
    sizes = _sizes(samples, shares, 1)
    order = np.random.default_rng(stream_seed(seed, "grow", "cut")).permutation(samples)
    return [np.sort(piece) for piece in np.split(order, np.cumsum(sizes))]


def _stratified_cut(labels_N: Ints, shares: Sequence[float], seed: int) -> list[Ints]:
    """Return the same as `random_cut`, stratified; one sample of each class stays in the rest."""
    order = np.random.default_rng(stream_seed(seed, "grow", "kept")).permutation(len(labels_N))
    _, first = np.unique(labels_N[order], return_index=True)
    kept = order[first]
    free = np.setdiff1d(np.arange(len(labels_N)), kept)
    sizes = _sizes(len(labels_N), shares, len(kept) + 1)
    *parts, rest = stratified_indices(labels_N[free], sizes, seed)
    return [*(free[part] for part in parts), np.sort(np.concatenate([kept, free[rest]]))]


def _sizes(samples: int, shares: Sequence[float], left: int) -> list[int]:
    """Return the size of each part; at least `left` samples stay."""
    sizes = [max(1, round(share * samples)) for share in shares]
    while sum(sizes) > samples - left and max(sizes) > 1:
        sizes[sizes.index(max(sizes))] -= 1
    if sum(sizes) > samples - left:
        raise EsperError(
            f"train has {samples} samples: too few to cut {len(sizes)} more part"
            f"{'s' * (len(sizes) > 1)} from it; give val= and test=, or more data"
        )
    return sizes


# ---- text -----------------------------------------------------------------------------------


def split_blocks(
    tokens_L: npt.NDArray[Any], length: int, counts: Sequence[int]
) -> tuple[npt.NDArray[Any], ...]:
    """Return `counts` blocks of `length` tokens per part, then the remaining ones, in text order.

    Blocks do not overlap; tokens after the last complete block are dropped.
    """
    blocks = len(tokens_L) // length
    if min(counts) < 1 or sum(counts) >= blocks:
        raise EsperError(
            f"text of {len(tokens_L):,} tokens has {blocks} blocks of {length}: more than "
            f"{sum(counts)} are needed for validation alone"
        )
    tokens_BL = tokens_L[: blocks * length].reshape(blocks, length)
    order = np.random.default_rng(stream_seed(0, "cut", "blocks")).permutation(blocks)
    pieces = np.split(order, np.cumsum(counts))
    return tuple(tokens_BL[np.sort(piece)] for piece in pieces)


def sequences(tokens_BL: npt.NDArray[Any], context: int) -> tuple[Ints, Ints]:
    """Return inputs and next tokens `[N, T]` of every block; sequences never cross blocks.

    >>> inputs_NT, labels_NT = sequences(np.arange(5)[None], context=2)
    >>> inputs_NT.tolist(), labels_NT.tolist()
    ([[0, 1], [2, 3]], [[1, 2], [3, 4]])
    """
    each = (tokens_BL.shape[1] - 1) // context
    inputs = tokens_BL[:, : each * context].reshape(-1, context)
    labels = tokens_BL[:, 1 : each * context + 1].reshape(-1, context)
    return inputs.astype(np.int64), labels.astype(np.int64)


def split_validation(
    whole: TaskPart,
    test: TaskPart,
    validation: int,
    statistics: Callable[[npt.NDArray[Any]], tuple[Floats, Floats]],
) -> TaskData:
    """Split `validation` samples each for val_control and val_score off a training set, by class.

    `statistics`: returns mean and std of the remaining training inputs.
    """
    control, score, train = (
        TaskPart(whole.inputs[chosen], whole.labels[chosen])
        for chosen in stratified_indices(whole.labels, (validation, validation))
    )
    mean_C, std_C = statistics(train.inputs)
    return TaskData(train, val_control=control, val_score=score, test=test, mean=mean_C, std=std_C)
