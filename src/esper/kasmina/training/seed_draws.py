"""Initial parameters of new seeds and of their gates.

Shape letters: N new seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from esper.device.upload import upload
from esper.kasmina.stacked.network import StackedNetwork
from esper.kasmina.training.training import GATE_KEY, Trainer
from esper.leyline.actions import BlendStyle
from esper.leyline.arrays import Ints
from esper.leyline.streams import UInt64Array


def draw_seeds(
    network: StackedNetwork,
    trainer: Trainer,
    keys: UInt64Array,
    members: Ints,
    slots: Ints,
    kinds: Ints,
    styles: npt.NDArray[np.generic],
) -> None:
    """Initialise new seeds, each from the stream `keys[n]`, and the gates of their slots.

    A gate is reset with every seed, whatever its style, so that no stale one remains.
    """
    order = np.lexsort((kinds, slots))
    keys, slots, kinds, styles = keys[order], slots[order], kinds[order], styles[order]
    # One copy to the device for all banks.
    both = upload(np.stack([members[order], keys.view(np.int64)]), network.device)
    index_N, keys_N = both[0], both[1]
    for own in _runs(slots, kinds):
        slot, kind = int(slots[own.start]), int(kinds[own.start])
        network.bank(slot, kind).draw(keys[own], index_N[own], keys_N[own])
        network.inherit(slot, kind, index_N[own])
        trainer.clear_rows((slot, kind), index_N[own])
    for own in _runs(slots):
        slot = int(slots[own.start])
        if slot in network.gates or (styles[own] == BlendStyle.GATE).any():
            network.gate(slot).draw(keys[own], index_N[own], keys_N[own])
            trainer.clear_rows((slot, GATE_KEY), index_N[own])


def _runs(*values: Ints) -> Iterator[slice]:
    """Yield the runs of equal values, which are sorted."""
    if not len(values[0]):
        return
    changes = values[0][1:] != values[0][:-1]
    for value in values[1:]:
        changes = changes | (value[1:] != value[:-1])
    bounds = [0, *(int(at) + 1 for at in np.flatnonzero(changes)), len(values[0])]
    for begin, end in pairwise(bounds):
        yield slice(begin, end)
