"""Cut validation and test samples from training data: seeded, disjoint, stratified by class.

Shape letters: N samples.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from esper.leyline.arrays import Ints
from esper.leyline.errors import EsperError
from esper.leyline.streams import stream_seed
from esper.tasks.splits import stratified_indices

DISTINCT: Final = 0.5
"""Share of distinct samples from which copies are kept in one part."""
LEAST_PER_CLASS: Final = 2
"""Mean number of samples per label from which integers are cut by class."""


def has_classes(targets: Tensor) -> bool:
    """Whether targets are class labels, one per sample."""
    if targets.dtype.is_floating_point or targets.ndim != 1:
        return False
    return LEAST_PER_CLASS * len(np.unique(targets.numpy())) <= len(targets)


def cut_samples(
    targets: Tensor,
    key_N: npt.NDArray[np.uint64],
    shares: Sequence[float],
    seed: int,
    by_class: bool,
) -> tuple[list[Ints], int]:
    """Return sorted numbers of the samples of each share, then of the rest.

    Samples with one key are copies, which stay in one part, unless most samples are, as in a table
    of a few categories. Returns how many copies were kept together as well.
    """

    def cut(targets: Tensor) -> list[Ints]:
        if by_class:
            return stratified_cut(targets, shares, seed)
        return random_cut(len(targets), shares, seed)

    _, first_G, group_N = np.unique(key_N, return_index=True, return_inverse=True)
    copies = len(key_N) - len(first_G)
    if copies and len(first_G) >= DISTINCT * len(key_N):
        original_G = np.sort(first_G)
        with contextlib.suppress(EsperError):  # too few without the copies
            pieces = cut(targets[torch.from_numpy(original_G)])
            found = [np.isin(first_G[group_N], original_G[piece]) for piece in pieces]
            return [np.flatnonzero(piece) for piece in found], copies
    return cut(targets), 0


def random_cut(samples: int, shares: Sequence[float], seed: int) -> list[Ints]:
    """Return sorted numbers of the samples of each share, then of the rest."""
    sizes = _sizes(samples, shares, 1)
    order = np.random.default_rng(stream_seed(seed, "grow", "cut")).permutation(samples)
    return [np.sort(piece) for piece in np.split(order, np.cumsum(sizes))]


def stratified_cut(labels: Tensor, shares: Sequence[float], seed: int) -> list[Ints]:
    """Return the same as `random_cut`, stratified; one sample of each class stays in the rest."""
    labels_N: Ints = labels.numpy()
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
