"""Oracle of `SharedBatchIterator`: the order of training samples in plain numpy.

Shape letters: E members, P epochs, N images, L positions in the order.
"""

from __future__ import annotations

import numpy as np

from esper.leyline.arrays import Ints
from esper.leyline.errors import EsperError
from esper.leyline.streams import GOLDEN, mix64, stream_keys


def epoch_order(seed: int, members: int, images: int, length: int, round_index: int = 0) -> Ints:
    """Return `order_EL`: image indices, one permutation of all images after the other.

    >>> order_EL = epoch_order(seed=0, members=2, images=3, length=7)
    >>> np.sort(order_EL[:, :3]).tolist(), np.sort(order_EL[:, 3:6]).tolist()
    ([[0, 1, 2], [0, 1, 2]], [[0, 1, 2], [0, 1, 2]])
    """
    if min(members, images, length) < 1:
        raise EsperError(f"members={members}, images={images}, length={length}: all 1 or more")
    epochs = -(-length // images)
    member_E1 = np.arange(members)[:, None]
    epoch_P = np.arange(epochs)
    keys_EP = stream_keys(seed, "round", round_index, "member", member_E1, "epoch", epoch_P)
    with np.errstate(over="ignore"):
        counters_N = np.arange(1, images + 1, dtype=np.uint64) * np.uint64(GOLDEN)
        words_EPN = mix64(keys_EP[:, :, None] + counters_N)
    order_EPN = np.argsort(words_EPN, axis=2, kind="stable")
    return np.ascontiguousarray(order_EPN.reshape(members, -1)[:, :length], dtype=np.int64)
