"""Random numbers of a run: they depend only on its seed and the number of the batch."""

from __future__ import annotations

import contextlib
import random

import numpy as np
import torch
from torch import Tensor

from esper.device.rng import derive_keys
from esper.device.upload import upload
from esper.kasmina.layers.random_layers import RowDraws, RowStreams, Site
from esper.leyline.streams import GOLDEN, stream_keys, stream_seed


class KeyedDraws:
    """Random operations of a network as hashes of (run, batch, site, call, element).

    The number of the batch may be a tensor on the device, so that a captured batch draws anew each
    time it is replayed.
    """

    def __init__(self, seed: int, site: Site, device: torch.device) -> None:
        self._site = site
        key = stream_keys(seed, "run", "draws").reshape(1).view(np.int64)
        self._key_1 = upload(key, device)

    def batch(self, number: int | Tensor) -> contextlib.AbstractContextManager[object]:
        """The context in which the network computes a batch; `number` a tensor: `[1]`."""
        streams = RowStreams(derive_keys(self._key_1, number))
        return RowDraws(streams, self._site, slice(1), stacked=False)


class Generators:
    """The global generators that a network may draw from, seeded for each batch of a run."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = stream_seed(seed, "run", "draws")
        self.torch = [torch.default_generator]
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            self.torch.append(torch.cuda.default_generators[index])
        self.host_draws: bool | None = None
        """Whether it draws from Python's or numpy's generators; None: not known yet."""

    def begin(self, number: int) -> None:
        """Seed them for a batch."""
        seed = (self._seed + number * GOLDEN) % 2**63
        for generator in self.torch:
            generator.manual_seed(seed)
        if self.host_draws is not False:
            random.seed(seed)
            np.random.seed(seed % 2**32)
            self._before = host_state()

    def end(self) -> None:
        """Find out, after the first batch, which of them are used."""
        if self.host_draws is None:
            self.host_draws = host_state() != self._before


def host_state() -> tuple[object, ...]:
    """State of Python's and numpy's generators."""
    return random.getstate(), str(np.random.get_state(legacy=False))
