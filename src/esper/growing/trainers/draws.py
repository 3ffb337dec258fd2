"""Random numbers of a run: they depend only on its seed and the number of the batch."""

from __future__ import annotations

import contextlib
import random
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, fx, nn

from esper.device.rng import derive_keys
from esper.device.upload import upload
from esper.kasmina.layers.layers import has_hooks
from esper.kasmina.layers.random_layers import RowDraws, RowStreams, Site
from esper.leyline.streams import GOLDEN, stream_keys, stream_seed

LIBRARIES: Final = ("torch", "esper", "builtins", "math", "_operator")
"""Their code in a network draws from torch's generators only."""


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

    def begin(self, number: int, host: bool = True) -> None:
        """Seed them for a batch; `host`: Python's and numpy's as well."""
        seed = (self._seed + number * GOLDEN) % 2**63
        for generator in self.torch:
            generator.manual_seed(seed)
        if host:
            random.seed(seed)
            np.random.seed(seed % 2**32)


def may_draw_on_host(network: nn.Module) -> bool:
    """Whether a network has code of a user's, which may draw from Python's or numpy's generators,
    in some batch or other."""
    return has_hooks(network) or any(_is_users(part) for part in network.modules())


def _is_users(part: nn.Module) -> bool:
    code: list[Any] = [*type(part).__mro__]
    if isinstance(part, fx.GraphModule):
        code += [node.target for node in part.graph.nodes if node.op == "call_function"]
    # Functions of torch's C code have no module.
    modules = [getattr(one, "__module__", None) or "torch" for one in code]
    return "forward" in vars(part) or any(one.split(".")[0] not in LIBRARIES for one in modules)


def host_state() -> tuple[object, ...]:
    """State of Python's and numpy's generators."""
    return random.getstate(), str(np.random.get_state(legacy=False))
